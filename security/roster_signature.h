// The operator's signature over the exact bytes of a roster file, kept beside it as ROSTER.sig. It
// is checked before anything parses the roster, so a parser only ever meets the operator's own
// bytes.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "base/disk.h"
#include "base/result.h"
#include "security/hash.h"
#include "security/roster.h"
#include "security/signing_key.h"

namespace isthmus::security {

// What ROSTER.sig is to hold: a title line and one of hexadecimal digits. Fails with too_large
// above kRosterBytesMax.
Result<std::string> sign_roster(std::span<const std::byte> roster, const SigningKey& operator_key);

// The digest of the bytes, if the operator signed them. Errors: too_large, corrupt (not a signature
// file), unauthenticated.
Result<Digest> verify_roster(std::span<const std::byte> roster, std::string_view signature_file,
                             const PublicKey& operator_key);

struct SignedRoster {
  Bytes bytes;
  Digest digest;
};
// Reads PATH and PATH.sig and verifies one against the other.
Result<SignedRoster> read_signed_roster(const Disk& disk, const std::string& path,
                                        const PublicKey& operator_key);

}  // namespace isthmus::security
