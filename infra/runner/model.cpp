#include "model.h"

#include <ATen/ops/empty.h>
#include <dlfcn.h>
#include <sys/syscall.h>
#include <torch/csrc/inductor/aoti_runner/model_container_runner_cpu.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "kernels.h"
#include "refused.h"
#include "sealed.h"

namespace handoff {
namespace {

using Clock = std::chrono::steady_clock;

// Loads the part of libtorch that registers the GPU; a program for the CPU does without, and this
// one needs no CUDA headers to be built.
void load_gpu_support() {
  if (dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    const char* reason = dlerror();
    throw Refused("this libtorch has no support for a GPU", "libtorch_cuda.so",
                  reason == nullptr ? "none" : reason, "Build the runner with a libtorch for CUDA");
  }
}

// Has malloc keep what calls free, up to 60 MiB in each arena, for the next call, instead of giving
// it back to the system page by page. glibc raises its threshold to twice the size of a mapped block
// that is freed (mallopt(3)); see artifacts/serve/loader.py, which does the same.
void keep_freed_memory() { at::empty({30 << 20}, at::kByte); }

// Asks Linux for AMX's tile registers where the package computes with them: it kills a process that
// uses them without having asked (arch_prctl(2)); see artifacts/serve/loader.py.
void ask_for_tiles(const Target& target) {
#if defined(__x86_64__)
  const auto& flags = target.cpu_flags;
  if (std::find(flags.begin(), flags.end(), "amx_tile") == flags.end()) return;
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM of Linux's asm/prctl.h
  constexpr long kTileData = 18;               // the state's number in XCR0
  if (syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0) return;
  throw Refused("the package for " + target.slug + " can't be opened in this process",
                "a kernel that lets it use AMX's tiles", std::strerror(errno),
                "Allow arch_prctl(2) in the container's seccomp profile, or name another target");
#else
  static_cast<void>(target);
#endif
}

std::unique_ptr<torch::inductor::AOTIModelContainerRunner> open_library(const std::string& path,
                                                                        const std::string& kernels,
                                                                        const at::Device& device,
                                                                        std::size_t runners) {
  if (device.is_cpu()) {
    return std::make_unique<torch::inductor::AOTIModelContainerRunnerCpu>(path, runners);
  }
  // libtorch_cuda registers AOTIModelContainerRunnerCuda under this name.
  auto& registered = torch::inductor::getAOTIModelRunnerRegistry();
  const auto found = registered.find("cuda");
  if (found == registered.end()) {
    throw Refused("this libtorch runs no packages on a GPU", "a runner for cuda", "none",
                  "Build the runner with a libtorch for CUDA");
  }
  return found->second(path, runners, device.str(), kernels, /*run_single_threaded=*/false);
}

}  // namespace

Model::Model(const Release& release, const OpenOptions& options)
    : target_(choose_target(release, options.target)),
      device_(target_.gpu_capability > 0 ? at::Device(at::kCUDA, 0) : at::Device(at::kCPU)) {
  const auto began = Clock::now();
  const PackageFile& file = file_of(target_, options.file);
  std::optional<SealedFile> archive;
  std::optional<SealedFile> kernels;
  std::optional<SideBySide> links;
  std::string library;
  if (options.file == "model.pt2") {
    archive.emplace(release.folder, file);
    require_known_members(*archive, file.path);
  } else {
    // A GPU's kernels are read from files beside the library, by their path and after this check.
    if (device_.is_cuda()) {
      for (const PackageFile& kernel : target_.files) check_file(release.folder, kernel);
    }
    library = held_copy(release.folder, file);
    if (const PackageFile* named = kernels_of(target_)) {
      kernels.emplace(release.folder, *named);
      require_known_operators(*kernels, named->path);
      library = links.emplace(library, *kernels).library();
    }
  }
  const auto checked = Clock::now();
  if (device_.is_cuda()) load_gpu_support();
  if (options.checked) guard_.emplace(release.signature, device_, options.values);
  keep_freed_memory();
  ask_for_tiles(target_);
  if (archive) {
    package_ = std::make_unique<torch::inductor::AOTIModelPackageLoader>(
        archive->path(), "model", /*run_single_threaded=*/false, options.runners);
  } else {
    library_ = open_library(library, release.folder + "/" + target_.slug, device_, options.runners);
  }
  check_s_ = std::chrono::duration<double>(checked - began).count();
  open_s_ = std::chrono::duration<double>(Clock::now() - checked).count();
}

Tensors Model::call(const Tensors& inputs) {
  if (guard_) guard_->check(inputs);
  return library_ ? library_->run(inputs) : package_->run(inputs);
}

}  // namespace handoff
