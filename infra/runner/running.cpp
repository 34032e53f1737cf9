// `call`, `replay` and `trial`: the commands that say whether a package gives what it should.
#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <iostream>
#include <mutex>
#include <sstream>
#include <thread>

#include "commands.h"
#include "hostile.h"
#include "json.h"
#include "refused.h"

namespace handoff {
namespace {

// The first line of an error, which is the sentence; libtorch appends the stack.
std::string first_line(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, std::min(text.find('\n'), std::size_t{400}));
}

const Case& chosen_case(const std::vector<Case>& cases, std::size_t place) {
  if (place < cases.size()) return cases[place];
  throw Refused("there is no such case", "one below " + std::to_string(cases.size()),
                std::to_string(place), "Name another with --case");
}

// What all threads of a replay found together.
struct Replayed {
  std::mutex lock;
  std::size_t calls = 0;
  std::size_t different = 0;
  std::size_t beyond = 0;
  double max_abs = 0.0;
  std::vector<std::string> cases;

  void add(const Case& replayed, const Comparison& found) {
    const std::lock_guard<std::mutex> held(lock);
    ++calls;
    if (found.identical) return;
    ++different;
    beyond += found.within ? 0 : 1;
    max_abs = std::max(max_abs, found.max_abs);
    if (std::find(cases.begin(), cases.end(), replayed.name) == cases.end()) {
      cases.push_back(replayed.name);
    }
  }
};

std::string number(double value) {
  std::ostringstream text;
  text.precision(9);
  if (value > 1e300) return "\"inf\"";
  text << value;
  return text.str();
}

void replay_with(const Options& options, const Release& release, const std::vector<Case>& cases,
                 std::size_t threads, Replayed& found) {
  OpenOptions open = options.open;
  open.runners = threads;
  Model model(release, open);
  in_threads(threads, options.intra_op, [&](std::size_t thread) {
    for (std::size_t round = 0; round < options.repeat; ++round) {
      for (std::size_t step = 0; step < cases.size(); ++step) {
        // Each thread begins with another case, so that different ones run at the same time.
        const Case& replayed = cases[(thread + step) % cases.size()];
        const Tensors got = model.call(copies(replayed.inputs, model.device()));
        found.add(replayed, compare(got, replayed.outputs, options.tolerances));
      }
    }
  });
}

}  // namespace

void print_line(const std::string& text) { std::cout << text << std::endl; }

void set_intra_op(int threads) {
  if (threads > 0) {
    at::set_num_threads(threads);
  } else {
    at::init_num_threads();
  }
}

void in_threads(std::size_t count, int intra_op, const std::function<void(std::size_t)>& body) {
  std::vector<std::thread> threads;
  std::exception_ptr error;
  std::mutex lock;
  for (std::size_t thread = 0; thread < count; ++thread) {
    threads.emplace_back([&, thread] {
      try {
        set_intra_op(intra_op);
        body(thread);
      } catch (...) {
        const std::lock_guard<std::mutex> held(lock);
        error = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (error) std::rethrow_exception(error);
}

int call(const Options& options) {
  const Release release = read_release(options.folder, options.trust);
  Model model(release, options.open);
  set_intra_op(options.intra_op);
  std::map<std::string, at::Tensor> outputs;
  const std::vector<Case> cases = read_cases(options.inputs, release.signature);
  for (const Case& given : cases) {
    const Tensors got = model.call(copies(given.inputs, model.device()));
    for (std::size_t place = 0; place < got.size(); ++place) {
      outputs[given.name + "/outputs/" + std::to_string(place)] = got[place];
    }
  }
  write_tensors(options.outputs, outputs);
  print_line("{\"event\":\"called\",\"target\":" + quote(model.target().slug) +
             ",\"cases\":" + std::to_string(cases.size()) + "}");
  return 0;
}

int replay(const Options& options) {
  const Release release = read_release(options.folder, options.trust);
  const std::vector<Case> cases = read_cases(options.inputs, release.signature);
  bool all_within = true;
  for (const std::size_t threads : options.threads) {
    Replayed found;
    replay_with(options, release, cases, threads, found);
    all_within = all_within && found.beyond == 0;
    std::ostringstream line;
    line << "{\"event\":\"replayed\",\"file\":" << quote(options.open.file)
         << ",\"threads\":" << threads << ",\"cases\":" << cases.size()
         << ",\"calls\":" << found.calls << ",\"different\":" << found.different
         << ",\"beyond_tolerance\":" << found.beyond << ",\"max_abs\":" << number(found.max_abs)
         << ",\"different_cases\":[";
    for (std::size_t place = 0; place < found.cases.size(); ++place) {
      line << (place > 0 ? "," : "") << quote(found.cases[place]);
    }
    line << "]}";
    print_line(line.str());
  }
  return all_within ? 0 : 3;
}

int trial(const Options& options) {
  const Release release = read_release(options.folder, options.trust);
  const std::vector<Case> cases = read_cases(options.inputs, release.signature);
  const Case& good = chosen_case(cases, options.chosen);
  Model model(release, options.open);
  set_intra_op(options.intra_op);
  const auto still_right = [&] {
    return compare(model.call(copies(good.inputs, model.device())), good.outputs,
                   options.tolerances).within;
  };
  if (!still_right()) {
    throw Refused("the good input isn't answered as it should be", "the golden outputs", "others",
                  "Replay the cases first");
  }
  for (const std::string& description : options.hostile) {
    print_line("{\"event\":\"trying\",\"hostile\":" + quote(description) + "}");
    std::string outcome = "answered";
    std::string message;
    const Tensors hostile = make_hostile(release.signature,
                                         copies(good.inputs, model.device()), description);
    try {
      const Tensors got = model.call(hostile);
      if (compare(got, good.outputs, {}).identical) outcome = "answered alike";
      if (!got.empty()) got[0].cpu();  // what a GPU got wrong is told when it is waited for
    } catch (const std::exception& error) {
      outcome = "refused";
      message = first_line(error);
    }
    if (outcome == "refused" && !still_right()) outcome = "harmed";
    print_line("{\"event\":\"tried\",\"hostile\":" + quote(description) + ",\"outcome\":" +
               quote(outcome) + ",\"message\":" + quote(message) + "}");
    // What was taken may have written where it shouldn't: the next one needs another process.
    if (outcome != "refused") return 0;
  }
  return 0;
}

}  // namespace handoff
