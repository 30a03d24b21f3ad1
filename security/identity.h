// Identity: who a site is. An Ed25519 key signs the site's messages, is shown by its TLS
// connections (security/tls_stream.h), and vouches for the X25519 key that its CURVE sockets use,
// so a roster can pin one and prove the other. `isthmus keys generate` makes one.
//
// Files: PATH holds the secrets (security/secret_file.h); PATH.pub holds the public part as the
// three lines that go into the roster.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "base/disk.h"
#include "base/result.h"
#include "security/keys.h"
#include "security/signature.h"
#include "security/signing_key.h"

namespace isthmus::security {

struct PublicIdentity {
  PublicKey identity;
  CurveKey curve_key;
  Signature curve_signature;

  bool operator==(const PublicIdentity&) const = default;
};

// identity = "…", curve_key = "…", curve_signature = "…": a line each, in TOML's syntax.
std::string to_text(const PublicIdentity& identity);

// Takes what to_text gives; comments, blank lines and other orders too. Fails with invalid_argument
// naming the line, or with unauthenticated when the signature does not prove the CURVE key.
Result<PublicIdentity> parse_public_identity(std::string_view text);

class Identity final : public Signer {
 public:
  static Identity generate();
  // The same site with another CURVE key: for one more gateway, or in place of the old key.
  Identity with_new_curve_key() const;
  // Errors as in security/secret_file.h.
  static Result<Identity> load(const std::string& path);

  // PATH and PATH.pub. already_exists when PATH is there.
  Result<void> save(Disk& disk, const std::string& path) const;

  Signature sign(std::string_view context, std::span<const std::byte> message) const override;

  const PublicIdentity& public_part() const { return public_; }
  std::span<const std::byte> identity_seed() const { return key_.seed(); }           // secret
  std::span<const std::byte> curve_secret() const { return curve_secret_.bytes(); }  // 32 bytes

 private:
  Identity(SigningKey key, SecretBytes curve_secret);

  SigningKey key_;
  SecretBytes curve_secret_;
  PublicIdentity public_;
};

}  // namespace isthmus::security
