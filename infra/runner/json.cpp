#include "json.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "refused.h"

namespace handoff {
namespace {

const char* name_of(Json::Kind kind) {
  switch (kind) {
    case Json::Kind::null: return "null";
    case Json::Kind::boolean: return "true or false";
    case Json::Kind::number: return "a number";
    case Json::Kind::string: return "a string";
    case Json::Kind::array: return "a list";
    case Json::Kind::object: return "an object";
  }
  return "nothing";
}

}  // namespace

void Json::require(Kind kind) const {
  if (kind_ != kind) {
    throw Refused("a record has another shape", name_of(kind), name_of(kind_),
                  "Pull the release again, or use the runner of the Handoff that wrote it");
  }
}

bool Json::boolean() const {
  require(Kind::boolean);
  return boolean_;
}

double Json::number() const {
  require(Kind::number);
  return number_;
}

std::int64_t Json::integer() const {
  const double value = number();
  if (value != std::floor(value) || std::fabs(value) > 9007199254740992.0) {
    throw Refused("a record has another shape", "a whole number", std::to_string(value),
                  "Pull the release again");
  }
  return static_cast<std::int64_t>(value);
}

const std::string& Json::string() const {
  require(Kind::string);
  return text_;
}

const std::vector<Json>& Json::items() const {
  if (kind_ != Kind::object) require(Kind::array);
  return items_;
}

const std::vector<std::string>& Json::names() const {
  require(Kind::object);
  return names_;
}

const Json* Json::find(std::string_view name) const {
  require(Kind::object);
  const auto found = std::find(names_.begin(), names_.end(), name);
  return found == names_.end() ? nullptr : &items_[static_cast<std::size_t>(found - names_.begin())];
}

const Json& Json::at(std::string_view name) const {
  if (const Json* found = find(name)) return *found;
  throw Refused("a record lacks a field", std::string(name), "nothing", "Pull the release again");
}

std::string quote(std::string_view text) {
  std::string result = "\"";
  for (const char character : text) {
    if (character == '"' || character == '\\') {
      result.push_back('\\');
      result.push_back(character);
    } else if (static_cast<unsigned char>(character) < 0x20) {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\u%04x", static_cast<unsigned>(character));
      result += escaped;
    } else {
      result.push_back(character);
    }
  }
  return result + "\"";
}

}  // namespace handoff
