// SHA-256 (FIPS 180-4), so that a server needs no further library to check what it opens.
#pragma once

#include <string>
#include <string_view>

namespace handoff {

// The digest of a file, or of bytes, as manifests write it: `sha256:` and 64 hexadecimal digits.
std::string digest_file(const std::string& path);
std::string digest_bytes(std::string_view bytes);

}  // namespace handoff
