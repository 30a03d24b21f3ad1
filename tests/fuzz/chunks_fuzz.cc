// Fuzz target: the coded bytes of contributions. The first byte chooses: a frame of one of the
// codecs, a payload of the zstd stage, or a sealed chunk, as it is or signed by its origin.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/assert.h"
#include "base/copy_to.h"
#include "inter/contribution.h"
#include "inter/sim/simulated_keys.h"
#include "tests/fuzz/fuzz_target.h"

namespace isthmus {
namespace {

using compress::CodecId;
using compress::kFrameAlignment;

constexpr CodecId kCodecs[] = {CodecId::none, CodecId::bf16, CodecId::int8};
constexpr std::uint8_t kFrame = 0, kPayload = 3, kSealed = 4, kSigned = 7, kChoices = 10;
constexpr std::size_t kValuesMax = 5000;  // more than two tiles
constexpr inter::SiteId kOrigin = 3;
constexpr inter::TransferId kTransfer = 77;

bool same(std::span<const float> a, std::span<const float> b) {
  return std::ranges::equal(std::as_bytes(a), std::as_bytes(b));
}
bool finite(std::span<const float> values) {
  return std::ranges::all_of(values, [](float x) { return std::isfinite(x); });
}

// What the codec takes is finite, the same whether all of it is decoded or part by part, and
// stays as it is when it is coded again without loss.
void frame(const compress::Codec& codec, std::span<const std::byte> bytes) {
  ByteReader in(bytes);
  const auto count = in.get<std::uint16_t>() % kValuesMax;
  std::vector<float> whole(count), parts(count);
  const bool good = codec.decode(in.rest(), whole).has_value();
  if (in.rest().size() == codec.encoded_bytes_max(count)) {
    ISTHMUS_ASSERT(codec.check(in.rest(), count).has_value() == good);
    bool good_parts = true;
    for (std::size_t at = 0; at < count; at += kFrameAlignment)
      good_parts &= codec
                        .decode_part(in.rest(), count, at,
                                     std::span(parts).subspan(
                                         at, std::min<std::size_t>(kFrameAlignment, count - at)))
                        .has_value();
    ISTHMUS_ASSERT(good_parts == good);
  }
  if (!good) return;
  ISTHMUS_ASSERT(finite(whole) && same(whole, parts));
  Bytes again(codec.encoded_bytes_max(count));
  const auto size = codec.encode(whole, again);
  if (codec.id() == CodecId::int8 && !size) return;  // a block's largest may just not come back
  ISTHMUS_ASSERT(size && *size == again.size());
  if (codec.id() != CodecId::int8) ISTHMUS_ASSERT(std::ranges::equal(again, in.rest()));
}

void payload(std::span<const std::byte> bytes) {
  static compress::ZstdStage stage;
  ByteReader in(bytes);
  Bytes unpacked(in.get<std::uint16_t>());
  if (!stage.unpack(in.rest(), unpacked)) return;
  Bytes packed(compress::ZstdStage::packed_bytes_max(unpacked.size())), again(unpacked.size());
  packed.resize(stage.pack(unpacked, packed));
  ISTHMUS_ASSERT(stage.unpack(packed, again) && again == unpacked);
}

const inter::ModelLayout& layout() {
  static const auto made = *inter::ModelLayout::make(
      {{"a", Shape{3, 300}, 0}, {"b", Shape{33}, 0}, {"c", Shape{2, 2, 2, 40}, 0}});
  return made;
}
const inter::ChunkPlan& plan(CodecId codec) {
  static const inter::ChunkPlan plans[] = {{layout(), 0, 512, kCodecs[0]},
                                           {layout(), 0, 512, kCodecs[1]},
                                           {layout(), 0, 512, kCodecs[2]}};
  return plans[static_cast<std::size_t>(codec)];
}

// What was checked can be decoded, and all it does to a state is finite.
void sealed(CodecId codec, bool sign, std::span<const std::byte> bytes) {
  ByteReader in(bytes);
  const std::uint32_t index = in.get<std::uint8_t>();
  Bytes chunk(sign ? inter::kSealBytes : 0);
  chunk.insert(chunk.end(), in.rest().begin(), in.rest().end());
  if (sign) {
    std::vector<security::Digest> hashes(index % inter::kSealedTogether + 1);
    hashes.back() = inter::chunk_hash(kTransfer, index, in.rest());
    std::vector<Bytes> others(hashes.size() - 1, Bytes(inter::kSealBytes));
    std::vector<std::span<std::byte>> group(others.begin(), others.end());
    group.push_back(chunk);
    inter::seal_group(inter::sim::SimulatedSigner(kOrigin), hashes, group);
  }
  inter::CheckedSeals seals(plan(codec).chunks());
  const auto checked = inter::check_chunk(plan(codec), inter::sim::SimulatedVerifier(), seals,
                                          kOrigin, kTransfer, index, std::move(chunk));
  if (!checked) return;
  std::vector<float> values(layout().elements());
  ISTHMUS_ASSERT(inter::carry_chunk(plan(codec), index, checked->coded, values));
  ISTHMUS_ASSERT(finite(values));
}

std::vector<float> sample_values(std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i)
    values[i] = std::ldexp(static_cast<float>(i % 37) - 18.0f, static_cast<int>(i % 23) - 11);
  return values;
}

}  // namespace

std::vector<Bytes> fuzz_seeds() {
  std::vector<Bytes> seeds;
  compress::ZstdStage stage;
  for (std::size_t c = 0; c < std::size(kCodecs); ++c) {
    const auto codec = compress::make_codec(kCodecs[c]);
    for (const std::size_t count : {1, 255, 257, 1030}) {
      Bytes coded(codec->encoded_bytes_max(count));
      coded.resize(*codec->encode(sample_values(count), coded));
      seeds.push_back(ByteWriter()
                          .put(static_cast<std::uint8_t>(kFrame + c))
                          .put(static_cast<std::uint16_t>(count))
                          .raw(coded)
                          .take());
      if (count < 1000) continue;
      Bytes packed(compress::ZstdStage::packed_bytes_max(coded.size()));
      packed.resize(stage.pack(coded, packed));
      seeds.push_back(ByteWriter()
                          .put(kPayload)
                          .put(static_cast<std::uint16_t>(coded.size()))
                          .raw(packed)
                          .take());
    }
    const auto& of = plan(kCodecs[c]);
    for (std::uint32_t i = 0; i < of.chunks(); ++i)
      for (const bool zstd : {false, true}) {
        Bytes coded;
        for (const auto& range : of.ranges(i)) {
          Bytes one(codec->encoded_bytes_max(range.count));
          one.resize(*codec->encode(sample_values(range.count), one));
          coded.insert(coded.end(), one.begin(), one.end());
        }
        Bytes packed(compress::ZstdStage::packed_bytes_max(coded.size()));
        if (zstd) {
          packed.resize(of.pack(coded, packed));
        } else {
          compress::ZstdStage::tag_raw(packed);
          copy_to(coded, packed.begin() + compress::ZstdStage::kTagBytes);
          packed.resize(compress::ZstdStage::kTagBytes + coded.size());
        }
        seeds.push_back(ByteWriter()
                            .put(static_cast<std::uint8_t>(kSigned + c))
                            .put(static_cast<std::uint8_t>(i))
                            .raw(packed)
                            .take());
      }
  }
  return seeds;
}

}  // namespace isthmus

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace isthmus;
  if (size == 0) return 0;
  const auto rest = fuzz_input(data, size).subspan(1);
  const auto choice = data[0] % kChoices;
  static const auto codecs = [] {
    std::vector<std::unique_ptr<compress::Codec>> all;
    for (const auto id : kCodecs) all.push_back(compress::make_codec(id));
    return all;
  }();
  if (choice < kPayload)
    frame(*codecs[choice - kFrame], rest);
  else if (choice == kPayload)
    payload(rest);
  else
    sealed(kCodecs[(choice - kSealed) % 3], choice >= kSigned, rest);
  return 0;
}
