// SHA-256, as OpenSSL computes it: with the processor's own instructions where it has them.
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace handoff {

// The digest of bytes that come in pieces.
class Sha256 {
 public:
  Sha256();
  void add(std::string_view bytes);
  // The digest of all of them, as manifests write it: `sha256:` and 64 hexadecimal digits. Nothing
  // can be added after it.
  std::string finish();

 private:
  std::unique_ptr<void, void (*)(void*)> context_;
};

// The digest of bytes, as manifests write it.
std::string digest_bytes(std::string_view bytes);

}  // namespace handoff
