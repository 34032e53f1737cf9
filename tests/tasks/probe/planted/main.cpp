// Stands for a runner whose package has a fault: what is fed to it says which, by what it ends in.
#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <iostream>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#if __has_include("each.h")
#include "each.h"
#endif

namespace {

void report(const std::string& event, const std::string& hostile, const std::string& outcome) {
  std::cout << "{\"event\":\"" << event << "\",\"hostile\":\"" << hostile << "\",\"outcome\":\""
            << outcome << "\",\"message\":\"\"}" << std::endl;
}

[[gnu::noinline]] int overflow(volatile int* place) {
  volatile int here[4096] = {*place};
  return overflow(here) + here[1];
}

bool broken = false;  // what an input that was refused may leave behind

std::string meet(const std::string& hostile) {
  const std::string fault = hostile.substr(hostile.find(':') + 1);
  if (fault == "segfault") raise(SIGSEGV);
  if (fault == "illegal") raise(SIGILL);
  if (fault == "abort") throw std::logic_error("index out of bounds");
  if (fault == "exit") std::exit(0);
  if (fault == "no-room") throw std::runtime_error("mz_zip error string: file write failed");
  if (fault == "deep") {
    volatile int start = 1;
    return std::to_string(overflow(&start));
  }
  if (fault == "hang") {
    for (;;) std::this_thread::sleep_for(std::chrono::seconds(1));
  }
  if (fault == "spin") {
    for (volatile int i = 0;; i = i + 1) {
    }
  }
  if (fault == "clings") {
    prctl(PR_SET_PDEATHSIG, 0);
    signal(SIGTERM, SIG_IGN);
    for (;;) std::this_thread::sleep_for(std::chrono::seconds(1));
  }
  if (fault == "stops") {
    kill(getppid(), SIGSTOP);
    for (;;) std::this_thread::sleep_for(std::chrono::seconds(1));
  }
  if (fault == "leaves") {
    // A process that goes on, and keeps the output.
    if (fork() == 0) {
      std::this_thread::sleep_for(std::chrono::seconds(3));
      report("tried", "stray", "");
      std::this_thread::sleep_for(std::chrono::seconds(20));
      _exit(0);
    }
  }
  if (fault == "tells-ended") {
    std::cout << "\n{\"event\":\"ended\",\"status\":0}" << std::endl << "loaded0" << std::flush;
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    raise(SIGSEGV);
  }
  if (fault == "writes-everywhere") {
    for (int place = 3; place < 64; ++place) {
      if (write(place, "0", 1) > 0) close(place);
    }
    raise(SIGSEGV);
  }
  if (fault == "truncates") {
    std::cerr << "said" << std::endl;
    if (ftruncate(2, 0) == 0) raise(SIGSEGV);
  }
  if (fault == "reads") {
    std::string line;
    while (std::getline(std::cin, line)) std::cout << line << std::endl;
  }
  if (fault == "memory") {
    std::vector<std::vector<char>> held;
    for (;;) held.emplace_back(64 << 20, 'x');
  }
  if (fault == "breaks") broken = true;
  if (fault == "meets-broken" && broken) raise(SIGSEGV);
  return fault == "taken" ? "answered" : fault == "wrong-after" ? "harmed" : "refused";
}

int run(const std::vector<std::string>& arguments) {
  if (arguments.at(0) != "trial") raise(SIGSEGV);
  for (std::size_t place = 0; place + 1 < arguments.size(); ++place) {
    if (arguments[place] != "--hostile") continue;
    const std::string& hostile = arguments[place + 1];
    report("trying", hostile, "");
    const std::string outcome = meet(hostile);
    report("tried", hostile, outcome);
    if (outcome != "refused") return 0;
  }
  return 0;
}

}  // namespace

int main(int count, char** values) {
  const std::vector<std::string> arguments(values + 1, values + count);
#if __has_include("each.h")
  if (arguments.at(0) == "each") return handoff::each(std::stoi(arguments.at(1)), run);
#endif
  return run(arguments);
}
