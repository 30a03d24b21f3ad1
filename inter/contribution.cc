#include "inter/contribution.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/assert.h"
#include "compress/error_feedback.h"

namespace isthmus::inter {
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
}

std::uint64_t ChunkPlan::payload_bytes_max(std::uint32_t chunk) const {
  return compress::ZstdStage::packed_bytes_max(codec_bytes_[chunk]);
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

Result<Bytes> ChunkPlan::encode(std::uint32_t chunk, std::span<const float> flat,
                                std::span<float> decoded) const {
  Bytes coded(codec_bytes_[chunk]);
  std::size_t at = 0, element = 0;
  for (const auto& range : chunks_[chunk]) {
    const auto values = flat.subspan(layout_.offset(range), range.count);
    const auto out = std::span(coded).subspan(at);
    ISTHMUS_TRY(const auto bytes, codec_->encode(values, out));
    ISTHMUS_ASSERT(bytes ==
                   codec_->encoded_bytes_max(range.count));  // chunks have no lengths inside
    ISTHMUS_CHECK(codec_->decode(out.first(bytes), decoded.subspan(element, range.count)));
    at += bytes;
    element += range.count;
  }
  Bytes payload(compress::ZstdStage::packed_bytes_max(coded.size()));
  Stage stage(*this);
  payload.resize(stage->pack(coded, payload));
  return payload;
}

Result<void> ChunkPlan::decode(std::uint32_t chunk, std::span<const std::byte> payload,
                               std::span<float> decoded) const {
  if (payload.size() > payload_bytes_max(chunk))
    return Error{ErrorCode::bad_frame, fmt::format("a chunk of {} bytes, at most {} are declared",
                                                   payload.size(), payload_bytes_max(chunk))};
  Bytes coded(codec_bytes_[chunk]);
  {
    Stage stage(*this);
    ISTHMUS_CHECK(stage->unpack(payload, coded));
  }
  std::size_t at = 0, element = 0;
  for (const auto& range : chunks_[chunk]) {
    const auto bytes = codec_->encoded_bytes_max(range.count);
    ISTHMUS_CHECK(
        codec_->decode(std::span(coded).subspan(at, bytes), decoded.subspan(element, range.count)));
    at += bytes;
    element += range.count;
  }
  return {};
}

security::Digest chunk_hash(TransferId transfer, std::uint32_t index,
                            std::span<const std::byte> payload) {
  security::Hasher hasher;
  hasher.update(ByteWriter().put(transfer).put(index).view());
  hasher.update(payload);
  return hasher.finish();
}

security::Digest contribution_root(std::span<const security::Digest> chunk_hashes) {
  security::Hasher hasher;
  hasher.update(bytes_of("isthmus contribution v1"));
  for (const auto& hash : chunk_hashes) hasher.update(hash.bytes);
  return hasher.finish();
}

Result<Bytes> code_chunk(const ChunkPlan& plan, std::uint32_t chunk, std::span<const float> agreed,
                         std::span<const float> feedback, std::span<float> parameters,
                         std::span<float> residual) {
  for (const auto& range : plan.ranges(chunk)) {
    const auto at = plan.layout().offset(range);
    const auto quantity = parameters.subspan(at, range.count);
    compress::form_pseudo_gradient(agreed.subspan(at, range.count), quantity, quantity);
    if (!feedback.empty())
      compress::form_quantity(quantity, feedback.subspan(at, range.count), quantity);
  }
  std::vector<float> decoded(plan.elements(chunk));
  ISTHMUS_TRY(auto payload, plan.encode(chunk, parameters, decoded));
  std::size_t element = 0;
  for (const auto& range : plan.ranges(chunk)) {
    const auto at = plan.layout().offset(range);
    compress::form_residual(parameters.subspan(at, range.count),
                            std::span(decoded).subspan(element, range.count),
                            residual.subspan(at, range.count));
    element += range.count;
  }
  return payload;
}

Result<void> carry_chunk(const ChunkPlan& plan, std::uint32_t chunk,
                         std::span<const std::byte> payload, std::span<float> residual) {
  std::vector<float> decoded(plan.elements(chunk));
  ISTHMUS_CHECK(plan.decode(chunk, payload, decoded));
  std::size_t element = 0;
  for (const auto& range : plan.ranges(chunk)) {
    const auto place = residual.subspan(plan.layout().offset(range), range.count);
    compress::carry_all(place, std::span(decoded).subspan(element, range.count), place);
    element += range.count;
  }
  return {};
}

Bytes seal_chunk(const security::Signer& signer, const security::Digest& hash,
                 std::span<const std::byte> payload) {
  const auto signature = signer.sign(security::context::chunk, hash.bytes);
  ByteWriter out;
  out.raw(signature.bytes).raw(payload);
  return out.take();
}

Result<security::Digest> check_chunk(const ChunkPlan& plan, const security::Verifier& verifier,
                                     SiteId origin, TransferId transfer, std::uint32_t index,
                                     std::span<const std::byte> sealed) {
  if (index >= plan.chunks() || sealed.size() < kSealBytes ||
      sealed.size() - kSealBytes > plan.payload_bytes_max(index))
    return Error{ErrorCode::bad_frame,
                 fmt::format("chunk {} of {} with {} bytes", index, plan.chunks(), sealed.size())};
  security::Signature signature;
  std::copy_n(sealed.begin(), kSealBytes, signature.bytes.begin());
  const auto payload = sealed.subspan(kSealBytes);
  const auto hash = chunk_hash(transfer, index, payload);
  if (!verifier.verify(origin, security::context::chunk, hash.bytes, signature))
    return Error{ErrorCode::unauthenticated,
                 fmt::format("chunk {} is not signed by site {}", index, origin)};
  std::vector<float> values(plan.elements(index));
  ISTHMUS_CHECK(plan.decode(index, payload, values));
  return hash;
}

Contribution::Contribution(std::shared_ptr<const ChunkPlan> plan, Signed announcement, Open open)
    : plan_(std::move(plan)),
      announcement_(std::move(announcement)),
      open_(open),
      transfer_(transfer_of(announcement_)),
      chunks_(plan_->chunks()),
      hashes_(plan_->chunks()) {}

std::vector<bool> Contribution::bitmap() const {
  std::vector<bool> bits(chunks_.size());
  for (std::size_t i = 0; i < chunks_.size(); ++i) bits[i] = chunks_[i] != nullptr;
  return bits;
}

void Contribution::add(std::uint32_t index, std::shared_ptr<const Bytes> sealed,
                       const security::Digest& hash) {
  if (chunks_[index]) return;
  bytes_ += sealed->size();
  chunks_[index] = std::move(sealed);
  hashes_[index] = hash;
  ++count_;
}

std::span<const std::byte> Contribution::payload(std::uint32_t index) const {
  ISTHMUS_ASSERT(chunks_[index] != nullptr);
  return std::span(*chunks_[index]).subspan(kSealBytes);
}

bool Contribution::set_close(Signed message, const Close& close) {
  if (message.signer != site() || close.transfer != transfer_ || close.tokens != open_.tokens ||
      close.base != open_.base || close.id != open_.id)
    return false;
  if (close_ && close_->root != close.root) return false;
  close_message_ = std::move(message);  // newer: its state root may be another
  close_ = close;
  return true;
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
