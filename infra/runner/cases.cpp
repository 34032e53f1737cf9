#include "cases.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/maximum.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include "refused.h"

namespace handoff {
namespace {

// `12` before `example`, and 2 before 10.
bool comes_before(const std::string& left, const std::string& right) {
  const auto is_number = [](const std::string& text) {
    return !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
  };
  if (is_number(left) && is_number(right)) {
    return std::tuple(left.size(), left) < std::tuple(right.size(), right);
  }
  return std::tuple(!is_number(left), left) < std::tuple(!is_number(right), right);
}

// Compares the elements that are finite in `want`; the others have to be the same bits' kind.
void compare_one(const at::Tensor& got, const at::Tensor& want, const Tolerance* tolerance,
                 Comparison& found) {
  if (same_bytes(got, want)) return;
  found.identical = false;
  if (got.scalar_type() != want.scalar_type() || got.sizes() != want.sizes()) {
    found.within = false;
    found.max_abs = std::numeric_limits<double>::infinity();
    return;
  }
  const at::Tensor a = got.cpu().to(at::kDouble);
  const at::Tensor b = want.cpu().to(at::kDouble);
  const at::Tensor finite = at::isfinite(b);
  const at::Tensor other = finite.logical_not();
  const at::Tensor a_other = a.masked_select(other);
  const at::Tensor b_other = b.masked_select(other);
  const bool same_kind =
      a_other.eq(b_other).logical_or(a_other.isnan().logical_and(b_other.isnan())).all().item<bool>();
  const at::Tensor b_finite = b.masked_select(finite);
  const at::Tensor difference = at::abs(a.masked_select(finite) - b_finite);
  if (difference.numel() > 0) {
    const double largest = difference.max().item<double>();  // NaN where there is one
    found.max_abs = std::isnan(largest) ? std::numeric_limits<double>::infinity()
                                        : std::max(found.max_abs, largest);
  }
  if (tolerance == nullptr || !same_kind) {
    found.within = false;
    return;
  }
  if (difference.numel() == 0) return;
  const at::Tensor rms = b_finite.square().mean().sqrt();
  const at::Tensor bound = at::maximum(at::abs(b_finite), rms) * tolerance->rtol + tolerance->atol;
  found.within = found.within && difference.le(bound).all().item<bool>();
}

}  // namespace

std::vector<Case> read_cases(const std::string& path, const Signature& signature) {
  const std::map<std::string, at::Tensor> tensors = read_tensors(path);
  std::vector<std::string> names;
  for (const auto& [key, tensor] : tensors) {
    const std::string name = key.substr(0, key.find('/'));
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  std::sort(names.begin(), names.end(), comes_before);
  std::vector<Case> cases;
  for (const std::string& name : names) {
    Case read{name, {}, {}};
    for (const TensorSpec& spec : signature.inputs) {
      const auto found = tensors.find(name + "/inputs/" + spec.name);
      if (found == tensors.end()) {
        throw Refused(path + " lacks an input", name + "/inputs/" + spec.name, "nothing",
                      "Write every input of the signature into it");
      }
      read.inputs.push_back(found->second);
    }
    for (std::size_t place = 0;; ++place) {
      const auto found = tensors.find(name + "/outputs/" + std::to_string(place));
      if (found == tensors.end()) break;
      read.outputs.push_back(found->second);
    }
    cases.push_back(std::move(read));
  }
  if (cases.empty()) throw Refused(path + " holds no case", "one or more", "none", "Write one");
  return cases;
}

Tensors copies(const Tensors& inputs, const at::Device& device) {
  Tensors copied;
  for (const at::Tensor& tensor : inputs) {
    copied.push_back(tensor.to(device, tensor.scalar_type(), /*non_blocking=*/false, /*copy=*/true));
  }
  return copied;
}

Comparison compare(const Tensors& got, const Tensors& want, const Tolerances& tolerances) {
  Comparison found;
  if (got.size() != want.size()) {
    return {false, false, std::numeric_limits<double>::infinity()};
  }
  for (std::size_t place = 0; place < got.size(); ++place) {
    const auto tolerance = tolerances.find(name_of(want[place].scalar_type()));
    compare_one(got[place], want[place],
                tolerance == tolerances.end() ? nullptr : &tolerance->second, found);
  }
  return found;
}

}  // namespace handoff
