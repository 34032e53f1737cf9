// Golden cases: inputs and the outputs that they have to give, as `examples.safetensors` holds them.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "model.h"
#include "release.h"
#include "tensors.h"

namespace handoff {

struct Case {
  std::string name;
  Tensors inputs;
  Tensors outputs;  // none where the file holds inputs alone
};

// Reads `CASE/inputs/NAME` and `CASE/outputs/PLACE` from a safetensors file, in the signature's
// order; the cases in the order of their numbers.
std::vector<Case> read_cases(const std::string& path, const Signature& signature);

// Copies of the inputs on a device; copies, because a model may change its inputs in place.
Tensors copies(const Tensors& inputs, const at::Device& device);

// How far two elements may lie apart: |got - want| <= atol + rtol * max(|want|, RMS(want)).
struct Tolerance {
  double atol = 0.0;
  double rtol = 0.0;
};
using Tolerances = std::map<std::string, Tolerance>;  // by dtype

// How an answer compares with the golden outputs.
struct Comparison {
  bool identical = true;  // the same bits
  bool within = true;     // within the tolerance of the dtype; none means the same bits
  double max_abs = 0.0;
};
Comparison compare(const Tensors& got, const Tensors& want, const Tolerances& tolerances);

}  // namespace handoff
