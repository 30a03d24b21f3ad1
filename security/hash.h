// BLAKE2b-256 (RFC 7693): the hash that names contributions, records, states and rosters, where an
// adversary may choose the bytes. Where only broken memory can, kernels/leaf_hash.h is faster.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <span>
#include <string>

namespace isthmus::security {

struct Digest {
  std::array<std::byte, 32> bytes{};

  auto operator<=>(const Digest&) const = default;
  std::string hex() const;
};

Digest blake2b(std::span<const std::byte> bytes);

// The digest of several pieces, equal to that of the pieces joined: lengths are not hashed, so a
// caller that hashes fields writes them with a ByteWriter. Copies carry the state along.
class Hasher {
 public:
  Hasher();
  void update(std::span<const std::byte> bytes);
  // Once; nothing may follow.
  Digest finish();

 private:
  // libsodium's state, without its header here.
  alignas(64) std::array<std::byte, 384> state_;
  bool finished_ = false;
};

}  // namespace isthmus::security
