// Files that are read once: what was compared with its digest is what is used.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "release.h"

namespace handoff {

// A small file's bytes; nothing where there is none. Throws `Refused` for anything but a file (a
// link, a pipe), and for one beyond `limit` bytes.
std::optional<std::string> read_record(const std::string& path, std::size_t limit);

// Throws `Refused` unless a file of the release has the size and the digest that were released.
void check_file(const std::string& folder, const PackageFile& file);

// A copy in memory that nobody can write to any more (memfd_create(2), F_ADD_SEALS of fcntl(2)).
class SealedFile {
 public:
  // Copies a file of the release while it is hashed. Throws `Refused` unless it is as released.
  SealedFile(const std::string& folder, const PackageFile& file);
  ~SealedFile();
  SealedFile(const SealedFile&) = delete;
  SealedFile& operator=(const SealedFile&) = delete;

  int descriptor() const { return descriptor_; }
  std::string path() const;

 private:
  int descriptor_ = -1;
};

// The path of a sealed copy that is never closed; the same bytes have the same one. dlopen takes a
// library that it has loaded from a path for the one that lies there now, and never unloads most of
// ours (their unique symbols): a number that is used again would be another model's.
std::string held_copy(const std::string& folder, const PackageFile& file);

// Throws `Refused` unless every member of a ZIP archive lies below one folder: torch's loader joins
// a member's name to a folder in TMPDIR as it is, and `model/../../x` would be written outside. And
// unless the JSON beside each library in it has operators of libtorch alone called by name.
void require_known_members(const SealedFile& archive, const std::string& what);

}  // namespace handoff
