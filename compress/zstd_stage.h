// The lossless stage between codec and seal: a chunk's frames become its payload, one tag byte and
// either the bytes as they are or one zstd frame, whichever is shorter.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>

#include "base/byte_stream.h"
#include "base/result.h"

namespace isthmus::compress {

// Holds zstd's working memory, so that a chunk allocates nothing once the largest has been seen:
// one per worker, used by one thread at a time.
class ZstdStage {
 public:
  ZstdStage();
  ~ZstdStage();
  ZstdStage(const ZstdStage&) = delete;
  ZstdStage& operator=(const ZstdStage&) = delete;

  static constexpr std::size_t kTagBytes = 1;
  // What pack needs at most: the tag and the bytes as they are.
  static constexpr std::size_t packed_bytes_max(std::size_t bytes) { return kTagBytes + bytes; }

  // Fills the front of `out`; returns the bytes used. Equal input gives equal bytes with one
  // version of zstd, not across versions: whoever sends a chunk again sends what it kept.
  std::size_t pack(std::span<const std::byte> bytes, std::span<std::byte> out);

  // Makes `payload` one that holds the bytes as they are: those after the first kTagBytes.
  static void tag_raw(std::span<std::byte> payload);
  // Of a payload that holds the bytes as they are: these. Nothing for any other.
  static std::optional<std::span<const std::byte>> raw(std::span<const std::byte> payload);

  // `payload` comes from a peer. `out` has the declared size, which the caller has checked against
  // its limits before it allocated: nothing is written past it, whatever the payload says, and
  // anything else than exactly that many bytes fails with bad_frame. Then `out` holds garbage.
  Result<void> unpack(std::span<const std::byte> payload, std::span<std::byte> out);

 private:
  struct Contexts;
  std::unique_ptr<Contexts> contexts_;
};

}  // namespace isthmus::compress
