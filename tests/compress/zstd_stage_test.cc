#include "compress/zstd_stage.h"

#include <gtest/gtest.h>
#include <zstd.h>

#include <algorithm>
#include <cstring>

#include "compress/codec.h"
#include "tests/compress/values.h"

namespace isthmus::compress {
namespace {

constexpr std::byte kCanary{0xc7};

Bytes packed(ZstdStage& stage, std::span<const std::byte> bytes) {
  Bytes payload(ZstdStage::packed_bytes_max(bytes.size()));
  payload.resize(stage.pack(bytes, payload));
  return payload;
}

// Unpacks into exactly `size` bytes, and looks whether any byte behind them was touched.
Result<Bytes> unpacked(ZstdStage& stage, std::span<const std::byte> payload, std::size_t size) {
  Bytes out(size + 4096, kCanary);
  const auto result = stage.unpack(payload, std::span(out).first(size));
  EXPECT_TRUE(std::all_of(out.begin() + static_cast<std::ptrdiff_t>(size), out.end(),
                          [](std::byte b) { return b == kCanary; }));
  if (!result) {
    EXPECT_EQ(result.error().code, ErrorCode::bad_frame);
    return result.error();
  }
  out.resize(size);
  return out;
}

Bytes compressible(std::size_t count) {
  Bytes bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>((i / 7) % 11);
  return bytes;
}

// A payload of the zstd kind around any frame.
Bytes tagged(std::span<const std::byte> frame) {
  return ByteWriter().put(std::uint8_t{1}).raw(frame).take();
}

Bytes frame_of(std::span<const std::byte> bytes, bool with_size = true) {
  ZSTD_CCtx* context = ZSTD_createCCtx();
  ZSTD_CCtx_setParameter(context, ZSTD_c_contentSizeFlag, with_size ? 1 : 0);
  Bytes frame(ZSTD_compressBound(bytes.size()));
  frame.resize(ZSTD_compress2(context, frame.data(), frame.size(), bytes.data(), bytes.size()));
  ZSTD_freeCCtx(context);
  return frame;
}

TEST(ZstdStage, KeepsEveryByte) {
  ZstdStage stage;
  for (const std::size_t size : {0, 1, 2, 3, 100, 1000, 65'536, 1'000'000, 1 << 20})
    for (const auto& bytes : {compressible(size), random_bytes(size, size)}) {
      const auto payload = packed(stage, bytes);
      EXPECT_LE(payload.size(), size + 1);
      const auto back = unpacked(stage, payload, size);
      ASSERT_TRUE(back) << back.error().text();
      EXPECT_EQ(*back, bytes);
    }
}

TEST(ZstdStage, CompressesWhatGainsAndStoresTheRest) {
  ZstdStage stage;
  const auto small = packed(stage, compressible(100'000));
  EXPECT_EQ(small[0], std::byte{1});
  EXPECT_LT(small.size(), 10'000u);
  const auto noise = random_bytes(100'000, 1);
  const auto raw = packed(stage, noise);
  EXPECT_EQ(raw[0], std::byte{0});
  EXPECT_TRUE(std::equal(raw.begin() + 1, raw.end(), noise.begin(), noise.end()));
}

TEST(ZstdStage, EqualInputGivesEqualBytesWhateverCameBefore) {
  ZstdStage fresh, used;
  for (std::uint64_t seed = 0; seed < 20; ++seed) packed(used, random_bytes(5000 * seed, seed));
  EXPECT_EQ(packed(fresh, compressible(50'000)), packed(used, compressible(50'000)));
}

TEST(ZstdStage, PackWritesNoByteTooMany) {
  ZstdStage stage;
  for (const auto& bytes : {compressible(5000), random_bytes(5000, 2)}) {
    Bytes payload(ZstdStage::packed_bytes_max(bytes.size()) + 64, kCanary);
    stage.pack(bytes, std::span(payload).first(ZstdStage::packed_bytes_max(bytes.size())));
    EXPECT_TRUE(
        std::all_of(payload.end() - 64, payload.end(), [](std::byte b) { return b == kCanary; }));
  }
}

TEST(ZstdStage, EveryOtherDeclaredSizeIsRefused) {
  ZstdStage stage;
  for (const auto& bytes : {compressible(700), random_bytes(700, 3)}) {
    const auto payload = packed(stage, bytes);
    for (std::size_t size = 0; size < 1500; ++size)
      EXPECT_EQ(unpacked(stage, payload, size).has_value(), size == 700) << size;
  }
}

TEST(ZstdStage, EveryTruncationIsRefused) {
  ZstdStage stage;
  for (const auto& bytes : {compressible(3000), random_bytes(3000, 4)}) {
    const auto payload = packed(stage, bytes);
    for (std::size_t size = 0; size < payload.size(); ++size)
      ASSERT_FALSE(unpacked(stage, std::span(payload).first(size), 3000)) << size;
  }
}

TEST(ZstdStage, ChangedBytesNeverWritePastTheDeclaredSize) {
  ZstdStage stage;
  const auto values = normal_values(4096, 5);
  const auto codec = make_codec(CodecId::bf16);
  Bytes coded(codec->encoded_bytes_max(values.size()));
  ASSERT_TRUE(codec->encode(values, coded));
  const auto payload = packed(stage, coded);
  ASSERT_EQ(payload[0], std::byte{1});
  const Random random(6);
  for (std::uint64_t round = 0; round < 4000; ++round) {
    auto changed = payload;
    const auto draws = random.block(round);
    const std::size_t at = round < 64 ? round : draws[0] % changed.size();
    changed[at] ^= static_cast<std::byte>(1 + draws[1] % 255);
    (void)unpacked(stage, changed, coded.size());  // there is no checksum: it may decode
  }
}

TEST(ZstdStage, RandomBytesAreRefused) {
  ZstdStage stage;
  for (std::uint64_t seed = 0; seed < 4000; ++seed) {
    auto bytes = random_bytes(seed % 200, seed);
    EXPECT_FALSE(unpacked(stage, bytes, 500)) << seed;  // 500: no raw payload here is that long
    // The same behind a frame's magic number, which gets further.
    Bytes frame = ByteWriter().put(ZSTD_MAGICNUMBER).raw(bytes).take();
    (void)unpacked(stage, tagged(frame), 500);
  }
}

TEST(ZstdStage, UnknownTagsAreRefused) {
  ZstdStage stage;
  auto payload = packed(stage, compressible(100));
  for (int tag = 2; tag < 256; ++tag) {
    payload[0] = static_cast<std::byte>(tag);
    EXPECT_FALSE(unpacked(stage, payload, 100)) << tag;
  }
}

TEST(ZstdStage, BombsAreRefused) {
  ZstdStage stage;
  const auto honest = frame_of(Bytes(64 << 20));
  ASSERT_LT(honest.size(), 10'000u);
  EXPECT_FALSE(unpacked(stage, tagged(honest), 1 << 20));

  const auto silent = frame_of(Bytes(64 << 20), false);
  EXPECT_FALSE(unpacked(stage, tagged(silent), 1 << 20));

  // A frame that declares 1 MiB and holds 4.
  // Header: magic 4, descriptor 1, window 1 unless single-segment (descriptor bit 5), content size.
  auto liar = frame_of(Bytes(4 << 20));
  const std::uint32_t size = 1 << 20;
  const bool single_segment = (liar[4] & std::byte{0x20}) != std::byte{0};
  std::memcpy(liar.data() + (single_segment ? 5 : 6), &size, 4);
  ASSERT_EQ(ZSTD_getFrameContentSize(liar.data(), liar.size()), size);
  EXPECT_FALSE(unpacked(stage, tagged(liar), size));
}

TEST(ZstdStage, OnlyOneFrameOfTodaysFormat) {
  ZstdStage stage;
  const auto bytes = compressible(1000);
  const auto frame = frame_of(bytes);
  EXPECT_TRUE(unpacked(stage, tagged(frame), 1000));
  const auto joined = [](std::span<const std::byte> a, std::span<const std::byte> b) {
    return tagged(ByteWriter().raw(a).raw(b).take());
  };
  EXPECT_FALSE(unpacked(stage, joined(frame, frame), 2000));
  EXPECT_FALSE(unpacked(stage, joined(frame, frame), 1000));
  const Bytes skippable = ByteWriter().put(std::uint32_t{0x184D2A50}).put(std::uint32_t{0}).take();
  EXPECT_FALSE(unpacked(stage, joined(skippable, frame), 1000));
  EXPECT_FALSE(unpacked(stage, joined(frame, skippable), 1000));
  EXPECT_FALSE(unpacked(stage, tagged(skippable), 0));
  const Bytes trailing{std::byte{0}};
  EXPECT_FALSE(unpacked(stage, joined(frame, trailing), 1000));
  for (std::uint32_t version = 0x1E; version <= 0x27; ++version) {  // v0.1 to v0.7
    auto old = frame;
    old[0] = static_cast<std::byte>(version);
    EXPECT_FALSE(unpacked(stage, tagged(old), 1000));
  }
}

TEST(ZstdStage, WorksAfterARefusal) {
  ZstdStage stage;
  const auto bytes = compressible(10'000);
  const auto payload = packed(stage, bytes);
  auto bad = payload;
  for (std::size_t i = 20; i < bad.size(); ++i) bad[i] = std::byte{0xff};
  EXPECT_FALSE(unpacked(stage, bad, bytes.size()));
  EXPECT_EQ(*unpacked(stage, payload, bytes.size()), bytes);
}

}  // namespace
}  // namespace isthmus::compress
