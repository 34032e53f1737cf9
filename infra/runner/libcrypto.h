// OpenSSL's libcrypto, looked up when it is first needed: nothing of it is needed to build.
#pragma once

#include <cstddef>

namespace handoff {

// What is used of it, as its manual pages (1.1.1 and 3) declare it; every type is opaque.
struct Libcrypto {
  void* (*BIO_new_mem_buf)(const void*, int);
  int (*BIO_free)(void*);
  void* (*PEM_read_bio_PUBKEY)(void*, void**, void*, void*);
  void (*EVP_PKEY_free)(void*);
  int (*i2d_PUBKEY)(const void*, unsigned char**);
  void* (*EVP_MD_CTX_new)();
  void (*EVP_MD_CTX_free)(void*);
  const void* (*EVP_sha256)();
  int (*EVP_DigestInit_ex)(void*, const void*, void*);
  int (*EVP_DigestUpdate)(void*, const void*, std::size_t);
  int (*EVP_DigestFinal_ex)(void*, unsigned char*, unsigned int*);
  int (*EVP_DigestVerifyInit)(void*, void**, const void*, void*, void*);
  int (*EVP_DigestVerify)(void*, const unsigned char*, std::size_t, const unsigned char*,
                          std::size_t);
};

// The library of this machine; Refused where it has none.
const Libcrypto& libcrypto();

}  // namespace handoff
