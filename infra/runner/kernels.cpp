#include "kernels.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <set>

#include "json.h"
#include "refused.h"

namespace handoff {
namespace {

constexpr char kFile[] = "model.json";

bool is_word(const std::string& text) {
  const auto plain = [](char character) {
    return (character >= 'a' && character <= 'z') || (character >= 'A' && character <= 'Z') ||
           (character >= '0' && character <= '9') || character == '_';
  };
  return !text.empty() && std::all_of(text.begin(), text.end(), plain) &&
         !(text[0] >= '0' && text[0] <= '9');
}

// Whether an operator (`aten::index.Tensor`) is libtorch's own, and opens no files.
bool is_known(const std::string& operator_name) {
  static const std::set<std::string> namespaces = {"_quantized", "aten",  "mkldnn",
                                                   "onednn",     "prims", "quantized"};
  const std::size_t colons = operator_name.find("::");
  if (colons == operator_name.npos) return false;
  const std::string rest = operator_name.substr(colons + 2);
  const std::size_t point = rest.find('.');
  const std::string name = rest.substr(0, point);
  const std::string space = operator_name.substr(0, colons);
  const bool well_formed =
      is_word(name) && (point == rest.npos || is_word("_" + rest.substr(point + 1)));
  return well_formed && (point == rest.npos || point + 1 < rest.size()) &&
         namespaces.count(space) > 0 && !(space == "aten" && name == "from_file");
}

[[noreturn]] void refuse_kernels(const std::string& what, const std::string& expected,
                         const std::string& got) {
  throw Refused(what + " calls what a package may not", expected, got,
                "Don't load it, and tell who releases: it was signed like this");
}

std::string bytes_of(const SealedFile& file, const std::string& what) {
  std::string bytes(kKernelsLimit + 1, '\0');
  std::size_t size = 0;
  while (size < bytes.size()) {
    const ssize_t count = pread(file.descriptor(), bytes.data() + size, bytes.size() - size,
                                static_cast<off_t>(size));
    if (count < 0) refuse_kernels(what, "its bytes", strerror(errno));
    if (count == 0) break;
    size += static_cast<std::size_t>(count);
  }
  if (size > kKernelsLimit) refuse_kernels(what, "at most " + std::to_string(kKernelsLimit) + " bytes", "more");
  bytes.resize(size);
  return bytes;
}

void make_link(const std::string& to, const std::string& path) {
  if (symlink(to.c_str(), path.c_str()) != 0) {
    throw Refused("a link can't be made in TMPDIR", "a folder that may be written to",
                  strerror(errno), "Set TMPDIR to one");
  }
}

}  // namespace

const PackageFile* kernels_of(const Target& target) {
  for (const PackageFile& file : target.files) {
    if (file.path == target.slug + "/" + kFile) return &file;
  }
  return nullptr;
}

void require_known_operators(const SealedFile& kernels, const std::string& what) {
  require_known_operators(bytes_of(kernels, what), what);
}

void require_known_operators(const std::string& kernels, const std::string& what) {
  const Json record = Json::parse(kernels);
  for (const Json& node : record.at("nodes").items()) {
    const std::string& target = node.at("node").at("target").string();
    if (!is_known(target)) {
      refuse_kernels(what, "operators of libtorch alone, none that opens files",
             quote(target.substr(0, 80)));
    }
  }
}

SideBySide::SideBySide(const std::string& library, const SealedFile& kernels) {
  const char* place = std::getenv("TMPDIR");
  folder_ = std::string(place == nullptr || *place == '\0' ? "/tmp" : place) + "/handoff-XXXXXX";
  if (mkdtemp(folder_.data()) == nullptr) {
    throw Refused("no folder can be made in TMPDIR", "one that may be written to", strerror(errno),
                  "Set TMPDIR to one");
  }
  // The held copy's number, because dlopen goes by the path, and folders' names might come again.
  const std::string stem = folder_ + "/model-" + library.substr(library.find_last_of('/') + 1);
  library_ = stem + ".so";
  kernels_ = stem + ".json";
  try {
    make_link(library, library_);
    make_link(kernels.path(), kernels_);
  } catch (...) {
    remove();
    throw;
  }
}

SideBySide::~SideBySide() { remove(); }

void SideBySide::remove() const {
  unlink(library_.c_str());
  unlink(kernels_.c_str());
  rmdir(folder_.c_str());
}

}  // namespace handoff
