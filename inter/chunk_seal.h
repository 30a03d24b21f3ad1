// ChunkSeal: how each chunk of a contribution proves whose it is (PROTOCOL.md, "Contributions").
//
//     chunk │ seal: signature, the hashes of the 8 chunks of its group │ payload
//
// A signature costs its maker and its reader together as much as all hashing of a chunk: it covers
// the hashes of a group, and goes with each of these, so that each still proves itself, alone and
// in any order.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/result.h"
#include "inter/link_frames.h"
#include "security/hash.h"
#include "security/signature.h"

namespace isthmus::inter {

inline constexpr std::uint32_t kSealedTogether = 8;  // of the last group there may be fewer
inline constexpr std::size_t kSealBytes =
    security::kSignatureBytes + kSealedTogether * sizeof(security::Digest::bytes);

// What the seal has of a chunk, and the root of a contribution is made of.
security::Digest chunk_hash(TransferId transfer, std::uint32_t index,
                            std::span<const std::byte> payload);

// Writes the seal to the front of each chunk of a group; `hashes` are theirs, in order.
void seal_group(const security::Signer& signer, std::span<const security::Digest> hashes,
                std::span<const std::span<std::byte>> chunks);

// Of one contribution: those that were found good, so that the signature of each group is checked
// about once (threads that begin together each do). Any thread.
class CheckedSeals {
 public:
  explicit CheckedSeals(std::uint32_t chunks)
      : good_((chunks + kSealedTogether - 1) / kSealedTogether) {}

  // The hash of a chunk that comes from a peer: its seal, then its payload. Errors: bad_frame (too
  // short, or too high an index), unauthenticated.
  Result<security::Digest> check(const security::Verifier& verifier, std::uint32_t origin,
                                 TransferId transfer, std::uint32_t index,
                                 std::span<const std::byte> chunk);

 private:
  using Seal = std::array<std::byte, kSealBytes>;
  bool is_good(std::uint32_t group, std::span<const std::byte> seal) const;

  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<const Seal>> good_;  // by group, the last one
};

}  // namespace isthmus::inter
