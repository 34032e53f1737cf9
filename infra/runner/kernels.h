// The operators that a package has called by name: `model.json` beside `model.so`. See
// artifacts/serve/archive.py, which does the same.
#pragma once

#include <cstddef>
#include <string>

#include "release.h"
#include "sealed.h"

namespace handoff {

// The record of the target's file of operators called by name; null where it calls none so.
const PackageFile* kernels_of(const Target& target);

// What a JSON of operators may take. A node takes some 400 bytes.
inline constexpr std::size_t kKernelsLimit = 16 << 20;

// Throws `Refused` unless a JSON, sealed or its bytes, names operators of libtorch alone.
void require_known_operators(const SealedFile& kernels, const std::string& what);
void require_known_operators(const std::string& kernels, const std::string& what);

// Links to a held library and a sealed JSON of operators, side by side in a folder of mode 700 in
// TMPDIR, where torch's runner looks for it; gone with this. What they hold can't be exchanged
// there, but this user's other processes could put other links in their place.
class SideBySide {
 public:
  SideBySide(const std::string& library, const SealedFile& kernels);
  ~SideBySide();
  SideBySide(const SideBySide&) = delete;
  SideBySide& operator=(const SideBySide&) = delete;

  const std::string& library() const { return library_; }

 private:
  void remove() const;

  std::string folder_;
  std::string library_;
  std::string kernels_;
};

}  // namespace handoff
