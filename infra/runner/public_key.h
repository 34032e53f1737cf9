// A public key that signatures are verified with: EC P-256, by the libcrypto of this machine.
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace handoff {

class PublicKey {
 public:
  // Reads a PEM file. libcrypto is looked up when the program runs, so that nothing but torch is
  // needed to build it. Throws `Refused` for a file without such a key, and without libcrypto.
  explicit PublicKey(const std::string& path);

  // The SHA-256 of the key's DER SubjectPublicKeyInfo, in hexadecimal digits.
  const std::string& id() const { return id_; }

  // Whether `signature` (ECDSA with SHA-256, DER) is this key's for `message`.
  bool verifies(std::string_view message, std::string_view signature) const;

 private:
  std::shared_ptr<void> key_;
  std::string id_;
};

}  // namespace handoff
