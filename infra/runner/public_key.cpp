#include "public_key.h"

#include <vector>

#include "libcrypto.h"
#include "refused.h"
#include "sealed.h"
#include "sha256.h"

namespace handoff {
namespace {

constexpr std::size_t kPemLimit = 64 << 10;
// The DER SubjectPublicKeyInfo of a key on P-256 (RFC 5480): this, then X and Y of 32 bytes each.
constexpr std::string_view kP256(
    "\x30\x59\x30\x13\x06\x07\x2a\x86\x48\xce\x3d\x02\x01\x06\x08\x2a\x86\x48\xce\x3d\x03\x01\x07"
    "\x03\x42\x00\x04",
    27);
constexpr std::size_t kP256Bytes = 91;

[[noreturn]] void refuse_key(const std::string& path, const std::string& got) {
  throw Refused(path + " holds no public key", "an EC key on P-256 in PEM", got,
                "Get the file from whoever releases");
}

const unsigned char* bytes_of(std::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

}  // namespace

PublicKey::PublicKey(const std::string& path) {
  const std::optional<std::string> pem = read_record(path, kPemLimit);
  if (!pem) refuse_key(path, "no file");
  const Libcrypto& crypto = libcrypto();
  const std::unique_ptr<void, int (*)(void*)> stream(
      crypto.BIO_new_mem_buf(pem->data(), static_cast<int>(pem->size())), crypto.BIO_free);
  if (!stream) refuse_key(path, "no memory to read it");
  void* key = crypto.PEM_read_bio_PUBKEY(stream.get(), nullptr, nullptr, nullptr);
  if (key == nullptr) refuse_key(path, "something else");
  key_ = std::shared_ptr<void>(key, crypto.EVP_PKEY_free);
  const int size = crypto.i2d_PUBKEY(key, nullptr);
  if (size != static_cast<int>(kP256Bytes)) refuse_key(path, "a key of another kind");
  std::string der(kP256Bytes, '\0');
  auto* place = reinterpret_cast<unsigned char*>(der.data());
  crypto.i2d_PUBKEY(key, &place);
  if (der.compare(0, kP256.size(), kP256) != 0) refuse_key(path, "a key of another kind");
  id_ = digest_bytes(der).substr(7);
}

bool PublicKey::verifies(std::string_view message, std::string_view signature) const {
  const Libcrypto& crypto = libcrypto();
  const std::unique_ptr<void, void (*)(void*)> context(crypto.EVP_MD_CTX_new(),
                                                       crypto.EVP_MD_CTX_free);
  // 1 alone says that it is good; 0 is another signature, and less an error.
  return context &&
         crypto.EVP_DigestVerifyInit(context.get(), nullptr, crypto.EVP_sha256(), nullptr,
                                     key_.get()) == 1 &&
         crypto.EVP_DigestVerify(context.get(), bytes_of(signature), signature.size(),
                                 bytes_of(message), message.size()) == 1;
}

}  // namespace handoff
