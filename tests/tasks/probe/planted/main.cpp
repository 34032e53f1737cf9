// Stands for a runner whose package has a fault: what is fed to it says which, by what it ends in.
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

void tell(const std::string& event, const std::string& hostile, const std::string& outcome) {
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
    tell("trying", hostile, "");
    const std::string outcome = meet(hostile);
    tell("tried", hostile, outcome);
    if (outcome != "refused") return 0;
  }
  return 0;
}

}  // namespace

int main(int count, char** values) {
  const std::vector<std::string> arguments(values + 1, values + count);
#if __has_include("each.h")
  if (arguments == std::vector<std::string>{"each"}) return handoff::each(run);
#endif
  return run(arguments);
}
