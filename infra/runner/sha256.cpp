#include "sha256.h"

#include <array>

#include "libcrypto.h"
#include "refused.h"

namespace handoff {
namespace {

void require(bool done) {
  if (!done) {
    throw Refused("no digest can be computed", "SHA-256 from OpenSSL's libcrypto", "an error of it",
                  "Look at OpenSSL's configuration (OPENSSL_CONF)");
  }
}

}  // namespace

Sha256::Sha256() : context_(libcrypto().EVP_MD_CTX_new(), libcrypto().EVP_MD_CTX_free) {
  const Libcrypto& crypto = libcrypto();
  require(context_ &&
          crypto.EVP_DigestInit_ex(context_.get(), crypto.EVP_sha256(), nullptr) == 1);
}

void Sha256::add(std::string_view bytes) {
  require(libcrypto().EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) == 1);
}

std::string Sha256::finish() {
  std::array<unsigned char, 32> digest{};
  require(libcrypto().EVP_DigestFinal_ex(context_.get(), digest.data(), nullptr) == 1);
  std::string text = "sha256:";
  for (const unsigned char byte : digest) {
    text.push_back("0123456789abcdef"[byte >> 4]);
    text.push_back("0123456789abcdef"[byte & 15]);
  }
  return text;
}

std::string digest_bytes(std::string_view bytes) {
  Sha256 hash;
  hash.add(bytes);
  return hash.finish();
}

}  // namespace handoff
