#include "each.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <iostream>

#include "json.h"
#include "refused.h"

namespace handoff {
namespace {

// Becomes a process that runs one command line and ends as a program of its own would.
[[noreturn]] void run_one(const Run& run, const std::vector<std::string>& arguments, pid_t parent) {
  // What doesn't end is ended with the process that asks for command lines.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) std::_Exit(1);
  // The next line is none of its.
  const int nothing = open("/dev/null", O_RDONLY);
  if (nothing > 0) dup2(nothing, 0);
  std::exit(run(arguments));
}

int wait_for(pid_t child) {
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) throw std::runtime_error(std::strerror(errno));
  }
  return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace

int each(const Run& run) {
  const pid_t parent = getpid();
  for (std::string line; std::getline(std::cin, line);) {
    std::vector<std::string> arguments;
    const Json given = Json::parse(line);
    for (const Json& one : given.items()) arguments.push_back(one.string());
    const pid_t child = fork();
    if (child < 0) {
      throw Refused("no process could be forked", "one for each command line",
                    std::strerror(errno), "Make room for processes and memory");
    }
    if (child == 0) run_one(run, arguments, parent);
    // A crash may have left half a line.
    std::cout << "\n{\"event\":\"ended\",\"status\":" << wait_for(child) << "}" << std::endl;
  }
  return 0;
}

}  // namespace handoff
