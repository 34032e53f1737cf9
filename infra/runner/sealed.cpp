#include "sealed.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "refused.h"
#include "sha256.h"

namespace handoff {
namespace {

constexpr std::size_t kPiece = 1 << 20;
constexpr char kPullAgain[] = "Don't load it: pull the release again into a new folder";

// An open file, closed with the block that holds it.
struct Opened {
  int descriptor;
  struct stat status {};

  // O_NONBLOCK, so that a pipe that somebody put there is refused and not waited for.
  explicit Opened(const std::string& path)
      : descriptor(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK)) {
    if (descriptor >= 0 && fstat(descriptor, &status) != 0) status.st_mode = 0;
  }
  ~Opened() {
    if (descriptor >= 0) close(descriptor);
  }
  Opened(const Opened&) = delete;
  Opened& operator=(const Opened&) = delete;

  bool is_file() const { return descriptor >= 0 && S_ISREG(status.st_mode); }
};

std::size_t read_piece(int descriptor, std::vector<char>& piece, const std::string& what) {
  const ssize_t count = read(descriptor, piece.data(), piece.size());
  if (count < 0) throw Refused(what + " can't be read", "its bytes", strerror(errno), kPullAgain);
  return static_cast<std::size_t>(count);
}

using Use = std::function<void(std::string_view)>;

// Hands every piece of a file to `use`; the digest is known when all of them were.
void read_checked(const std::string& folder, const PackageFile& file, const Use& use) {
  const std::string what = file.path + " is not the file that was released";
  const Opened opened(folder + "/" + file.path);
  if (!opened.is_file()) throw Refused(what, "a file", "nothing, or something else", kPullAgain);
  const std::string expected = std::to_string(file.size_bytes) + " bytes";
  if (opened.status.st_size != file.size_bytes) {
    throw Refused(what, expected, std::to_string(opened.status.st_size) + " bytes", kPullAgain);
  }
  std::vector<char> piece(kPiece);
  Sha256 hash;
  std::int64_t size = 0;
  while (const std::size_t count = read_piece(opened.descriptor, piece, file.path)) {
    size += static_cast<std::int64_t>(count);
    if (size > file.size_bytes) throw Refused(what, expected, "more", kPullAgain);
    hash.add({piece.data(), count});
    use({piece.data(), count});
  }
  const std::string found = hash.finish();
  if (found != file.digest) {
    throw Refused(what, "the digest " + file.digest.substr(7, 12), found.substr(7, 12),
                  kPullAgain);
  }
}

[[noreturn]] void refuse_memory(const PackageFile& file) {
  throw Refused(file.path + " can't be copied into memory",
                "room for " + std::to_string(file.size_bytes) + " bytes", strerror(errno),
                "Raise this process's limits of memory");
}

void write_all(int descriptor, std::string_view bytes, const PackageFile& file) {
  while (!bytes.empty()) {
    const ssize_t count = write(descriptor, bytes.data(), bytes.size());
    if (count < 0) refuse_memory(file);
    bytes.remove_prefix(static_cast<std::size_t>(count));
  }
}

}  // namespace

std::optional<std::string> read_record(const std::string& path, std::size_t limit) {
  const Opened opened(path);
  if (opened.descriptor < 0 && errno == ENOENT) return std::nullopt;
  if (!opened.is_file()) throw Refused(path + " can't be read", "a file", "none", kPullAgain);
  std::string bytes;
  std::vector<char> piece(kPiece);
  while (const std::size_t count = read_piece(opened.descriptor, piece, path)) {
    bytes.append(piece.data(), count);
    if (bytes.size() > limit) {
      throw Refused(path + " is not what a release holds",
                    "at most " + std::to_string(limit) + " bytes", "more", kPullAgain);
    }
  }
  return bytes;
}

void check_file(const std::string& folder, const PackageFile& file) {
  read_checked(folder, file, [](std::string_view) {});
}

SealedFile::SealedFile(const std::string& folder, const PackageFile& file) {
  const std::string name = file.path.substr(file.path.find_last_of('/') + 1);
  descriptor_ = memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (descriptor_ < 0) refuse_memory(file);
  try {
    read_checked(folder, file,
                 [&](std::string_view piece) { write_all(descriptor_, piece, file); });
    const int seals = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;
    if (fcntl(descriptor_, F_ADD_SEALS, seals) != 0) refuse_memory(file);
  } catch (...) {
    close(descriptor_);
    throw;
  }
}

SealedFile::~SealedFile() { close(descriptor_); }

std::string SealedFile::path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

std::string held_copy(const std::string& folder, const PackageFile& file) {
  // Never destroyed, since a package's threads may outlive main.
  static auto* held = new std::map<std::string, std::unique_ptr<SealedFile>>();
  static std::mutex lock;
  auto copy = std::make_unique<SealedFile>(folder, file);
  const std::lock_guard<std::mutex> locked(lock);
  return held->try_emplace(file.digest, std::move(copy)).first->second->path();
}

}  // namespace handoff
