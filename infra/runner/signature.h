// Signed releases: the envelope (secure-systems-lab/dsse), and what its statement vouches for.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "json.h"

namespace handoff {

// Whom to trust, and what it has to be: another model's release, and an older one, is validly
// signed, too.
struct Trust {
  std::vector<std::string> keys;    // PEM files; one of these public keys has to have signed
  bool without_signature = false;   // for whoever makes releases: nothing is signed before it is tried
  std::optional<std::string> name;
  std::optional<std::int64_t> version;
};

// What a release's signature vouches for; artifacts/release/statement.py writes it.
struct Claim {
  std::string model;
  std::int64_t version = 0;
  std::map<std::string, std::string> files;  // digests by path, the manifest's among them
};

// Reads `release.dsse.json` in a pulled folder, once, and nothing in it before a trusted key's
// signature was verified. Throws `Refused`.
Claim read_claim(const std::string& folder, const Trust& trust);

// Throws `Refused` unless the manifest's bytes are those that the claim vouches for.
void match_manifest(const Claim& claim, const std::string& bytes);

// Throws `Refused` unless the claim's subjects are the manifest's files, and its model.
void require_same_files(const Claim& claim, const Json& manifest);

}  // namespace handoff
