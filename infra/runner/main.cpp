// handoff-runner: opens a pulled release without Python; README.md says what for.
#include <cstdlib>
#include <exception>
#include <iostream>
#include <sstream>

#include "commands.h"
#include "each.h"
#include "json.h"
#include "refused.h"

namespace {

constexpr char kUsage[] =
    R"(handoff-runner: run a pulled release without Python

  handoff-runner call   RELEASE INPUTS OUTPUTS   write what the model gives for every case
  handoff-runner replay RELEASE CASES            compare it with the outputs in the file
  handoff-runner bench  RELEASE CASES            load time, calls a second, memory
  handoff-runner trial  RELEASE CASES --hostile WHAT ...   inputs that must be refused
  handoff-runner answer RELEASE                  make the calls that lines of JSON ask for
  handoff-runner each SOCKET                     run what is asked for by a descriptor, loaded once

RELEASE is a folder that 'handoff pull' wrote; the files are safetensors files with tensors named
CASE/inputs/NAME and CASE/outputs/PLACE, as the release's own examples.safetensors.

  --key FILE           a public key (PEM) of which one has to have signed it; may be repeated
  --name MODEL         the model and the
  --version N          version that it has to be: another release is validly signed, too
  --unsigned           take it without a signature, as the pipeline does before there is one
  --target SLUG        the package to open (auto: the best one that fits this machine)
  --file NAME          model.so or model.pt2 (model.so)
  --threads 1,2,8      how many threads call at once, each with a runner of its own (1)
  --intra-op N         threads of one call (libtorch's default)
  --repeat N           calls of each case in each thread of a replay (3)
  --tolerance DTYPE=ATOL,RTOL   |got - want| <= ATOL + RTOL * max(|want|, RMS(want)) will do
  --case N             the case to time or to make hostile (0)
  --seconds S          how long calls are timed (1)
  --calls N            how many are made while memory is watched (10000), and
  --growth-seconds S   for how long at most (20)
  --unchecked          leave the checks of the inputs to the package
  --no-values          don't compare whole numbers with their declared range

Exit status: 0 done; 1 refused, with the reason; 3 other outputs; 64 another command line.
)";

using handoff::Options;
using handoff::Refused;
using handoff::Trust;

[[noreturn]] void refuse_usage(const std::string& what, const std::string& got) {
  throw std::invalid_argument(what + ": " + got + "\n\n" + kUsage);
}

double number_of(const std::string& option, const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0' || !(value >= 0) || value > 1e15) {
    refuse_usage(option + " needs a number of 0 or more", text);
  }
  return value;
}

std::size_t count_of(const std::string& option, const std::string& text) {
  const double value = number_of(option, text);
  const auto whole = static_cast<std::size_t>(value);
  if (static_cast<double>(whole) != value) refuse_usage(option + " needs a whole number", text);
  return whole;
}

std::vector<std::size_t> threads_of(const std::string& text) {
  std::vector<std::size_t> threads;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    threads.push_back(count_of("--threads", part));
    if (threads.back() < 1 || threads.back() > 1024) refuse_usage("--threads needs 1 to 1024", part);
  }
  if (threads.empty()) refuse_usage("--threads needs a number", text);
  return threads;
}

void add_tolerance(const std::string& text, handoff::Tolerances& tolerances) {
  const std::size_t equals = text.find('=');
  const std::size_t comma = text.find(',');
  if (equals == std::string::npos || comma == std::string::npos || comma < equals) {
    refuse_usage("--tolerance needs DTYPE=ATOL,RTOL", text);
  }
  tolerances[text.substr(0, equals)] = {
      number_of("--tolerance", text.substr(equals + 1, comma - equals - 1)),
      number_of("--tolerance", text.substr(comma + 1))};
}

void set_option(const std::string& name, const std::string& value, Options& options) {
  if (name == "--key") {
    options.trust.keys.push_back(value);
  } else if (name == "--name") {
    options.trust.name = value;
  } else if (name == "--version") {
    options.trust.version = static_cast<std::int64_t>(count_of(name, value));
  } else if (name == "--target") {
    options.open.target = value;
  } else if (name == "--file") {
    options.open.file = value;
  } else if (name == "--threads") {
    options.threads = threads_of(value);
  } else if (name == "--intra-op") {
    options.intra_op = static_cast<int>(count_of(name, value));
  } else if (name == "--repeat") {
    options.repeat = count_of(name, value);
  } else if (name == "--tolerance") {
    add_tolerance(value, options.tolerances);
  } else if (name == "--case") {
    options.chosen = count_of(name, value);
  } else if (name == "--seconds") {
    options.seconds = number_of(name, value);
  } else if (name == "--calls") {
    options.calls = count_of(name, value);
  } else if (name == "--growth-seconds") {
    options.growth_seconds = number_of(name, value);
  } else if (name == "--hostile") {
    options.hostile.push_back(value);
  } else {
    refuse_usage("there is no such option", name);
  }
}

Options parse(const std::vector<std::string>& arguments) {
  Options options;
  std::vector<std::string> places;
  for (std::size_t place = 0; place < arguments.size(); ++place) {
    const std::string& argument = arguments[place];
    if (argument == "--unsigned") {
      options.trust.without_signature = true;
    } else if (argument == "--unchecked") {
      options.open.checked = false;
    } else if (argument == "--no-values") {
      options.open.values = false;
    } else if (argument.rfind("--", 0) != 0) {
      places.push_back(argument);
    } else if (place + 1 < arguments.size()) {
      set_option(argument, arguments[++place], options);
    } else {
      refuse_usage("this option needs a value", argument);
    }
  }
  if (places.empty()) refuse_usage("expected a command", "none");
  const Trust& trust = options.trust;
  if (trust.without_signature && (!trust.keys.empty() || trust.name || trust.version)) {
    refuse_usage("--unsigned goes with neither --key, --name nor --version", "both");
  }
  options.command = places[0];
  const std::size_t needed = options.command == "call" ? 4 : options.command == "answer" ? 2 : 3;
  if (places.size() != needed) {
    refuse_usage("expected " + std::to_string(needed - 1) + " paths after " + options.command,
                 std::to_string(places.size() - 1));
  }
  options.folder = places[1];
  if (needed > 2) options.inputs = places[2];
  if (needed > 3) options.outputs = places[3];
  return options;
}

int run(const Options& options) {
  if (options.command == "call") return handoff::call(options);
  if (options.command == "replay") return handoff::replay(options);
  if (options.command == "bench") return handoff::bench(options);
  if (options.command == "trial") return handoff::trial(options);
  if (options.command == "answer") return handoff::answer(options);
  refuse_usage("there is no such command", options.command);
}

int carry_out(const std::vector<std::string>& arguments) {
  try {
    if (arguments.size() == 2 && arguments[0] == "each") {
      return handoff::each(static_cast<int>(count_of("each", arguments[1])), carry_out);
    }
    return run(parse(arguments));
  } catch (const std::invalid_argument& error) {
    std::cerr << error.what();
    return 64;
  } catch (const std::exception& error) {
    const std::string text = error.what();
    std::cerr << "refused: " << text.substr(0, text.find('\n')) << std::endl;
    return 1;
  }
}

}  // namespace

int main(int count, char** values) {
  return carry_out(std::vector<std::string>(values + 1, values + count));
}
