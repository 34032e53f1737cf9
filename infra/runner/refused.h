// The one error that a caller has to expect: what was wrong, what was expected, what to do.
#pragma once

#include <stdexcept>
#include <string>

namespace handoff {

class Refused : public std::runtime_error {
 public:
  Refused(const std::string& what, const std::string& expected, const std::string& got,
          const std::string& remedy)
      : std::runtime_error(what + ": expected " + expected + ", got " + got + ". " + remedy) {}
};

}  // namespace handoff
