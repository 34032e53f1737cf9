// The commands of `handoff-runner`; see README.md. Each prints its results as lines of JSON.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cases.h"
#include "model.h"

namespace handoff {

// What the command line says.
struct Options {
  std::string command;
  std::string folder;                 // the pulled release
  std::string inputs;                 // a safetensors file of cases
  std::string outputs;                // where `call` writes
  Trust trust;                        // whose signature it needs
  OpenOptions open;
  std::vector<std::size_t> threads = {1};
  int intra_op = 0;                   // threads of one call; 0: libtorch's default
  std::size_t repeat = 3;             // calls of each case in each thread
  std::size_t chosen = 0;             // the case that is timed or made hostile
  double seconds = 1.0;               // how long the calls are timed for each number of threads
  std::size_t calls = 10000;          // how many are made while memory is watched, and
  double growth_seconds = 20.0;       // for how long at most
  Tolerances tolerances;
  std::vector<std::string> hostile;
};

int call(const Options& options);
int replay(const Options& options);
int bench(const Options& options);
int trial(const Options& options);
int answer(const Options& options);

// Runs `body(thread)` in that many threads at once, each with `intra_op` threads for a call, and
// throws what one of them threw.
void in_threads(std::size_t count, int intra_op, const std::function<void(std::size_t)>& body);

// Sets how many threads one call uses in the calling thread; 0 leaves libtorch's default.
void set_intra_op(int threads);

// Prints one line and hands it over at once, so that it is there if the next call crashes.
void print_line(const std::string& text);

}  // namespace handoff
