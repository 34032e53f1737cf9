// The parser of json.h.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <string>
#include <unordered_set>

#include "json.h"
#include "refused.h"

namespace handoff {
namespace {

constexpr int kMaxDepth = 64;

void append_utf8(std::string& text, std::uint32_t point) {
  const auto put = [&text](std::uint32_t byte) { text.push_back(static_cast<char>(byte)); };
  if (point < 0x80) {
    put(point);
  } else if (point < 0x800) {
    put(0xC0 | (point >> 6));
    put(0x80 | (point & 0x3F));
  } else if (point < 0x10000) {
    put(0xE0 | (point >> 12));
    put(0x80 | ((point >> 6) & 0x3F));
    put(0x80 | (point & 0x3F));
  } else {
    put(0xF0 | (point >> 18));
    put(0x80 | ((point >> 12) & 0x3F));
    put(0x80 | ((point >> 6) & 0x3F));
    put(0x80 | (point & 0x3F));
  }
}

}  // namespace

class JsonParser {
 public:
  explicit JsonParser(std::string_view text) : text_(text) {}

  Json parse() {
    Json value = parse_value(0);
    skip_space();
    if (place_ != text_.size()) fail("the end of the text");
    return value;
  }

 private:
  [[noreturn]] void fail(const std::string& expected) const {
    throw Refused("this is not JSON", expected + " at byte " + std::to_string(place_),
                  place_ < text_.size() ? quote(text_.substr(place_, 1)) : "the end",
                  "Pull the release again");
  }

  void skip_space() {
    while (place_ < text_.size() && std::string_view(" \t\n\r").find(text_[place_]) !=
                                        std::string_view::npos) {
      ++place_;
    }
  }

  bool take(char wanted) {
    if (place_ >= text_.size() || text_[place_] != wanted) return false;
    ++place_;
    return true;
  }

  void expect(char wanted) {
    if (!take(wanted)) fail(std::string("'") + wanted + "'");
  }

  bool take_word(std::string_view word) {
    if (text_.substr(place_, word.size()) != word) return false;
    place_ += word.size();
    return true;
  }

  Json parse_value(int depth) {
    if (depth > kMaxDepth) fail("fewer levels");
    skip_space();
    Json value;
    if (take('{')) {
      parse_object(value, depth);
    } else if (take('[')) {
      parse_array(value, depth);
    } else if (take('"')) {
      value.kind_ = Json::Kind::string;
      value.text_ = parse_string();
    } else if (take_word("true")) {
      value.kind_ = Json::Kind::boolean;
      value.boolean_ = true;
    } else if (take_word("false")) {
      value.kind_ = Json::Kind::boolean;
    } else if (!take_word("null")) {
      value.kind_ = Json::Kind::number;
      value.number_ = parse_number();
    }
    return value;
  }

  void parse_object(Json& value, int depth) {
    value.kind_ = Json::Kind::object;
    skip_space();
    if (take('}')) return;
    std::unordered_set<std::string> names;  // a look through a vector of a million takes hours
    do {
      skip_space();
      expect('"');
      std::string name = parse_string();
      if (!names.insert(name).second) fail("keys that differ");
      skip_space();
      expect(':');
      value.names_.push_back(std::move(name));
      value.items_.push_back(parse_value(depth + 1));
      skip_space();
    } while (take(','));
    expect('}');
  }

  void parse_array(Json& value, int depth) {
    value.kind_ = Json::Kind::array;
    skip_space();
    if (take(']')) return;
    do {
      value.items_.push_back(parse_value(depth + 1));
      skip_space();
    } while (take(','));
    expect(']');
  }

  double parse_number() {
    const std::size_t begin = place_;
    take('-');
    if (!take('0')) digits();
    if (take('.')) digits();
    if (take('e') || take('E')) {
      if (!take('+')) take('-');
      digits();
    }
    double number = 0.0;
    const std::string_view written = text_.substr(begin, place_ - begin);
    const auto read = std::from_chars(written.data(), written.data() + written.size(), number);
    if (read.ec != std::errc() || !std::isfinite(number)) fail("a number that a double holds");
    return number;
  }

  void digits() {
    const std::size_t begin = place_;
    while (place_ < text_.size() && text_[place_] >= '0' && text_[place_] <= '9') ++place_;
    if (place_ == begin) fail("a digit");
  }

  std::string parse_string() {
    std::string result;
    for (;;) {
      if (place_ >= text_.size()) fail("the end of a string");
      const char character = text_[place_++];
      if (character == '"') return result;
      if (static_cast<unsigned char>(character) < 0x20) fail("no control character");
      if (character == '\\') {
        parse_escape(result);
      } else {
        result.push_back(character);
      }
    }
  }

  void parse_escape(std::string& result) {
    static constexpr std::string_view letters = "\"\\/bfnrt";
    static constexpr std::string_view meanings = "\"\\/\b\f\n\r\t";
    if (take('u')) {
      std::uint32_t point = parse_hex();
      if (point >= 0xDC00 && point < 0xE000) fail("the first of two surrogates");
      if (point >= 0xD800 && point < 0xDC00) {
        const std::uint32_t low = take_word("\\u") ? parse_hex() : 0;
        if (low < 0xDC00 || low >= 0xE000) fail("the second of two surrogates");
        point = 0x10000 + ((point - 0xD800) << 10) + (low - 0xDC00);
      }
      append_utf8(result, point);
      return;
    }
    const auto place = place_ < text_.size() ? letters.find(text_[place_]) : std::string_view::npos;
    if (place == std::string_view::npos) fail("an escape");
    result.push_back(meanings[place]);
    ++place_;
  }

  std::uint32_t parse_hex() {
    std::uint32_t value = 0;
    const std::string_view written = text_.substr(std::min(place_, text_.size()), 4);
    const auto read = std::from_chars(written.data(), written.data() + written.size(), value, 16);
    if (written.size() != 4 || read.ptr != written.data() + 4) fail("four hexadecimal digits");
    place_ += 4;
    return value;
  }

  std::string_view text_;
  std::size_t place_ = 0;
};

Json Json::parse(std::string_view text) { return JsonParser(text).parse(); }

}  // namespace handoff
