#include "security/identity.h"

#include <fmt/format.h>
#include <sodium.h>

#include <array>
#include <optional>

#include "base/assert.h"
#include "security/roster.h"
#include "security/secret_file.h"
#include "security/sodium_ready.h"

namespace isthmus::security {
namespace {

constexpr std::string_view kIdentityTitle = "isthmus secret identity v1";

SecretBytes random_curve_secret() {
  SecretBytes secret(crypto_box_SECRETKEYBYTES);
  randombytes_buf(secret.bytes().data(), secret.size());
  return secret;
}

std::string_view trim(std::string_view text) {
  constexpr std::string_view blanks = " \t\r";
  const auto first = text.find_first_not_of(blanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(blanks) - first + 1);
}

// The text between the quotes of `"…"`.
std::optional<std::string_view> unquoted(std::string_view text) {
  if (text.size() < 2 || text.front() != '"' || text.back() != '"') return {};
  return text.substr(1, text.size() - 2);
}

// One `name = "hex"` line after the other.
class PublicFields {
 public:
  Result<PublicIdentity> parse(std::string_view text) {
    for (std::size_t number = 1; !text.empty(); ++number) {
      const auto end = text.find('\n');
      const auto line = trim(text.substr(0, end));
      text = end == std::string_view::npos ? std::string_view{} : text.substr(end + 1);
      if (line.empty() || line.front() == '#') continue;
      if (auto read = read_line(line); !read)
        return Error{ErrorCode::invalid_argument, fmt::format("line {} of the public key", number),
                     read.error()};
    }
    for (const auto& field : fields_)
      if (!field.seen)
        return Error{ErrorCode::invalid_argument,
                     fmt::format("the public key lacks the line {} = \"…\"", field.name)};
    if (!signs_curve_key(found_.identity, found_.curve_key, found_.curve_signature))
      return Error{ErrorCode::unauthenticated,
                   "the identity does not sign the CURVE key: the lines are not of one key file"};
    return found_;
  }

 private:
  struct Field {
    std::string_view name;
    std::span<std::byte> bytes;
    bool seen = false;
  };

  Result<void> read_line(std::string_view line) {
    const auto equals = line.find('=');
    const auto name = trim(line.substr(0, equals));
    for (auto& field : fields_) {
      if (field.name != name) continue;
      if (equals == std::string_view::npos || field.seen) break;
      const auto value = unquoted(trim(line.substr(equals + 1)));
      if (!value || !from_hex(*value, field.bytes))
        return Error{ErrorCode::invalid_argument,
                     fmt::format("{} must be {} hexadecimal digits in quotes", name,
                                 2 * field.bytes.size())};
      field.seen = true;
      return {};
    }
    return Error{ErrorCode::invalid_argument,
                 "expected identity, curve_key and curve_signature, once each"};
  }

  PublicIdentity found_;
  std::array<Field, 3> fields_{{{"identity", found_.identity.bytes},
                                {"curve_key", found_.curve_key.bytes},
                                {"curve_signature", found_.curve_signature.bytes}}};
};

}  // namespace

std::string to_text(const PublicIdentity& identity) {
  return fmt::format("identity = \"{}\"\ncurve_key = \"{}\"\ncurve_signature = \"{}\"\n",
                     identity.identity.hex(), identity.curve_key.hex(),
                     identity.curve_signature.hex());
}

Result<PublicIdentity> parse_public_identity(std::string_view text) {
  return PublicFields().parse(text);
}

Identity::Identity(SigningKey key, SecretBytes curve_secret)
    : key_(std::move(key)), curve_secret_(std::move(curve_secret)) {
  public_.identity = key_.public_key();
  const int status = crypto_scalarmult_base(octets(public_.curve_key.bytes.data()),
                                            octets(curve_secret_.bytes().data()));
  ISTHMUS_ASSERT(status == 0);
  // Ed25519 is deterministic: the same key file gives the same signature every time.
  public_.curve_signature = key_.sign(context::curve_key, public_.curve_key.bytes);
}

Identity Identity::generate() { return Identity(SigningKey::generate(), random_curve_secret()); }

Identity Identity::with_new_curve_key() const {
  return Identity(SigningKey::from_seed(key_.seed()), random_curve_secret());
}

Result<Identity> Identity::load(const std::string& path) {
  ISTHMUS_TRY(auto keys, read_secret_file(path, kIdentityTitle, 2));
  return Identity(SigningKey::from_seed(keys[0].bytes()), std::move(keys[1]));
}

Result<void> Identity::save(Disk& disk, const std::string& path) const {
  ISTHMUS_CHECK(write_secret_file(path, kIdentityTitle, {key_.seed(), curve_secret_.bytes()}));
  return replace_file(disk, path + ".pub", bytes_of(to_text(public_)));
}

Signature Identity::sign(std::string_view context, std::span<const std::byte> message) const {
  return key_.sign(context, message);
}

}  // namespace isthmus::security
