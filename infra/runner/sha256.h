// SHA-256 (FIPS 180-4), so that a server needs no further library to check what it opens.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace handoff {

// The digest of bytes that come in pieces.
class Sha256 {
 public:
  void add(std::string_view bytes);
  // The digest of all of them, as manifests write it; nothing can be added after it.
  std::string finish();

 private:
  void compress();

  std::array<std::uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                         0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<unsigned char, 64> block_{};
  std::size_t filled_ = 0;
  std::uint64_t length_ = 0;
};

// The digest of a file, or of bytes, as manifests write it: `sha256:` and 64 hexadecimal digits.
std::string digest_file(const std::string& path);
std::string digest_bytes(std::string_view bytes);

}  // namespace handoff
