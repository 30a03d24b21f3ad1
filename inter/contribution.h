// Contribution: the coded bytes of one site's pseudo-gradient for one outer step, as far as they
// are here. ChunkPlan: how it is cut and coded. A chunk proves itself (chunk_seal.h) and decodes
// alone; all together are proved by the root in the signed close.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/buffer_pool.h"
#include "compress/codec.h"
#include "compress/zstd_stage.h"
#include "inter/chunk_seal.h"
#include "inter/contributed_values.h"
#include "inter/link.h"
#include "inter/messages.h"
#include "inter/model_layout.h"

namespace isthmus::inter {

// The frames of a chunk as the codec made them, before or after zstd: what decoding begins with.
using CodedChunk = SharedBytes;

// The cut of a fragment into chunks, and their coding. Equal at all sites. Thread-safe.
class ChunkPlan {
 public:
  ChunkPlan(const ModelLayout& layout, std::uint32_t fragment, std::uint64_t chunk_elements,
            compress::CodecId codec);

  std::uint32_t chunks() const { return static_cast<std::uint32_t>(chunks_.size()); }
  std::uint32_t groups() const { return (chunks() + kSealedTogether - 1) / kSealedTogether; }
  const std::vector<ElementRange>& ranges(std::uint32_t chunk) const { return chunks_[chunk]; }
  std::uint64_t elements() const { return all_elements_; }
  std::uint64_t elements(std::uint32_t chunk) const { return elements_[chunk]; }
  std::uint64_t codec_bytes(std::uint32_t chunk) const { return codec_bytes_[chunk]; }
  // Of a payload, and of all: what a receiver sets aside at most.
  std::uint64_t payload_bytes_max(std::uint32_t chunk) const;
  std::uint64_t longest_payload_bytes() const;  // of any chunk
  std::uint64_t bytes_max() const;
  compress::CodecId codec() const { return codec_->id(); }
  std::uint64_t chunk_elements() const { return chunk_elements_; }
  const ModelLayout& layout() const { return layout_; }

  // Announces a contribution that is cut and coded so; the rest as in Open.
  Open announce(const StepId& id, std::uint64_t tokens, const security::Digest& base,
                std::uint64_t attempt) const;
  // A peer's has the same cut and codec, and asks for no more memory.
  bool fits(const Open& open) const;

  // For the bytes of its chunks: as many as two contributions have are kept for the next ones.
  BufferPool& memory() const { return *memory_; }

  // Fills the front of `out`, which has room for the longest, with the payload that zstd makes of a
  // chunk's frames; returns its bytes.
  std::size_t pack(std::span<const std::byte> coded, std::span<std::byte> out) const;
  // The frames of a payload that comes from a peer: of the right size, and not looked at further.
  // Errors: bad_frame.
  Result<CodedChunk> unpack(std::uint32_t chunk, const SharedBytes& payload) const;

  // Calls with each tile of the chunk's frames, in order: a frame's elements and coded bytes, the
  // tile's first element in the frame, and its count. Ends with the first error.
  template <class Byte, class Body>
  Result<void> each_tile(std::uint32_t chunk, std::span<Byte> coded, const Body& body) const {
    std::size_t at = 0;
    for (const auto& range : chunks_[chunk]) {
      const auto frame = coded.subspan(at, codec_->encoded_bytes_max(range.count));
      at += frame.size();
      for (std::uint64_t first = 0; first < range.count; first += compress::kTileElements)
        ISTHMUS_CHECK(body(range, frame, first,
                           std::min<std::uint64_t>(compress::kTileElements, range.count - first)));
    }
    return {};
  }
  const compress::Codec& frames() const { return *codec_; }

 private:
  class Stage;  // a zstd context out of the shelf, back at the end
  const ModelLayout& layout_;
  std::uint64_t chunk_elements_;
  std::unique_ptr<compress::Codec> codec_;
  std::vector<std::vector<ElementRange>> chunks_;
  std::vector<std::uint64_t> elements_, codec_bytes_;
  std::uint64_t all_elements_ = 0;
  std::shared_ptr<BufferPool> memory_;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<compress::ZstdStage>> shelf_;
};

security::Digest contribution_root(std::span<const security::Digest> chunk_hashes);

// A chunk of our own, with room for the seal in front: its frames go out from where they were
// coded.
class UnsealedChunk {
 public:
  UnsealedChunk(const ChunkPlan& plan, std::uint32_t chunk);
  std::span<std::byte> whole() const { return {memory_.get(), bytes_}; }  // sealed, as they are
  std::span<std::byte> frames() const;
  CodedChunk coded() const { return {memory_, frames()}; }
  const std::shared_ptr<std::byte[]>& memory() const { return memory_; }

 private:
  std::size_t bytes_;
  std::shared_ptr<std::byte[]> memory_;  // then with those who send, write and decode it
};

// Codes one chunk of a site's own contribution. All spans are whole models in layout order, of
// which only the chunk's elements are touched:
//   quantity = (agreed − parameters) + feedback   feedback may be {}
//   residual = quantity − decode(coded), which may not be the memory of feedback
// Errors: non_finite; the chunk's residual is garbage then.
Result<UnsealedChunk> code_chunk(const ChunkPlan& plan, std::uint32_t chunk,
                                 std::span<const float> agreed, std::span<const float> feedback,
                                 const ContributedValues& parameters, std::span<float> residual);

// Of a contribution that no record named, all of it rides on: residual + decode(coded), in the
// memory of `residual` (a whole model, as above). Errors: bad_frame.
Result<void> carry_chunk(const ChunkPlan& plan, std::uint32_t chunk, const CodedChunk& coded,
                         std::span<float> residual);

struct SealedChunk {
  SharedBytes bytes;
  security::Digest hash;
};
// A chunk with its payload and the hash of that, but for the seal in front. `zstd`: packed, which
// takes memory of its own.
struct PackedChunk {
  std::shared_ptr<std::byte[]> memory;
  std::span<std::byte> whole;
  security::Digest hash;
};
PackedChunk pack_chunk(const ChunkPlan& plan, TransferId transfer, std::uint32_t index,
                       const UnsealedChunk& chunk, bool zstd);
// Those of a group, in order.
std::vector<SealedChunk> seal_chunks(const security::Signer& signer,
                                     std::span<const PackedChunk> group);

class Contribution final : public ChunkSource {
 public:
  // `announcement` is the signed open, already checked against the plan.
  Contribution(std::shared_ptr<const ChunkPlan> plan, Signed announcement, Open open);

  SiteId site() const { return announcement_.signer; }
  std::uint64_t step() const { return open_.id.step; }
  TransferId transfer() const { return transfer_; }
  const Signed& announcement() const { return announcement_; }
  const Open& open() const { return open_; }
  const ChunkPlan& plan() const { return *plan_; }

  bool has(std::uint32_t index) const { return bool(chunks_[index]); }
  std::vector<bool> bitmap() const;
  // A chunk that was checked (or is our own). `coded`, where it is at hand, is kept for who
  // decodes it, until it is dropped.
  void add(std::uint32_t index, SealedChunk sealed, CodedChunk coded = {});
  const CodedChunk& kept_coded(std::uint32_t index) const { return coded_[index]; }
  void drop_coded(std::uint32_t index) const { coded_[index] = {}; }
  // Once more, of a chunk that is here. Any thread. Errors: bad_frame.
  Result<CodedChunk> unpack(std::uint32_t index) const;
  SharedBytes payload(std::uint32_t index) const;
  const SharedBytes& sealed(std::uint32_t index) const { return chunks_[index]; }
  CheckedSeals& seals() const { return *seals_; }
  // The signature is already checked. False when it contradicts the announcement or an earlier
  // close: only the state root may be another, of a site that found its state wrong. Of several the
  // one with the preferred root counts, else the last: what was said before may come again.
  bool set_close(Signed message, const Close& close);
  void prefer_close(const security::Digest& state_root);
  const std::optional<Signed>& close_message() const { return close_message_; }
  const std::optional<Close>& close() const { return close_; }
  const security::Digest& state_root_said_last() const { return said_last_; }

  std::size_t missing() const { return chunks_.size() - count_; }  // chunks
  // Every chunk and the close are here.
  bool complete() const { return close_.has_value() && count_ == chunks_.size(); }
  // Complete, and the chunks are those that the close means.
  bool proven() const;
  security::Digest root() const;
  std::uint64_t bytes() const { return bytes_; }
  Part part() const;

  // ChunkSource: sealed chunks as they become ready.
  ChunkBytes chunk(std::uint32_t index) override;

 private:
  std::shared_ptr<const ChunkPlan> plan_;
  Signed announcement_;
  Open open_;
  TransferId transfer_;
  std::optional<Signed> close_message_;  // the one that counts
  std::optional<Close> close_;
  security::Digest preferred_root_, said_last_;
  static constexpr std::size_t kOtherClosesMax = 3;
  std::vector<std::pair<Close, Signed>> other_closes_;  // the last ones
  std::vector<SharedBytes> chunks_;
  mutable std::vector<CodedChunk> coded_;  // a cache: unpack() gives the same
  std::vector<security::Digest> hashes_;
  std::unique_ptr<CheckedSeals> seals_;
  std::uint32_t count_ = 0;
  std::uint64_t bytes_ = 0;
};

// Checks a sealed chunk from a peer: size, seal of `origin`, that it decodes to values that are
// allowed. Any thread. `seals`: of its contribution.
struct CheckedChunk {
  SealedChunk sealed;
  CodedChunk coded;
};
Result<CheckedChunk> check_chunk(const ChunkPlan& plan, const security::Verifier& verifier,
                                 CheckedSeals& seals, SiteId origin, TransferId transfer,
                                 std::uint32_t index, const SharedBytes& sealed);

}  // namespace isthmus::inter
