#include "security/roster_signature.h"

#include <fmt/format.h>

namespace isthmus::security {
namespace {

constexpr std::string_view kSignatureTitle = "isthmus roster signature v1\n";
constexpr std::size_t kDigits = 2 * sizeof(Signature::bytes);
constexpr std::size_t kSignatureFileBytes = kSignatureTitle.size() + kDigits + 1;

Result<void> check_size(std::span<const std::byte> roster) {
  if (roster.size() > kRosterBytesMax)
    return Error{ErrorCode::too_large, fmt::format("a roster of {} bytes; at most {} are allowed",
                                                   roster.size(), kRosterBytesMax)};
  return {};
}

}  // namespace

Result<std::string> sign_roster(std::span<const std::byte> roster, const SigningKey& operator_key) {
  ISTHMUS_CHECK(check_size(roster));
  return fmt::format("{}{}\n", kSignatureTitle, operator_key.sign(context::roster, roster).hex());
}

Result<Digest> verify_roster(std::span<const std::byte> roster, std::string_view signature_file,
                             const PublicKey& operator_key) {
  ISTHMUS_CHECK(check_size(roster));
  Signature signature;
  if (signature_file.size() != kSignatureFileBytes ||
      !signature_file.starts_with(kSignatureTitle) || signature_file.back() != '\n' ||
      !from_hex(signature_file.substr(kSignatureTitle.size(), kDigits), signature.bytes))
    return Error{ErrorCode::corrupt,
                 "the roster's signature file is damaged: sign the roster again (isthmus roster "
                 "sign)"};
  if (!verify_signature(operator_key, context::roster, roster, signature))
    return Error{ErrorCode::unauthenticated,
                 fmt::format("the roster is not signed by the operator {}: it was changed after "
                             "signing, or operator_key is another operator's",
                             operator_key.hex())};
  return blake2b(roster);
}

Result<SignedRoster> read_signed_roster(const Disk& disk, const std::string& path,
                                        const PublicKey& operator_key) {
  ISTHMUS_TRY(auto bytes, read_file(disk, path, kRosterBytesMax));
  ISTHMUS_TRY(const auto signature, read_file(disk, path + ".sig", kSignatureFileBytes));
  ISTHMUS_TRY(const auto digest, verify_roster(bytes, text_of(signature), operator_key));
  return SignedRoster{std::move(bytes), digest};
}

}  // namespace isthmus::security
