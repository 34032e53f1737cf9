#include "signature.h"

#include <set>

#include "base64.h"
#include "public_key.h"
#include "refused.h"
#include "sealed.h"
#include "sha256.h"

namespace handoff {
namespace {

constexpr char kEnvelope[] = "release.dsse.json";
constexpr char kManifest[] = "manifest.json";
constexpr char kPayloadType[] = "application/vnd.in-toto+json";
constexpr char kStatementType[] = "https://in-toto.io/Statement/v1";
constexpr char kPredicateType[] = "https://slsa.dev/provenance/v1";
constexpr char kBuildType[] = "urn:handoff:release:1";
constexpr std::size_t kEnvelopeLimit = 2 << 20;
constexpr char kUseNothing[] =
    "Don't use it: somebody has changed it, or it was never whole. Pull it again";

[[noreturn]] void refuse(const std::string& folder, const std::string& expected,
                         const std::string& got, const std::string& remedy = kUseNothing) {
  throw Refused("the release in " + folder + " is not verified", expected, got, remedy);
}

std::string decoded(const std::string& folder, const Json& text) {
  if (auto bytes = decode_base64(text.string())) return *bytes;
  refuse(folder, "a DSSE envelope", "other text than base64");
}

void require_type(const std::string& folder, const Json& found, const std::string& expected) {
  if (found.string() != expected) {
    refuse(folder, expected, quote(found.string().substr(0, 60)));
  }
}

// The payload of an envelope that one of the keys has signed.
std::string open_envelope(const std::string& folder, const Json& envelope,
                          const std::vector<PublicKey>& keys) {
  require_type(folder, envelope.at("payloadType"), kPayloadType);
  const std::string payload = decoded(folder, envelope.at("payload"));
  const std::string type = kPayloadType;
  const std::string message = "DSSEv1 " + std::to_string(type.size()) + " " + type + " " +
                              std::to_string(payload.size()) + " " + payload;
  std::set<std::string> signers;
  bool good = false;
  bool known = false;
  for (const Json& signature : envelope.at("signatures").items()) {
    const std::string& signer = signature.at("keyid").string();
    if (!signers.insert(signer).second) refuse(folder, "one signature of each key", "two of one");
    const std::string bytes = decoded(folder, signature.at("sig"));
    for (const PublicKey& key : keys) {
      if (key.id() != signer) continue;
      known = true;
      good = good || key.verifies(message, bytes);
    }
  }
  if (good) return payload;
  if (known) refuse(folder, "a signature that matches", "one of other bytes");
  std::string trusted;
  for (const PublicKey& key : keys) {
    trusted += (trusted.empty() ? "" : ", ") + key.id().substr(0, 12);
  }
  refuse(folder, "a signature by a trusted key (" + trusted + ")",
         signers.empty() ? "no signature" : "one by " + quote(signers.begin()->substr(0, 12)),
         "Don't use it, unless you know that key: --key FILE trusts it");
}

Claim read_statement(const std::string& folder, const Json& statement) {
  require_type(folder, statement.at("_type"), kStatementType);
  require_type(folder, statement.at("predicateType"), kPredicateType);
  const Json& definition = statement.at("predicate").at("buildDefinition");
  require_type(folder, definition.at("buildType"), kBuildType);
  const Json& parameters = definition.at("externalParameters");
  Claim claim;
  claim.model = parameters.at("model").string();
  claim.version = parameters.at("version").integer();
  if (claim.version < 1) refuse(folder, "a version from 1", std::to_string(claim.version));
  for (const Json& subject : statement.at("subject").items()) {
    const std::string digest = "sha256:" + subject.at("digest").at("sha256").string();
    if (!claim.files.emplace(subject.at("name").string(), digest).second) {
      refuse(folder, "each file once", quote(subject.at("name").string()));
    }
  }
  if (claim.files.count(kManifest) == 0) refuse(folder, kManifest, "a signature without it");
  return claim;
}

void add_files(const Json& record, std::map<std::string, std::string>& files) {
  if (!record.has("files")) return;
  for (const Json& file : record.at("files").items()) {
    files[file.at("path").string()] = file.at("digest").string();
  }
}

}  // namespace

Claim read_claim(const std::string& folder, const Trust& trust) {
  if (trust.keys.empty()) {
    refuse(folder, "a public key to verify it with", "none",
           "Name the key of whoever releases with --key FILE (OpenOptions::trust)");
  }
  std::vector<PublicKey> keys(trust.keys.begin(), trust.keys.end());
  const auto envelope = read_record(folder + "/" + kEnvelope, kEnvelopeLimit);
  if (!envelope) {
    throw Refused("the release in " + folder + " is not signed",
                  std::string("a signature in ") + kEnvelope, "none",
                  "Don't use it: pull the release again");
  }
  const std::string payload = open_envelope(folder, Json::parse(*envelope), keys);
  Claim claim = read_statement(folder, Json::parse(payload));
  if (trust.name.value_or(claim.model) != claim.model ||
      trust.version.value_or(claim.version) != claim.version) {
    throw Refused("the release in " + folder + " is another one",
                  trust.name.value_or(claim.model) + " version " +
                      (trust.version ? std::to_string(*trust.version) : "of any number"),
                  claim.model + " version " + std::to_string(claim.version),
                  "Pull the one that you want; the signature of this one is good");
  }
  return claim;
}

void match_manifest(const Claim& claim, const std::string& bytes) {
  const std::string expected = claim.files.at(kManifest);
  const std::string found = digest_bytes(bytes);
  if (found != expected) {
    throw Refused("manifest.json is not the one that was signed", expected.substr(7, 12),
                  found.substr(7, 12),
                  "Don't use it: pull the release again into a new folder");
  }
}

void require_same_files(const Claim& claim, const Json& manifest) {
  std::map<std::string, std::string> expected;
  add_files(manifest, expected);
  for (const Json& target : manifest.at("targets").items()) add_files(target, expected);
  std::map<std::string, std::string> found = claim.files;
  found.erase(kManifest);
  if (claim.model == manifest.at("model").string() && found == expected) return;
  throw Refused("the signature of " + claim.model + " version " + std::to_string(claim.version) +
                    " is about other files",
                "the files of " + manifest.at("model").string() + "'s manifest", "others",
                "Don't use it, and tell who releases");
}

}  // namespace handoff
