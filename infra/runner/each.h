// Many commands by one program that is loaded once.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace handoff {

// Runs a command line, and returns the exit status.
using Run = std::function<int(const std::vector<std::string>& arguments)>;

// Runs each command line that standard input gives, a list in JSON a line, in a process forked from
// this one, and tells how it ended: loading libtorch takes longer than a short command. Nothing of
// libtorch may have been called before, since its threads wouldn't come along.
//
// Throws `Refused` where a line is no list of strings, or no process can be forked.
int each(const Run& run);

}  // namespace handoff
