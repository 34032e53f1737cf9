// A strict reader of JSON (RFC 8259) for manifests and safetensors headers, and a writer of strings.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace handoff {

// An immutable JSON value. Every accessor throws `Refused` when the value is of another kind.
class Json {
 public:
  enum class Kind { null, boolean, number, string, array, object };

  // Parses the whole of `text`. Refuses what follows it, a repeated key, more than 64 levels.
  static Json parse(std::string_view text);

  Kind kind() const { return kind_; }
  bool is_null() const { return kind_ == Kind::null; }
  bool boolean() const;
  double number() const;
  // A whole number of at most 2^53, which a double holds exactly.
  std::int64_t integer() const;
  const std::string& string() const;
  // The elements of an array or the values of an object, in their order.
  const std::vector<Json>& items() const;
  const std::vector<std::string>& names() const;
  bool has(std::string_view name) const { return find(name) != nullptr; }
  const Json& at(std::string_view name) const;

 private:
  friend class JsonParser;
  const Json* find(std::string_view name) const;
  void require(Kind kind) const;

  Kind kind_ = Kind::null;
  bool boolean_ = false;
  double number_ = 0.0;
  std::string text_;
  std::vector<std::string> names_;
  std::vector<Json> items_;
};

// `text` as a JSON string, in quotes; bytes that are not ASCII are passed through.
std::string quote(std::string_view text);

}  // namespace handoff
