// Base64 (RFC 4648), as DSSE envelopes hold payloads and signatures.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace handoff {

// The bytes that `text` stands for, in the standard or in the URL's alphabet, padded; nothing for
// any other text.
std::optional<std::string> decode_base64(std::string_view text);

}  // namespace handoff
