#include "release.h"

#include <dlfcn.h>
#include <gnu/libc-version.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <torch/version.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <optional>
#include <set>
#include <sstream>
#include <utility>

#include "refused.h"
#include "sealed.h"

namespace handoff {
namespace {

constexpr std::int64_t kSchema = 1;
constexpr std::size_t kManifestLimit = 64 << 20;

std::string base_version(const std::string& version) { return version.substr(0, version.find('+')); }

TensorSpec read_spec(const Json& record, const std::vector<Dimension>& dimensions) {
  TensorSpec spec;
  spec.name = record.at("name").string();
  spec.dtype = record.at("dtype").string();
  for (const Json& written : record.at("shape").items()) {
    Axis axis;
    if (written.kind() == Json::Kind::number) {
      axis.size = written.integer();
    } else {
      const auto found = std::find_if(
          dimensions.begin(), dimensions.end(),
          [&](const Dimension& dimension) { return dimension.name == written.string(); });
      if (found == dimensions.end()) {
        throw Refused("a dimension of " + spec.name + " has no range", written.string(), "nothing",
                      "Pull the release again");
      }
      axis.dimension = static_cast<int>(found - dimensions.begin());
    }
    spec.shape.push_back(axis);
  }
  if (record.has("low") && !record.at("low").is_null()) spec.low = record.at("low").number();
  if (record.has("high") && !record.at("high").is_null()) spec.high = record.at("high").number();
  return spec;
}

Signature read_signature(const Json& record) {
  Signature signature;
  const Json& dimensions = record.at("dimensions");
  for (const std::string& name : dimensions.names()) {
    const Json& range = dimensions.at(name);
    const std::int64_t step = range.has("multiple_of") ? range.at("multiple_of").integer() : 1;
    if (step < 1) {
      throw Refused("the sizes of " + name + " can't be read", "a multiple_of of 1 or more",
                    std::to_string(step), "Pull the version again");
    }
    signature.dimensions.push_back(
        {name, range.at("min").integer(), range.at("max").integer(), step});
  }
  for (const Json& spec : record.at("inputs").items()) {
    signature.inputs.push_back(read_spec(spec, signature.dimensions));
  }
  for (const Json& spec : record.at("outputs").items()) {
    signature.outputs.push_back(read_spec(spec, signature.dimensions));
  }
  return signature;
}

// The numbers of `2.34`; none of nothing. Throws `Refused` for what isn't numbers and dots.
std::vector<int> parse_version(const std::string& version) {
  std::vector<int> numbers;
  std::istringstream parts(version);
  for (std::string part; std::getline(parts, part, '.');) {
    const bool is_number =
        !part.empty() && part.size() < 7 && part.find_first_not_of("0123456789") == part.npos;
    if (!is_number) {
      throw Refused("the release record can't be read", "a version like 2.34", version,
                    "Pull the release again");
    }
    numbers.push_back(std::stoi(part));
  }
  return numbers;
}

std::vector<std::int64_t> read_integers(const Json& list) {
  std::vector<std::int64_t> found;
  for (const Json& one : list.items()) found.push_back(one.integer());
  return found;
}

Target read_target(const Json& record) {
  Target target;
  target.slug = record.at("slug").string();
  for (const Json& file : record.at("files").items()) {
    target.files.push_back({file.at("path").string(), file.at("digest").string(),
                            file.at("size_bytes").integer()});
  }
  const Json& fit = record.at("fit");
  for (const Json& flag : fit.at("cpu_flags").items()) target.cpu_flags.push_back(flag.string());
  target.torches = {base_version(fit.at("torch").string())};
  if (fit.has("also")) {
    for (const Json& version : fit.at("also").items()) target.torches.push_back(version.string());
  }
  target.machine = fit.at("machine").string();
  if (fit.has("gpu_capability")) target.gpu_capability = fit.at("gpu_capability").integer();
  if (fit.has("gpu_also")) target.gpu_also = read_integers(fit.at("gpu_also"));
  if (fit.has("gpu_unverified")) target.gpu_unverified = read_integers(fit.at("gpu_unverified"));
  if (fit.has("glibc")) target.glibc = fit.at("glibc").string();
  if (fit.has("cuda")) target.cuda = fit.at("cuda").string();
  parse_version(target.glibc);
  parse_version(target.cuda);
  return target;
}

std::set<std::string> host_cpu_flags() {
  std::ifstream stream("/proc/cpuinfo");
  std::string line;
  while (std::getline(stream, line)) {
    // Linux calls them so on x86, and by the other name on ARM.
    if (line.rfind("flags", 0) == 0 || line.rfind("Features", 0) == 0) {
      std::istringstream words(line.substr(std::min(line.find(':'), line.size() - 1) + 1));
      return {std::istream_iterator<std::string>(words), std::istream_iterator<std::string>()};
    }
  }
  return {};
}

// The compute capability of each NVIDIA GPU here, asked of the driver; none without one.
std::vector<std::int64_t> host_gpu_capabilities() {
  using Init = int (*)(unsigned);
  using Count = int (*)(int*);
  using Attribute = int (*)(int*, int, int);
  void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  if (driver == nullptr) return {};
  const auto init = reinterpret_cast<Init>(dlsym(driver, "cuInit"));
  const auto count = reinterpret_cast<Count>(dlsym(driver, "cuDeviceGetCount"));
  const auto attribute = reinterpret_cast<Attribute>(dlsym(driver, "cuDeviceGetAttribute"));
  int devices = 0;
  if (!init || !count || !attribute || init(0) != 0 || count(&devices) != 0) return {};
  std::vector<std::int64_t> found;
  for (int device = 0; device < devices; ++device) {
    int major = 0;
    int minor = 0;
    attribute(&major, 75, device);  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, and _MINOR
    attribute(&minor, 76, device);
    found.push_back(major * 10 + minor);
  }
  return found;
}

// For which GPU the machine code is that one of capability `here` runs: the nearest of its major
// version that isn't later; 0 for none.
std::int64_t serving(const Target& target, std::int64_t here) {
  std::vector<std::int64_t> members = {target.gpu_capability};
  members.insert(members.end(), target.gpu_also.begin(), target.gpu_also.end());
  members.insert(members.end(), target.gpu_unverified.begin(), target.gpu_unverified.end());
  std::int64_t nearest = 0;
  for (const std::int64_t member : members) {
    if (here / 10 == member / 10 && here >= member) nearest = std::max(nearest, member);
  }
  return nearest;
}

std::string capability(std::int64_t number) {
  return std::to_string(number / 10) + "." + std::to_string(number % 10);
}

// Why no GPU here is one that the package is for; empty where one is.
std::string misfit_of_gpu(const Target& target) {
  if (target.gpu_capability <= 0) return "";
  std::vector<std::int64_t> wanted = {target.gpu_capability};
  wanted.insert(wanted.end(), target.gpu_also.begin(), target.gpu_also.end());
  // Of several here, any may be the one that it is loaded on.
  bool is_run = false;
  bool is_untried = false;
  for (const std::int64_t here : host_gpu_capabilities()) {
    const std::int64_t ran = serving(target, here);
    const bool is_wanted = std::find(wanted.begin(), wanted.end(), ran) != wanted.end();
    is_run = is_run || is_wanted;
    is_untried = is_untried || (ran != 0 && !is_wanted);
  }
  if (is_run && !is_untried) return "";
  std::string needed;
  for (const std::int64_t one : wanted) needed += (needed.empty() ? "" : " or ") + capability(one);
  return "it needs an NVIDIA GPU of compute capability " + needed + ", which is not here" +
         (is_untried ? "; no GPU has run the machine code in it for the one that is" : "");
}

// How near it is to the GPUs here: of packages for GPUs that fit, the largest is best.
std::pair<std::int64_t, std::int64_t> nearness(const Target& target) {
  std::int64_t nearest = 0;
  for (const std::int64_t here : host_gpu_capabilities()) {
    nearest = std::max(nearest, serving(target, here));
  }
  const auto further = target.gpu_also.size() + target.gpu_unverified.size();
  return {nearest, -static_cast<std::int64_t>(further)};
}

// Of two that fit, whether the one is to be preferred to the other, which comes before it.
bool is_better(const Target& one, const Target& other) {
  if (one.cpu_flags.size() != other.cpu_flags.size()) {
    return one.cpu_flags.size() > other.cpu_flags.size();
  }
  const bool both = one.gpu_capability > 0 && other.gpu_capability > 0;
  return both && nearness(one) > nearness(other);
}

// The newest CUDA that the driver here is for, 13000 for 13.0; 0 without a driver.
int host_cuda() {
  using Version = int (*)(int*);
  void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  if (driver == nullptr) return 0;
  const auto ask = reinterpret_cast<Version>(dlsym(driver, "cuDriverGetVersion"));
  int version = 0;
  return ask && ask(&version) == 0 ? version : 0;
}

// CUDA Toolkit release notes, "CUDA Toolkit and Minimum Required Driver Version for CUDA Minor
// Version Compatibility"; artifacts/machine/gpu.py has it, too.
std::string driver_for(int major) {
  switch (major) {
    case 11: return "an NVIDIA driver 450.80.02 or newer";
    case 12: return "an NVIDIA driver 525.60.13 or newer";
    case 13: return "an NVIDIA driver 580 or newer";
    default: return "an NVIDIA driver for CUDA " + std::to_string(major);
  }
}

// What the C library or the driver here is too old for; empty where nothing is.
std::string misfit_of_libraries(const Target& target) {
  std::string here = gnu_get_libc_version();
  here.resize(std::min(here.find_first_not_of("0123456789."), here.size()));
  if (parse_version(here) < parse_version(target.glibc)) {
    return "it needs glibc " + target.glibc + " or newer, and this is " + here;
  }
  if (target.cuda.empty()) return "";
  const int major = parse_version(target.cuda).front();
  const int cuda = host_cuda();
  if (cuda / 1000 >= major) return "";
  const std::string found =
      cuda == 0 ? "none" : std::to_string(cuda / 1000) + "." + std::to_string(cuda % 1000 / 10);
  return "it needs " + driver_for(major) + " (it was built with CUDA " + target.cuda +
         "); the driver here is for CUDA " + found;
}

bool is_there(const std::string& folder, const Target& target) {
  struct stat status {};
  return stat((folder + "/" + target.slug).c_str(), &status) == 0 && S_ISDIR(status.st_mode);
}

}  // namespace

Release read_release(const std::string& folder, const Trust& trust) {
  Claim claim;
  if (!trust.without_signature) claim = read_claim(folder, trust);
  const std::optional<std::string> text = read_record(folder + "/manifest.json", kManifestLimit);
  if (!text) {
    throw Refused(folder + " is not a pulled release", "a folder with a manifest.json", "none",
                  "Pull one with 'handoff pull NAME@ALIAS --to FOLDER'");
  }
  if (!trust.without_signature) match_manifest(claim, *text);
  const Json manifest = Json::parse(*text);
  if (manifest.at("schema").integer() != kSchema) {
    throw Refused("the release record can't be read", "a manifest of schema 1",
                  "schema " + std::to_string(manifest.at("schema").integer()),
                  "Use the runner of the Handoff that wrote it");
  }
  if (!trust.without_signature) require_same_files(claim, manifest);
  Release release;
  release.folder = folder;
  release.version = claim.version;
  release.model = manifest.at("model").string();
  release.signature = read_signature(manifest.at("signature"));
  for (const Json& record : manifest.at("targets").items()) {
    if (!record.at("accepted").boolean() || record.at("fit").is_null()) continue;
    Target target = read_target(record);
    if (is_there(folder, target)) release.targets.push_back(std::move(target));
  }
  return release;
}

std::string misfit(const Target& target) {
  struct utsname machine {};
  uname(&machine);
  if (target.machine != machine.machine) {
    return "it needs a " + target.machine + " processor, and this is " + machine.machine;
  }
  const std::set<std::string> flags = host_cpu_flags();
  std::string lacking;
  for (const std::string& flag : target.cpu_flags) {
    if (flags.count(flag) == 0) lacking += (lacking.empty() ? "" : ", ") + flag;
  }
  if (!lacking.empty()) return "it needs a processor with " + lacking + ", which this one lacks";
  const std::string no_gpu = misfit_of_gpu(target);
  if (!no_gpu.empty()) return no_gpu;
  const std::string too_old = misfit_of_libraries(target);
  if (!too_old.empty()) return too_old;
  const auto& torches = target.torches;
  if (std::find(torches.begin(), torches.end(), base_version(TORCH_VERSION)) == torches.end()) {
    std::string known;
    for (const std::string& version : torches) known += (known.empty() ? "" : " or ") + version;
    return "it needs torch " + known + ", and this runner was built with " + TORCH_VERSION;
  }
  return "";
}

const Target& choose_target(const Release& release, const std::string& slug) {
  const Target* best = nullptr;
  std::string reasons;
  for (const Target& target : release.targets) {
    if (slug != "auto" && slug != target.slug) continue;
    const std::string reason = misfit(target);
    if (!reason.empty()) {
      reasons += (reasons.empty() ? "" : "; ") + target.slug + ": " + reason;
    } else if (best == nullptr || is_better(target, *best)) {
      best = &target;
    }
  }
  if (best != nullptr) return *best;
  throw Refused("nothing in this release of " + release.model + " runs here",
                slug == "auto" ? "a package that fits this machine" : "a package for " + slug,
                reasons.empty() ? "none in the folder" : reasons,
                "Pull the release on the machine that it is for, with --target auto");
}

const PackageFile& file_of(const Target& target, const std::string& name) {
  for (const PackageFile& file : target.files) {
    if (file.path == target.slug + "/" + name) return file;
  }
  throw Refused("the release holds no " + name + " for " + target.slug, "model.so or model.pt2",
                name, "Name one of these");
}

}  // namespace handoff
