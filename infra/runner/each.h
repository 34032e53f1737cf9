// Many commands by one program that is loaded once.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace handoff {

// Runs a command line, and returns the exit status.
using Run = std::function<int(const std::vector<std::string>& arguments)>;

// Runs each command that is asked for by the socket `asked` in a process forked from this one:
// loading libtorch takes longer than a short command. Nothing of libtorch may have been called
// before, since its threads wouldn't come along.
//
// The socket keeps messages apart (SOCK_SEQPACKET). It says so once it can be asked; a request has
// four descriptors: where the output goes, a socket for the end, where the errors go, and a file
// with the arguments, a zero behind each. By the socket for the end the exit status is told, in
// decimal, negative for a signal; what comes by it, or its end, lets the command be killed. A
// command holds neither socket: whatever it prints, and however it ends, its end is told by another.
//
// Returns when nobody can ask any more. Throws `Refused` where a request can't be carried out.
int each(int asked, const Run& run);

}  // namespace handoff
