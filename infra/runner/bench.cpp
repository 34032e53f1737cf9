// `bench`: how long a package takes to open and to run, and whether its memory grows.
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <sstream>
#include <thread>

#include "commands.h"
#include "json.h"
#include "refused.h"

namespace handoff {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point began) {
  return std::chrono::duration<double>(Clock::now() - began).count();
}

// The resident memory of this process in bytes.
std::int64_t resident_bytes() {
  std::ifstream stream("/proc/self/statm");
  std::int64_t whole = 0;
  std::int64_t resident = 0;
  stream >> whole >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

// Runs the model and waits for its outputs, which a GPU gives later.
void call_once(Model& model, const Tensors& inputs) {
  const Tensors outputs = model.call(inputs);
  if (model.device().is_cuda() && !outputs.empty()) outputs[0].cpu();
}

// Calls a second while that many threads call as fast as they can.
std::string rate_line(const Options& options, const Release& release, const Case& timed,
                      std::size_t threads) {
  OpenOptions open = options.open;
  open.runners = threads;
  Model model(release, open);
  std::atomic<std::size_t> calls{0};
  std::atomic<std::size_t> ready{0};
  std::atomic<double> longest{0.0};
  in_threads(threads, options.intra_op, [&](std::size_t) {
    const Tensors inputs = copies(timed.inputs, model.device());
    for (int warm_up = 0; warm_up < 3; ++warm_up) call_once(model, inputs);
    ++ready;
    while (ready < threads) std::this_thread::yield();
    const auto began = Clock::now();
    while (seconds_since(began) < options.seconds) {
      call_once(model, inputs);
      ++calls;
    }
    double seen = longest;
    const double took = seconds_since(began);
    while (took > seen && !longest.compare_exchange_weak(seen, took)) {
    }
  });
  std::ostringstream line;
  line << "{\"event\":\"rate\",\"threads\":" << threads << ",\"calls\":" << calls
       << ",\"seconds\":" << longest << ",\"calls_per_s\":"
       << static_cast<double>(calls) / longest << "}";
  return line.str();
}

// Memory at the beginning, the middle and the end of many calls: what grows on is a leak.
std::string growth_line(const Options& options, Model& model, const Case& timed) {
  const Tensors inputs = copies(timed.inputs, model.device());
  const auto began = Clock::now();
  // A tenth of the time is for the allocator to reach the size that it keeps.
  const std::size_t warm_up = options.calls / 10;
  for (std::size_t i = 0; i < warm_up && seconds_since(began) < options.growth_seconds / 10; ++i) {
    call_once(model, inputs);
  }
  const std::int64_t at_first = resident_bytes();
  std::int64_t middle[2] = {at_first, at_first};
  std::size_t made[2] = {0, 0};
  for (int half = 0; half < 2; ++half) {
    const double limit = options.growth_seconds * (half == 0 ? 0.55 : 1.0);
    while (made[half] < options.calls / 2 && (made[half] == 0 || seconds_since(began) < limit)) {
      call_once(model, inputs);
      ++made[half];
    }
    middle[half] = resident_bytes();
  }
  std::ostringstream line;
  line << "{\"event\":\"growth\",\"calls\":" << made[0] + made[1]
       << ",\"seconds\":" << seconds_since(began) << ",\"first_half_bytes\":"
       << middle[0] - at_first << ",\"second_half_bytes\":" << middle[1] - middle[0]
       << ",\"resident_bytes\":" << middle[1] << "}";
  return line.str();
}

}  // namespace

int bench(const Options& options) {
  const Release release = read_release(options.folder);
  const std::vector<Case> cases = read_cases(options.inputs, release.signature);
  const Case& timed = cases.at(options.chosen);
  const std::int64_t before = resident_bytes();
  {
    Model model(release, options.open);
    const std::int64_t opened = resident_bytes();
    set_intra_op(options.intra_op);
    const Tensors inputs = copies(timed.inputs, model.device());
    const auto began = Clock::now();
    call_once(model, inputs);
    const double first_call = seconds_since(began);
    std::ostringstream line;
    line << "{\"event\":\"opened\",\"target\":" << quote(model.target().slug)
         << ",\"file\":" << quote(options.open.file) << ",\"check_s\":" << model.check_s()
         << ",\"open_s\":" << model.open_s() << ",\"first_call_s\":" << first_call
         << ",\"libtorch_bytes\":" << before << ",\"opened_bytes\":" << opened - before
         << ",\"resident_bytes\":" << resident_bytes() << "}";
    print_line(line.str());
    print_line(growth_line(options, model, timed));
  }
  for (const std::size_t threads : options.threads) {
    print_line(rate_line(options, release, timed, threads));
  }
  return 0;
}

}  // namespace handoff
