// `bench`: how long a package takes to open and to run, and whether its memory grows.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <fstream>
#include <limits>
#include <sstream>
#include <thread>
#include <utility>

#include "commands.h"
#include "guard.h"
#include "json.h"
#include "refused.h"

namespace handoff {
namespace {

using Clock = std::chrono::steady_clock;

// How often memory is looked at: a look takes as long as a few of the quickest calls.
constexpr std::size_t kLookEvery = 8;

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

// Seconds that the guard adds to each call with these inputs.
double guard_s(const Guard& guard, const Tensors& inputs) {
  constexpr int kChecks = 1000;
  guard.check(inputs);
  const auto began = Clock::now();
  for (int i = 0; i < kChecks; ++i) guard.check(inputs);
  return seconds_since(began) / kChecks;
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

// Memory over many calls. An allocator hands memory back and takes it again, so a single look says
// little: what leaks holds more in the whole last quarter than it ever did in the first half.
std::string growth_line(const Options& options, Model& model, const Case& timed) {
  const Tensors inputs = copies(timed.inputs, model.device());
  const auto began = Clock::now();
  // A tenth of the time is for the allocator to reach the size that it keeps.
  const std::size_t warm_up = options.calls / 10;
  for (std::size_t i = 0; i < warm_up && seconds_since(began) < options.growth_seconds / 10; ++i) {
    call_once(model, inputs);
  }
  const std::int64_t at_first = resident_bytes();
  std::size_t made = 0;
  // Calls up to a share of them all, or of the time; returns the least and the most memory held.
  const auto watch = [&](double share) {
    const auto wanted = static_cast<std::size_t>(share * static_cast<double>(options.calls));
    const double limit = options.growth_seconds * (0.1 + 0.9 * share);
    std::int64_t least = std::numeric_limits<std::int64_t>::max(), most = 0;
    for (bool first = true; first || (made < wanted && seconds_since(began) < limit);
         first = false) {
      call_once(model, inputs);
      if (++made % kLookEvery == 0 || first) {
        const std::int64_t held = resident_bytes();
        least = std::min(least, held);
        most = std::max(most, held);
      }
    }
    return std::make_pair(least, most);
  };
  const std::int64_t first_half = watch(0.5).second;
  watch(0.75);
  const std::int64_t last_quarter = watch(1.0).first;
  std::ostringstream line;
  line << "{\"event\":\"growth\",\"calls\":" << made << ",\"seconds\":" << seconds_since(began)
       << ",\"first_half_bytes\":" << first_half - at_first
       << ",\"second_half_bytes\":" << last_quarter - first_half
       << ",\"resident_bytes\":" << resident_bytes() << "}";
  return line.str();
}

}  // namespace

int bench(const Options& options) {
  const Release release = read_release(options.folder, options.trust);
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
    const Guard guard(release.signature, model.device(), options.open.values);
    std::ostringstream line;
    line << "{\"event\":\"opened\",\"target\":" << quote(model.target().slug)
         << ",\"file\":" << quote(options.open.file) << ",\"check_s\":" << model.check_s()
         << ",\"open_s\":" << model.open_s() << ",\"first_call_s\":" << first_call
         << ",\"guard_s\":" << (options.open.checked ? guard_s(guard, inputs) : 0.0)
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
