// What a serving program uses: a released model, opened after its checks and called with checks.
//
//   handoff::Trust trust;
//   trust.keys = {"team.pub"};
//   handoff::Model model(handoff::read_release("pulled", trust), {});
//   std::vector<at::Tensor> outputs = model.call({ids, features});
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/csrc/inductor/aoti_runner/model_container_runner.h>

#include <memory>
#include <optional>
#include <string>

#include "guard.h"
#include "release.h"
#include "tensors.h"

namespace handoff {

struct OpenOptions {
  std::string target = "auto";    // or a slug: `cpu-avx2`
  std::string file = "model.so";  // or `model.pt2`, which is unpacked into TMPDIR first
  std::size_t runners = 1;        // calls that run at the same time; further ones wait
  bool checked = true;            // inputs are checked before the package sees them
  bool values = true;             // whole numbers are compared with their declared range, too
};

class Model {
 public:
  // Checks the fit, then copies the file into sealed memory while it is hashed, and opens that copy:
  // who changes the file afterwards changes nothing. Throws `Refused` before anything of it ran.
  Model(const Release& release, const OpenOptions& options);

  // Runs the model on inputs in the signature's order, on its device. Any thread may call, at the
  // same time as others. Throws `Refused` for inputs that aren't what was declared, and
  // `c10::Error` or `std::runtime_error` for what the package itself refuses; the model can be
  // called again after either.
  Tensors call(const Tensors& inputs);

  const at::Device& device() const { return device_; }
  const Target& target() const { return target_; }
  double check_s() const { return check_s_; }  // seconds that the file's check and copy took
  double open_s() const { return open_s_; }    // seconds that opening it took then

 private:
  Target target_;
  at::Device device_;
  double check_s_ = 0.0;
  double open_s_ = 0.0;
  std::optional<Guard> guard_;
  std::unique_ptr<torch::inductor::AOTIModelContainerRunner> library_;
  std::unique_ptr<torch::inductor::AOTIModelPackageLoader> package_;
};

}  // namespace handoff
