#include "inter/chunk_seal.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/assert.h"
#include "base/byte_stream.h"
#include "base/copy_to.h"
#include "kernels/blake2s_columns.h"

namespace isthmus::inter {

using security::kSignatureBytes;

security::Digest chunk_hash(TransferId transfer, std::uint32_t index,
                            std::span<const std::byte> payload) {
  security::Hasher hasher;
  hasher.update(
      ByteWriter().put(transfer).put(index).put(static_cast<std::uint64_t>(payload.size())).view());
  hasher.update(kernels::blake2s_columns(payload));
  return hasher.finish();
}

void seal_group(const security::Signer& signer, std::span<const security::Digest> hashes,
                std::span<const std::span<std::byte>> chunks) {
  ISTHMUS_ASSERT(hashes.size() == chunks.size() && hashes.size() <= kSealedTogether);
  std::array<std::byte, kSealBytes> seal{};
  auto end = seal.begin() + kSignatureBytes;
  for (const auto& hash : hashes) end = copy_to(hash.bytes, end);
  copy_to(signer.sign(security::context::chunks, std::span(seal).subspan(kSignatureBytes)).bytes,
          seal.begin());
  for (const auto chunk : chunks) copy_to(seal, chunk.begin());
}

Result<security::Digest> CheckedSeals::check(const security::Verifier& verifier,
                                             std::uint32_t origin, TransferId transfer,
                                             std::uint32_t index,
                                             std::span<const std::byte> chunk) {
  const auto group = index / kSealedTogether;
  if (group >= good_.size() || chunk.size() < kSealBytes)
    return Error{ErrorCode::bad_frame, fmt::format("chunk {} with {} bytes", index, chunk.size())};
  const auto seal = chunk.first(kSealBytes);
  const auto hashes = seal.subspan(kSignatureBytes);
  const auto hash = chunk_hash(transfer, index, chunk.subspan(kSealBytes));
  const auto not_signed = [&] {
    return Error{ErrorCode::unauthenticated,
                 fmt::format("chunk {} is not signed by site {}", index, origin)};
  };
  if (!std::ranges::equal(hash.bytes, hashes.subspan(index % kSealedTogether * hash.bytes.size(),
                                                     hash.bytes.size())))
    return not_signed();
  if (is_good(group, seal)) return hash;
  security::Signature signature;
  copy_to(seal.first(kSignatureBytes), signature.bytes.begin());
  if (!verifier.verify(origin, security::context::chunks, hashes, signature)) return not_signed();
  auto good = std::make_unique<Seal>();
  copy_to(seal, good->begin());
  const std::lock_guard lock(mutex_);
  good_[group] = std::move(good);
  return hash;
}

bool CheckedSeals::is_good(std::uint32_t group, std::span<const std::byte> seal) const {
  const std::lock_guard lock(mutex_);
  return good_[group] != nullptr && std::ranges::equal(*good_[group], seal);
}

}  // namespace isthmus::inter
