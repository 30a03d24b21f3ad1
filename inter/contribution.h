// Contribution: the coded bytes of one site's pseudo-gradient for one outer step, as far as they
// are here. ChunkPlan: how it is cut and coded. A chunk proves itself (its origin's signature) and
// decodes alone; all together are proved by the root in the signed close.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "compress/codec.h"
#include "compress/zstd_stage.h"
#include "inter/link.h"
#include "inter/messages.h"
#include "inter/model_layout.h"

namespace isthmus::inter {

// The cut of a fragment into chunks, and their coding. Equal at all sites. Thread-safe.
class ChunkPlan {
 public:
  ChunkPlan(const ModelLayout& layout, std::uint32_t fragment, std::uint64_t chunk_elements,
            compress::CodecId codec);

  std::uint32_t chunks() const { return static_cast<std::uint32_t>(chunks_.size()); }
  const std::vector<ElementRange>& ranges(std::uint32_t chunk) const { return chunks_[chunk]; }
  std::uint64_t elements() const { return all_elements_; }
  std::uint64_t elements(std::uint32_t chunk) const { return elements_[chunk]; }
  std::uint64_t codec_bytes(std::uint32_t chunk) const { return codec_bytes_[chunk]; }
  // Of a payload, and of all: what a receiver sets aside at most.
  std::uint64_t payload_bytes_max(std::uint32_t chunk) const;
  std::uint64_t bytes_max() const;
  compress::CodecId codec() const { return codec_->id(); }
  std::uint64_t chunk_elements() const { return chunk_elements_; }
  const ModelLayout& layout() const { return layout_; }

  // Announces a contribution that is cut and coded so; the rest as in Open.
  Open announce(const StepId& id, std::uint64_t tokens, const security::Digest& base,
                std::uint64_t attempt) const;
  // A peer's has the same cut and codec, and asks for no more memory.
  bool fits(const Open& open) const;

  // Codes the chunk of `flat` (layout order). `decoded` (the chunk's elements) gets what receivers
  // will read. Errors: non_finite.
  Result<Bytes> encode(std::uint32_t chunk, std::span<const float> flat,
                       std::span<float> decoded) const;
  // `payload` comes from a peer. Errors: bad_frame.
  Result<void> decode(std::uint32_t chunk, std::span<const std::byte> payload,
                      std::span<float> decoded) const;

 private:
  class Stage;  // a zstd context out of the shelf, back at the end
  const ModelLayout& layout_;
  std::uint64_t chunk_elements_;
  std::unique_ptr<compress::Codec> codec_;
  std::vector<std::vector<ElementRange>> chunks_;
  std::vector<std::uint64_t> elements_, codec_bytes_;
  std::uint64_t all_elements_ = 0;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<compress::ZstdStage>> shelf_;
};

// What one chunk's signature covers, and what the root is made of.
security::Digest chunk_hash(TransferId transfer, std::uint32_t index,
                            std::span<const std::byte> payload);
security::Digest contribution_root(std::span<const security::Digest> chunk_hashes);

// Codes one chunk of a site's own contribution. All spans but the result are whole models in layout
// order, of which only the chunk's elements are touched:
//   quantity = (agreed − parameters) + feedback   in the memory of `parameters`; feedback may be {}
//   residual = quantity − decode(payload)
// Errors: non_finite.
Result<Bytes> code_chunk(const ChunkPlan& plan, std::uint32_t chunk, std::span<const float> agreed,
                         std::span<const float> feedback, std::span<float> parameters,
                         std::span<float> residual);

// Of a contribution that no record named, all of it rides on: residual + decode(payload), in the
// memory of `residual` (a whole model, as above). Errors: bad_frame.
Result<void> carry_chunk(const ChunkPlan& plan, std::uint32_t chunk,
                         std::span<const std::byte> payload, std::span<float> residual);

// A chunk as it travels: the origin's signature over its hash (chunk_hash), then the payload.
inline constexpr std::size_t kSealBytes = 64;
Bytes seal_chunk(const security::Signer& signer, const security::Digest& hash,
                 std::span<const std::byte> payload);

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

  bool has(std::uint32_t index) const { return chunks_[index] != nullptr; }
  std::vector<bool> bitmap() const;
  // A chunk that was checked (or is our own); `hash` as chunk_hash gives it.
  void add(std::uint32_t index, std::shared_ptr<const Bytes> sealed, const security::Digest& hash);
  std::span<const std::byte> payload(std::uint32_t index) const;
  std::span<const std::byte> sealed(std::uint32_t index) const { return *chunks_[index]; }
  // The signature is already checked. False when it contradicts the announcement or an earlier
  // close: only the state root may be another, of a site that found its state wrong.
  bool set_close(Signed message, const Close& close);
  const std::optional<Signed>& close_message() const { return close_message_; }
  const std::optional<Close>& close() const { return close_; }

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
  std::optional<Signed> close_message_;
  std::optional<Close> close_;
  std::vector<std::shared_ptr<const Bytes>> chunks_;
  std::vector<security::Digest> hashes_;
  std::uint32_t count_ = 0;
  std::uint64_t bytes_ = 0;
};

// Checks a sealed chunk from a peer: size, signature of `origin`, decoding, finite values. Any
// thread. The hash on success.
Result<security::Digest> check_chunk(const ChunkPlan& plan, const security::Verifier& verifier,
                                     SiteId origin, TransferId transfer, std::uint32_t index,
                                     std::span<const std::byte> sealed);

}  // namespace isthmus::inter
