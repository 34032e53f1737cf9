// Named tensors in files: the safetensors format, which holds no code.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

namespace handoff {

using Tensors = std::vector<at::Tensor>;

// A dtype by torch's own name (`float32`), as signatures hold it, and back.
at::ScalarType dtype_of(const std::string& name);
std::string name_of(at::ScalarType dtype);

// The tensors of a safetensors file, on the CPU. Throws `Refused` for anything else.
std::map<std::string, at::Tensor> read_tensors(const std::string& path);

// Writes tensors, from whatever device, in the order of their names.
void write_tensors(const std::string& path, const std::map<std::string, at::Tensor>& tensors);

// Whether two tensors have the same dtype, shape and bytes; NaN equals a NaN of the same bits.
bool same_bytes(const at::Tensor& left, const at::Tensor& right);

}  // namespace handoff
