#include "public_key.h"

#include <dlfcn.h>

#include <vector>

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

// What is used of libcrypto, as its manual pages (1.1.1 and 3) declare it; every type is opaque.
struct Libcrypto {
  void* (*BIO_new_mem_buf)(const void*, int);
  int (*BIO_free)(void*);
  void* (*PEM_read_bio_PUBKEY)(void*, void**, void*, void*);
  void (*EVP_PKEY_free)(void*);
  int (*i2d_PUBKEY)(const void*, unsigned char**);
  void* (*EVP_MD_CTX_new)();
  void (*EVP_MD_CTX_free)(void*);
  const void* (*EVP_sha256)();
  int (*EVP_DigestVerifyInit)(void*, void**, const void*, void*, void*);
  int (*EVP_DigestVerify)(void*, const unsigned char*, std::size_t, const unsigned char*,
                          std::size_t);
};

[[noreturn]] void refuse_library(const std::string& got) {
  throw Refused("no signature can be verified here", "OpenSSL's libcrypto.so.3 or .so.1.1", got,
                "Install OpenSSL (Debian: libssl3)");
}

template <typename Function>
void look_up(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr) refuse_library(std::string("one without ") + name);
}

Libcrypto load_libcrypto() {
  void* library = dlopen("libcrypto.so.3", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) library = dlopen("libcrypto.so.1.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) refuse_library("neither");
  Libcrypto found{};
  look_up(library, "BIO_new_mem_buf", found.BIO_new_mem_buf);
  look_up(library, "BIO_free", found.BIO_free);
  look_up(library, "PEM_read_bio_PUBKEY", found.PEM_read_bio_PUBKEY);
  look_up(library, "EVP_PKEY_free", found.EVP_PKEY_free);
  look_up(library, "i2d_PUBKEY", found.i2d_PUBKEY);
  look_up(library, "EVP_MD_CTX_new", found.EVP_MD_CTX_new);
  look_up(library, "EVP_MD_CTX_free", found.EVP_MD_CTX_free);
  look_up(library, "EVP_sha256", found.EVP_sha256);
  look_up(library, "EVP_DigestVerifyInit", found.EVP_DigestVerifyInit);
  look_up(library, "EVP_DigestVerify", found.EVP_DigestVerify);
  return found;
}

const Libcrypto& libcrypto() {
  static const Libcrypto loaded = load_libcrypto();
  return loaded;
}

[[noreturn]] void refuse_key(const std::string& path, const std::string& got) {
  throw Refused(path + " holds no public key", "an EC key on P-256 in PEM", got,
                "Get the file from who releases");
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
