// A pulled release: what its manifest says of the model and of the package for this machine.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "json.h"
#include "signature.h"

namespace handoff {

// One axis of an input: a fixed size, or a place in `Signature::dimensions`.
struct Axis {
  std::int64_t size = -1;
  int dimension = -1;
};

struct Dimension {
  std::string name;
  std::int64_t min = 0;
  std::int64_t max = 0;
  std::int64_t multiple_of = 1;
};

// `low` and `high` are the values that were declared, both ends included.
struct TensorSpec {
  std::string name;
  std::string dtype;
  std::vector<Axis> shape;
  std::optional<double> low;
  std::optional<double> high;
};

struct Signature {
  std::vector<TensorSpec> inputs;
  std::vector<TensorSpec> outputs;
  std::vector<Dimension> dimensions;
};

struct PackageFile {
  std::string path;
  std::string digest;
  std::int64_t size_bytes = 0;
};

struct Target {
  std::string slug;
  std::vector<PackageFile> files;
  std::vector<std::string> cpu_flags;
  std::vector<std::string> torches;  // those that may load it: the one that built it first
  std::string machine;
  std::int64_t gpu_capability = 0;  // 90 for 9.0; 0: no GPU is needed
  std::vector<std::int64_t> gpu_also;        // further ones that the package is for
  std::vector<std::int64_t> gpu_unverified;  // those whose machine code in it no GPU has run
  std::string glibc;                // the oldest that loads the library, `2.34`; empty: unknown
  std::string cuda;                 // what it was built with, `13.0`; empty: none, or unknown
};

struct Release {
  std::string folder;
  std::string model;
  std::int64_t version = 0;  // as it was signed; 0 without a signature
  Signature signature;
  std::vector<Target> targets;  // those that were accepted and lie in the folder
};

// Reads a pulled folder's record after its signature, each of them once. Throws `Refused` unless a
// trusted key has signed it.
Release read_release(const std::string& folder, const Trust& trust);

// The target that `slug` names; `auto` is the one of those that fit this machine which asks most of
// its processor, and of several for GPUs is nearest to the one here. Throws `Refused`, with the
// reasons, where there is none or it doesn't fit.
const Target& choose_target(const Release& release, const std::string& slug);

// Why this machine can't run the target; empty where it can.
std::string misfit(const Target& target);

// The record of the target's file `name` (`model.so`). Throws `Refused` where it has none.
const PackageFile& file_of(const Target& target, const std::string& name);

}  // namespace handoff
