#include "inter/contribution.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/assert.h"
#include "compress/error_feedback.h"

namespace isthmus::inter {

namespace {

// Those of two steps come back at once where a record names the later one while the earlier one was
// still kept for others, and the next two take them again.
constexpr std::uint64_t kPooledContributions = 2;

}  // namespace

class ChunkPlan::Stage {
 public:
  explicit Stage(const ChunkPlan& plan) : plan_(plan) {
    const std::lock_guard lock(plan_.mutex_);
    if (plan_.shelf_.empty()) {
      stage_ = std::make_unique<compress::ZstdStage>();
    } else {
      stage_ = std::move(plan_.shelf_.back());
      plan_.shelf_.pop_back();
    }
  }
  ~Stage() {
    const std::lock_guard lock(plan_.mutex_);
    plan_.shelf_.push_back(std::move(stage_));
  }
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;
  compress::ZstdStage* operator->() { return stage_.get(); }

 private:
  const ChunkPlan& plan_;
  std::unique_ptr<compress::ZstdStage> stage_;
};

ChunkPlan::ChunkPlan(const ModelLayout& layout, std::uint32_t fragment,
                     std::uint64_t chunk_elements, compress::CodecId codec)
    : layout_(layout),
      chunk_elements_(chunk_elements),
      codec_(compress::make_codec(codec)),
      chunks_(layout.chunks(fragment, chunk_elements)) {
  for (const auto& ranges : chunks_) {
    std::uint64_t elements = 0, bytes = 0;
    for (const auto& range : ranges) {
      elements += range.count;
      bytes += codec_->encoded_bytes_max(range.count);
    }
    elements_.push_back(elements);
    all_elements_ += elements;
    codec_bytes_.push_back(bytes);
  }
  memory_ =
      std::make_shared<BufferPool>(kPooledContributions * (chunks() * kSealBytes + bytes_max()));
}

std::uint64_t ChunkPlan::payload_bytes_max(std::uint32_t chunk) const {
  return compress::ZstdStage::packed_bytes_max(codec_bytes_[chunk]);
}

std::uint64_t ChunkPlan::longest_payload_bytes() const {
  std::uint64_t longest = 0;
  for (std::uint32_t i = 0; i < chunks(); ++i) longest = std::max(longest, payload_bytes_max(i));
  return longest;
}

std::uint64_t ChunkPlan::bytes_max() const {
  std::uint64_t bytes = 0;
  for (std::uint32_t i = 0; i < chunks(); ++i) bytes += payload_bytes_max(i);
  return bytes;
}

Open ChunkPlan::announce(const StepId& id, std::uint64_t tokens, const security::Digest& base,
                         std::uint64_t attempt) const {
  return {.id = id,
          .codec = codec(),
          .first_element = 0,
          .elements = all_elements_,
          .chunk_elements = chunk_elements_,
          .chunks = chunks(),
          .bytes_max = bytes_max(),
          .tokens = tokens,
          .base = base,
          .attempt = attempt};
}

bool ChunkPlan::fits(const Open& open) const {
  return open.codec == codec() && open.first_element == 0 && open.elements == all_elements_ &&
         open.chunk_elements == chunk_elements_ && open.chunks == chunks() &&
         open.bytes_max <= bytes_max();
}

std::size_t ChunkPlan::pack(std::span<const std::byte> coded, std::span<std::byte> out) const {
  Stage stage(*this);
  return stage->pack(coded, out);
}

Result<CodedChunk> ChunkPlan::unpack(std::uint32_t chunk, const SharedBytes& payload) const {
  if (payload.size() > payload_bytes_max(chunk))
    return Error{ErrorCode::bad_frame, fmt::format("a chunk of {} bytes, at most {} are declared",
                                                   payload.size(), payload_bytes_max(chunk))};
  if (const auto raw = compress::ZstdStage::raw(payload); raw && raw->size() == codec_bytes_[chunk])
    return payload.part(*raw);
  auto memory = memory_->take(codec_bytes_[chunk]);
  const std::span coded(memory.get(), codec_bytes_[chunk]);
  Stage stage(*this);
  ISTHMUS_CHECK(stage->unpack(payload, coded));
  return CodedChunk(std::move(memory), coded);
}

security::Digest contribution_root(std::span<const security::Digest> chunk_hashes) {
  security::Hasher hasher;
  hasher.update(bytes_of("isthmus contribution v1"));
  for (const auto& hash : chunk_hashes) hasher.update(hash.bytes);
  return hasher.finish();
}

UnsealedChunk::UnsealedChunk(const ChunkPlan& plan, std::uint32_t chunk)
    : bytes_(kSealBytes + plan.payload_bytes_max(chunk)), memory_(plan.memory().take(bytes_)) {}

std::span<std::byte> UnsealedChunk::frames() const {
  return whole().subspan(kSealBytes + compress::ZstdStage::kTagBytes);
}

Result<UnsealedChunk> code_chunk(const ChunkPlan& plan, std::uint32_t chunk,
                                 std::span<const float> agreed, std::span<const float> feedback,
                                 const ContributedValues& parameters, std::span<float> residual) {
  const UnsealedChunk unsealed(plan, chunk);
  std::array<float, compress::kTileElements> tile;
  const auto code = [&](const ElementRange& range, std::span<std::byte> frame, std::uint64_t first,
                        std::uint64_t count) -> Result<void> {
    const auto at = plan.layout().offset(range) + first;
    return plan.frames().encode_change(
        {.agreed = agreed.subspan(at, count),
         .contributed = parameters.read(at, std::span(tile).first(count)),
         .feedback = feedback.empty() ? feedback : feedback.subspan(at, count)},
        first, range.count, frame, residual.subspan(at, count));
  };
  ISTHMUS_CHECK(plan.each_tile(chunk, unsealed.frames(), code));
  return unsealed;
}

Result<void> carry_chunk(const ChunkPlan& plan, std::uint32_t chunk, const CodedChunk& coded,
                         std::span<float> residual) {
  std::array<float, compress::kTileElements> decodeds;
  return plan.each_tile(
      chunk, coded.bytes(),
      [&](const ElementRange& range, std::span<const std::byte> frame, std::uint64_t first,
          std::uint64_t count) -> Result<void> {
        const auto decoded = std::span(decodeds).first(count);
        ISTHMUS_CHECK(plan.frames().decode_part(frame, range.count, first, decoded));
        const auto place = residual.subspan(plan.layout().offset(range) + first, count);
        compress::carry_all(place, decoded, place);
        return {};
      });
}

PackedChunk pack_chunk(const ChunkPlan& plan, TransferId transfer, std::uint32_t index,
                       const UnsealedChunk& chunk, bool zstd) {
  PackedChunk packed{chunk.memory(), chunk.whole(), {}};
  if (zstd) {
    packed.memory = plan.memory().take(chunk.whole().size());
    const std::span into(packed.memory.get(), chunk.whole().size());
    packed.whole = into.first(kSealBytes + plan.pack(chunk.frames(), into.subspan(kSealBytes)));
  } else {
    compress::ZstdStage::tag_raw(packed.whole.subspan(kSealBytes));
  }
  packed.hash = chunk_hash(transfer, index, packed.whole.subspan(kSealBytes));
  return packed;
}

std::vector<SealedChunk> seal_chunks(const security::Signer& signer,
                                     std::span<const PackedChunk> group) {
  std::vector<security::Digest> hashes;
  std::vector<std::span<std::byte>> wholes;
  for (const auto& chunk : group) {
    hashes.push_back(chunk.hash);
    wholes.push_back(chunk.whole);
  }
  seal_group(signer, hashes, wholes);
  std::vector<SealedChunk> sealed;
  for (const auto& chunk : group)
    sealed.push_back({SharedBytes(chunk.memory, chunk.whole), chunk.hash});
  return sealed;
}

Result<CheckedChunk> check_chunk(const ChunkPlan& plan, const security::Verifier& verifier,
                                 CheckedSeals& seals, SiteId origin, TransferId transfer,
                                 std::uint32_t index, const SharedBytes& sealed) {
  const auto bytes = sealed.bytes();
  if (index >= plan.chunks() || bytes.size() > kSealBytes + plan.payload_bytes_max(index))
    return Error{ErrorCode::bad_frame,
                 fmt::format("chunk {} of {} with {} bytes", index, plan.chunks(), bytes.size())};
  ISTHMUS_TRY(const auto hash, seals.check(verifier, origin, transfer, index, bytes));
  ISTHMUS_TRY(auto coded, plan.unpack(index, sealed.part(bytes.subspan(kSealBytes))));
  std::size_t at = 0;
  for (const auto& range : plan.ranges(index)) {
    const auto frame = coded.bytes().subspan(at, plan.frames().encoded_bytes_max(range.count));
    at += frame.size();
    ISTHMUS_CHECK(plan.frames().check(frame, range.count));
  }
  return CheckedChunk{{sealed, hash}, std::move(coded)};
}

Contribution::Contribution(std::shared_ptr<const ChunkPlan> plan, Signed announcement, Open open)
    : plan_(std::move(plan)),
      announcement_(std::move(announcement)),
      open_(open),
      transfer_(transfer_of(announcement_)),
      chunks_(plan_->chunks()),
      coded_(plan_->chunks()),
      hashes_(plan_->chunks()),
      seals_(std::make_unique<CheckedSeals>(plan_->chunks())) {}

std::vector<bool> Contribution::bitmap() const {
  std::vector<bool> bits(chunks_.size());
  for (std::size_t i = 0; i < chunks_.size(); ++i) bits[i] = has(static_cast<std::uint32_t>(i));
  return bits;
}

void Contribution::add(std::uint32_t index, SealedChunk sealed, CodedChunk coded) {
  if (has(index)) return;
  bytes_ += sealed.bytes.size();
  chunks_[index] = std::move(sealed.bytes);
  hashes_[index] = sealed.hash;
  coded_[index] = std::move(coded);
  ++count_;
}

Result<CodedChunk> Contribution::unpack(std::uint32_t index) const {
  return plan_->unpack(index, payload(index));
}

SharedBytes Contribution::payload(std::uint32_t index) const {
  ISTHMUS_ASSERT(has(index));
  return chunks_[index].part(chunks_[index].bytes().subspan(kSealBytes));
}

bool Contribution::set_close(Signed message, const Close& close) {
  if (message.signer != site() || close.transfer != transfer_ || close.tokens != open_.tokens ||
      close.base != open_.base || close.id != open_.id)
    return false;
  if (close_ && (close_->root != close.root || close_->bytes != close.bytes)) return false;
  said_last_ = close.state_root;
  std::erase_if(other_closes_,
                [&](const auto& other) { return other.first.state_root == close.state_root; });
  if (close_ && close_->state_root != close.state_root)
    other_closes_.emplace_back(*close_, *close_message_);
  close_message_ = std::move(message);
  close_ = close;
  prefer_close(preferred_root_);
  if (other_closes_.size() > kOtherClosesMax) other_closes_.erase(other_closes_.begin());
  return true;
}

void Contribution::prefer_close(const security::Digest& state_root) {
  preferred_root_ = state_root;
  const auto preferred = std::ranges::find_if(
      other_closes_, [&](const auto& other) { return other.first.state_root == state_root; });
  if (preferred == other_closes_.end()) return;
  std::swap(preferred->first, *close_);
  std::swap(preferred->second, *close_message_);
}

security::Digest Contribution::root() const { return contribution_root(hashes_); }

bool Contribution::proven() const {
  return complete() && bytes_ == close_->bytes && root() == close_->root;
}

Part Contribution::part() const {
  ISTHMUS_ASSERT(close_.has_value());
  return {.site = site(), .root = close_->root, .tokens = open_.tokens, .base = open_.base};
}

ChunkBytes Contribution::chunk(std::uint32_t index) {
  if (!chunks_[index]) return {};
  return {chunks_[index], static_cast<std::uint32_t>(4 * plan_->elements(index)),
          static_cast<std::uint32_t>(plan_->codec_bytes(index))};
}

}  // namespace isthmus::inter
