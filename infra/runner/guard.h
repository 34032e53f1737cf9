// Checks a call's inputs against the signature, before anything of the package reads them.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "release.h"
#include "tensors.h"

namespace handoff {

// A checked entry: everything that it goes by is worked out once.
class Guard {
 public:
  // With `values`, whole numbers are also compared with the declared range (an embedding's ids),
  // which is a pass over the tensor.
  Guard(const Signature& signature, const at::Device& device, bool values);

  // Throws `Refused` for a wrong number of inputs, and for one of another device, dtype, rank,
  // size or value than declared, or with gaps in memory.
  void check(const Tensors& inputs) const;

 private:
  struct Input {
    TensorSpec spec;
    at::ScalarType dtype;
    bool checks_values;
  };
  void check_sizes(const Input& input, const at::Tensor& tensor,
                   std::vector<std::int64_t>& sizes) const;
  void check_values(const Input& input, const at::Tensor& tensor) const;

  std::vector<Input> inputs_;
  std::vector<Dimension> dimensions_;
  at::Device device_;
};

}  // namespace handoff
