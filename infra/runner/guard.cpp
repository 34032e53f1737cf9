#include "guard.h"

#include <ATen/ops/aminmax.h>

#include <sstream>

#include "refused.h"

namespace handoff {
namespace {

constexpr char kRemedy[] = "Give the model what its signature declares (manifest.json)";

std::string text_of(at::IntArrayRef sizes) {
  std::ostringstream text;
  text << sizes;
  return text.str();
}

std::string text_of(const TensorSpec& spec, const std::vector<Dimension>& dimensions) {
  std::string text;
  for (const Axis& axis : spec.shape) {
    text += text.empty() ? "" : ", ";
    text += axis.dimension < 0 ? std::to_string(axis.size)
                               : dimensions[static_cast<std::size_t>(axis.dimension)].name;
  }
  return "[" + text + "]";
}

[[noreturn]] void refuse(const TensorSpec& spec, const std::string& expected,
                         const std::string& got) {
  throw Refused(spec.name + " is not what the model takes", expected, got, kRemedy);
}

}  // namespace

Guard::Guard(const Signature& signature, const at::Device& device, bool values)
    : dimensions_(signature.dimensions), device_(device) {
  for (const TensorSpec& spec : signature.inputs) {
    const at::ScalarType dtype = dtype_of(spec.dtype);
    const bool whole = at::isIntegralType(dtype, /*includeBool=*/false);
    inputs_.push_back({spec, dtype, values && whole && spec.low && spec.high});
  }
}

void Guard::check(const Tensors& inputs) const {
  if (inputs.size() != inputs_.size()) {
    throw Refused("the call has another number of inputs", std::to_string(inputs_.size()),
                  std::to_string(inputs.size()), kRemedy);
  }
  std::vector<std::int64_t> sizes(dimensions_.size(), -1);
  for (std::size_t place = 0; place < inputs.size(); ++place) {
    const Input& input = inputs_[place];
    const at::Tensor& tensor = inputs[place];
    if (!tensor.defined()) refuse(input.spec, "a tensor", "an undefined one");
    if (tensor.device().type() != device_.type()) {
      refuse(input.spec, "a tensor on " + device_.str(), "one on " + tensor.device().str());
    }
    if (tensor.scalar_type() != input.dtype) {
      refuse(input.spec, input.spec.dtype, name_of(tensor.scalar_type()));
    }
    check_sizes(input, tensor, sizes);
    if (!tensor.is_contiguous()) {
      throw Refused(input.spec.name + " is not what the model takes",
                    "a contiguous tensor: the last axis side by side in memory",
                    "strides " + text_of(tensor.strides()) + " for the shape " +
                        text_of(tensor.sizes()),
                    "Call contiguous() on it, and give the model what its signature declares "
                    "(manifest.json)");
    }
    if (input.checks_values && tensor.numel() > 0) check_values(input, tensor);
  }
}

void Guard::check_sizes(const Input& input, const at::Tensor& tensor,
                        std::vector<std::int64_t>& sizes) const {
  const at::IntArrayRef found = tensor.sizes();
  const std::vector<Axis>& declared = input.spec.shape;
  if (found.size() != declared.size()) {
    refuse(input.spec, "shape " + text_of(input.spec, dimensions_), text_of(found));
  }
  for (std::size_t axis = 0; axis < found.size(); ++axis) {
    if (declared[axis].dimension < 0) {
      if (found[axis] != declared[axis].size) {
        refuse(input.spec, "shape " + text_of(input.spec, dimensions_), text_of(found));
      }
      continue;
    }
    const auto place = static_cast<std::size_t>(declared[axis].dimension);
    const Dimension& dimension = dimensions_[place];
    const std::int64_t step = dimension.multiple_of;
    if (found[axis] < dimension.min || found[axis] > dimension.max || found[axis] % step != 0) {
      refuse(input.spec,
             dimension.name + " from " + std::to_string(dimension.min) + " to " +
                 std::to_string(dimension.max) +
                 (step > 1 ? " in steps of " + std::to_string(step) : ""),
             std::to_string(found[axis]));
    }
    if (sizes[place] >= 0 && sizes[place] != found[axis]) {
      refuse(input.spec,
             dimension.name + " = " + std::to_string(sizes[place]) + " as in another input",
             std::to_string(found[axis]));
    }
    sizes[place] = found[axis];
  }
}

void Guard::check_values(const Input& input, const at::Tensor& tensor) const {
  const auto [low, high] = at::aminmax(tensor);
  const auto smallest = low.item<std::int64_t>();
  const auto largest = high.item<std::int64_t>();
  if (static_cast<double>(smallest) < *input.spec.low ||
      static_cast<double>(largest) > *input.spec.high) {
    std::ostringstream expected;
    expected.precision(17);  // All digits of a table's last row.
    expected << "values from " << *input.spec.low << " to " << *input.spec.high;
    refuse(input.spec, expected.str(),
           std::to_string(smallest) + " to " + std::to_string(largest));
  }
}

}  // namespace handoff
