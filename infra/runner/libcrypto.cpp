#include "libcrypto.h"

#include <dlfcn.h>

#include <string>

#include "refused.h"

namespace handoff {
namespace {

[[noreturn]] void refuse_library(const std::string& got) {
  throw Refused("no release can be checked here", "OpenSSL's libcrypto.so.3 or .so.1.1", got,
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
  look_up(library, "EVP_DigestInit_ex", found.EVP_DigestInit_ex);
  look_up(library, "EVP_DigestUpdate", found.EVP_DigestUpdate);
  look_up(library, "EVP_DigestFinal_ex", found.EVP_DigestFinal_ex);
  look_up(library, "EVP_DigestVerifyInit", found.EVP_DigestVerifyInit);
  look_up(library, "EVP_DigestVerify", found.EVP_DigestVerify);
  return found;
}

}  // namespace

const Libcrypto& libcrypto() {
  static const Libcrypto loaded = load_libcrypto();
  return loaded;
}

}  // namespace handoff
