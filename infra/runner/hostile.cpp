#include "hostile.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <cstdlib>
#include <new>

#include "refused.h"

namespace handoff {
namespace {

// Above this many bytes a tensor is made of zeros, whose pages take no memory until written.
constexpr std::size_t kCopiedBytes = 64 << 20;

[[noreturn]] void refuse(const std::string& description) {
  throw Refused("that describes no hostile input", "one of those in hostile.h", description,
                "Name an input of the signature and what to do with it");
}

std::int64_t number_after(const std::string& text, std::size_t place) {
  char* end = nullptr;
  const std::int64_t number = std::strtoll(text.c_str() + place, &end, 10);
  if (end == text.c_str() + place || *end != '\0') refuse(text);
  return number;
}

at::Tensor lazy_zeros(const std::vector<std::int64_t>& sizes, at::ScalarType dtype) {
  std::size_t bytes = at::elementSize(dtype);
  for (const std::int64_t size : sizes) bytes *= static_cast<std::size_t>(size);
  void* memory = std::calloc(bytes, 1);
  if (memory == nullptr) throw std::bad_alloc();
  return at::from_blob(memory, sizes, std::free, at::TensorOptions().dtype(dtype));
}

// The tensor with `size` along an axis: its own rows again and again, or none.
at::Tensor resized(const at::Tensor& tensor, std::int64_t axis, std::int64_t size) {
  if (size < 0 || axis < 0 || axis >= tensor.dim()) {
    throw Refused("that resizes nothing", "an axis of the input and a size of 0 or more",
                  "axis " + std::to_string(axis) + ", size " + std::to_string(size),
                  "Name another");
  }
  std::vector<std::int64_t> sizes = tensor.sizes().vec();
  const std::int64_t before = sizes[static_cast<std::size_t>(axis)];
  sizes[static_cast<std::size_t>(axis)] = size;
  if (before == 0) return at::zeros(sizes, tensor.options());
  const std::size_t row = tensor.nbytes() / static_cast<std::size_t>(before);
  if (row * static_cast<std::size_t>(size) > kCopiedBytes) {
    return lazy_zeros(sizes, tensor.scalar_type());
  }
  return tensor.index_select(axis, at::arange(size, at::kLong).remainder(before)).contiguous();
}

at::Tensor strided(const at::Tensor& tensor) {
  std::vector<std::int64_t> sizes = tensor.sizes().vec();
  sizes.push_back(2);
  at::Tensor wide = at::empty(sizes, tensor.options());
  at::Tensor narrow = wide.select(-1, 0);
  narrow.copy_(tensor);
  return narrow;
}

// As an image in channels-last order is, or a transposed matrix: without gaps, in another order.
at::Tensor turned(const at::Tensor& tensor) {
  return tensor.transpose(-1, -2).contiguous().transpose(-1, -2);
}

at::Tensor with_last(const at::Tensor& tensor, std::int64_t value) {
  at::Tensor changed = tensor.clone();
  changed.flatten()[-1].fill_(value);
  return changed;
}

at::Tensor changed(const at::Tensor& tensor, const std::string& how, const std::string& whole) {
  const auto is = [&how](const std::string& prefix) { return how.rfind(prefix, 0) == 0; };
  if (how == "leading-axis") return tensor.unsqueeze(0);
  if (how == "trailing-axis") return tensor.unsqueeze(-1);
  if (how == "less-axis") return tensor.select(0, 0).contiguous();
  if (how == "scalar") return tensor.flatten()[0].clone();
  if (how == "strided") return strided(tensor);
  if (how == "turned" && tensor.dim() > 1) return turned(tensor);
  if (how == "undefined") return at::Tensor();
  if (is("dtype=")) return tensor.to(dtype_of(how.substr(6)));
  if (is("last=")) return with_last(tensor, number_after(whole, whole.find("last=") + 5));
  if (is("device=")) return tensor.to(at::Device(how.substr(7)));
  const std::size_t equals = how.find('=');
  if (!is("axis") || equals == std::string::npos) refuse(whole);
  const std::string axis = how.substr(4, equals - 4);
  return resized(tensor, number_after(axis, 0), number_after(how, equals + 1));
}

}  // namespace

Tensors make_hostile(const Signature& signature, const Tensors& inputs,
                     const std::string& description) {
  Tensors hostile = inputs;
  if (description == "missing" && !hostile.empty()) {
    hostile.pop_back();
    return hostile;
  }
  if (description == "extra") {
    hostile.push_back(inputs.empty() ? at::zeros({1}) : inputs.back());
    return hostile;
  }
  bool made = false;
  const bool named = description.rfind('@', 0) == 0;
  const std::size_t border = description.find(named ? '=' : ':');
  if (border == std::string::npos) refuse(description);
  const std::string name = description.substr(named ? 1 : 0, border - (named ? 1 : 0));
  for (std::size_t place = 0; place < hostile.size(); ++place) {
    const TensorSpec& spec = signature.inputs.at(place);
    if (!named && spec.name == name) {
      hostile[place] = changed(hostile[place], description.substr(border + 1), description);
      made = true;
    }
    for (std::size_t axis = 0; named && axis < spec.shape.size(); ++axis) {
      const int dimension = spec.shape[axis].dimension;
      if (dimension < 0) continue;
      if (signature.dimensions[static_cast<std::size_t>(dimension)].name != name) continue;
      const std::int64_t size = number_after(description, border + 1);
      hostile[place] = resized(hostile[place], static_cast<std::int64_t>(axis), size);
      made = true;
    }
  }
  if (!made) refuse(description);
  return hostile;
}

}  // namespace handoff
