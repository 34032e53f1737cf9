#include "each.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>

#include "refused.h"

namespace handoff {
namespace {

[[noreturn]] void refuse(const std::string& what, const std::string& got) {
  throw Refused(what, "what Handoff asks for", got, "Make room for processes and memory");
}

void require(bool done, const std::string& what) {
  if (!done) refuse(what, std::strerror(errno));
}

// What comes with a request, closed with it.
struct Given {
  std::array<int, 4> all = {-1, -1, -1, -1};

  Given() = default;
  Given(const Given&) = delete;
  Given& operator=(const Given&) = delete;
  ~Given() {
    for (const int one : all) close(one);
  }
  int output() const { return all[0]; }
  int end() const { return all[1]; }
  int errors() const { return all[2]; }
  int arguments() const { return all[3]; }
};

// Waits for a request; returns false when nobody can ask any more.
bool receive(int asked, Given& given) {
  char word = 0;
  iovec text = {&word, 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(given.all))> space = {};
  msghdr message = {};
  message.msg_iov = &text;
  message.msg_iovlen = 1;
  message.msg_control = space.data();
  message.msg_controllen = space.size();
  ssize_t read = 0;
  do read = recvmsg(asked, &message, MSG_CMSG_CLOEXEC);
  while (read < 0 && errno == EINTR);
  require(read >= 0, "no request could be read");
  if (read == 0) return false;
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header == nullptr || header->cmsg_type != SCM_RIGHTS ||
      header->cmsg_len != CMSG_LEN(sizeof(given.all))) {
    refuse("a request has other descriptors", "others");
  }
  std::memcpy(given.all.data(), CMSG_DATA(header), sizeof(given.all));
  return true;
}

std::vector<std::string> arguments_in(int file) {
  std::string text;
  std::array<char, 65536> piece;
  for (;;) {
    const ssize_t read = pread(file, piece.data(), piece.size(), static_cast<off_t>(text.size()));
    require(read >= 0, "the arguments could not be read");
    if (read == 0) break;
    text.append(piece.data(), static_cast<std::size_t>(read));
  }
  std::vector<std::string> arguments;
  for (auto from = text.begin(); from != text.end();) {
    const auto to = std::find(from, text.end(), '\0');
    arguments.emplace_back(from, to);
    from = to == text.end() ? to : to + 1;
  }
  return arguments;
}

// Becomes a process that runs one command line and ends as a program of its own would.
[[noreturn]] void run_one(const Run& run, const Given& given, int asked, pid_t parent) {
  // It ends with the process that asks for commands.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) std::_Exit(1);
  if (dup2(given.output(), 1) < 0 || dup2(given.errors(), 2) < 0) std::_Exit(1);
  const std::vector<std::string> arguments = arguments_in(given.arguments());
  for (const int one : given.all) close(one);
  close(asked);
  std::exit(run(arguments));
}

// Returns the exit status once the process has ended, which is killed when that is asked for.
int status_of(pid_t child, int end) {
  const int ended = static_cast<int>(syscall(SYS_pidfd_open, child, 0));
  require(ended >= 0, "a process could not be watched");
  std::array<pollfd, 2> watched = {pollfd{ended, POLLIN, 0}, pollfd{end, POLLIN, 0}};
  while (poll(watched.data(), watched.size(), -1) < 0) require(errno == EINTR, "poll failed");
  if (watched[0].revents == 0) kill(child, SIGKILL);
  close(ended);
  int status = 0;
  while (waitpid(child, &status, 0) < 0) require(errno == EINTR, "a process was lost");
  return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace

int each(int asked, const Run& run) {
  const pid_t parent = getpid();
  require(send(asked, "loaded", 6, MSG_NOSIGNAL) >= 0, "nobody asks");
  for (;;) {
    Given given;
    if (!receive(asked, given)) return 0;
    const pid_t child = fork();
    require(child >= 0, "no process could be forked");
    if (child == 0) run_one(run, given, asked, parent);
    const std::string status = std::to_string(status_of(child, given.end()));
    // Whoever has asked may be no more.
    send(given.end(), status.data(), status.size(), MSG_NOSIGNAL);
  }
}

}  // namespace handoff
