#include "compress/codec.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/block_int8.h"
#include "tests/compress/values.h"

namespace isthmus::compress {
namespace {

using testing::HasSubstr;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kMax = std::numeric_limits<float>::max();

// Around blocks, batches and nothing.
const std::size_t kCounts[] = {0,   1,    2,    255,  256,  257,  511,
                               513, 2047, 2048, 2049, 4096, 4097, 10'000};

Bytes encoded(const Codec& codec, std::span<const float> values) {
  Bytes bytes(codec.encoded_bytes_max(values.size()));
  const auto size = codec.encode(values, bytes);
  EXPECT_TRUE(size);
  bytes.resize(*size);
  return bytes;
}

bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}

// --- What every codec keeps

class CodecContract : public testing::TestWithParam<CodecId> {
 protected:
  std::unique_ptr<Codec> codec_ = make_codec(GetParam());
};

TEST_P(CodecContract, KnowsItsId) {
  EXPECT_EQ(codec_->id(), GetParam());
  EXPECT_EQ(*parse_codec(to_string(GetParam())), GetParam());
  EXPECT_EQ(*codec_of_wire(static_cast<std::uint8_t>(GetParam())), GetParam());
}

TEST_P(CodecContract, DecodesItsOwnBytes) {
  for (const auto count : kCounts) {
    const auto values = normal_values(count, count);
    const auto bytes = encoded(*codec_, values);
    EXPECT_LE(bytes.size(), codec_->encoded_bytes_max(count));
    std::vector<float> decoded(count, kNan);
    ASSERT_TRUE(codec_->decode(bytes, decoded)) << count;
    for (std::size_t i = 0; i < count; ++i)
      ASSERT_NEAR(decoded[i], values[i], 0.01 * std::abs(values[i]) + 0.5 / 127) << i;
  }
}

TEST_P(CodecContract, WritesNoByteTooMany) {
  for (const auto count : kCounts) {
    Bytes bytes(codec_->encoded_bytes_max(count) + 16, std::byte{0xab});
    const auto used = codec_->encode(normal_values(count, 1), bytes);
    ASSERT_TRUE(used);
    EXPECT_TRUE(std::all_of(bytes.begin() + static_cast<std::ptrdiff_t>(*used), bytes.end(),
                            [](std::byte b) { return b == std::byte{0xab}; }));
    std::vector<float> decoded(count + 4, 7.0F);
    ASSERT_TRUE(codec_->decode(std::span(bytes).first(*used), std::span(decoded).first(count)));
    EXPECT_TRUE(std::all_of(decoded.end() - 4, decoded.end(), [](float v) { return v == 7.0F; }));
  }
}

TEST_P(CodecContract, NeedsNoAlignment) {
  const auto values = normal_values(3000, 2);
  const auto bytes = encoded(*codec_, values);
  std::vector<float> expected(values.size());
  ASSERT_TRUE(codec_->decode(bytes, expected));
  for (std::size_t offset = 1; offset < 8; ++offset) {
    Bytes shifted(codec_->encoded_bytes_max(values.size()) + offset);
    const auto place = std::span(shifted).subspan(offset);
    ASSERT_TRUE(codec_->encode(values, place));
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), place.begin()));
    std::vector<float> decoded(values.size());
    ASSERT_TRUE(codec_->decode(place.first(bytes.size()), decoded));
    EXPECT_TRUE(same_bits(decoded, expected));
  }
}

TEST_P(CodecContract, AnyCutAtTheAlignmentGivesTheSameValues) {
  const auto values = normal_values(2500, 3);
  std::vector<float> whole(values.size()), parts(values.size());
  ASSERT_TRUE(codec_->decode(encoded(*codec_, values), whole));
  for (std::size_t cut = 0; cut < values.size(); cut += kFrameAlignment) {
    const auto source = std::span<const float>(values);
    ASSERT_TRUE(codec_->decode(encoded(*codec_, source.first(cut)), std::span(parts).first(cut)));
    ASSERT_TRUE(
        codec_->decode(encoded(*codec_, source.subspan(cut)), std::span(parts).subspan(cut)));
    EXPECT_TRUE(same_bits(parts, whole)) << cut;
  }
}

TEST_P(CodecContract, DecodedValuesAreKeptOnceMore) {
  // A site that decodes what it sent and sends that again loses nothing further.
  std::vector<float> once(3000), twice(3000);
  ASSERT_TRUE(codec_->decode(encoded(*codec_, normal_values(3000, 4)), once));
  ASSERT_TRUE(codec_->decode(encoded(*codec_, once), twice));
  for (std::size_t i = 0; i < once.size(); ++i)
    ASSERT_NEAR(once[i], twice[i], std::abs(once[i]) * 1e-6) << i;
}

TEST_P(CodecContract, RefusesToEncodeWhatIsNotFinite) {
  Bytes bytes(codec_->encoded_bytes_max(5000));
  for (const float bad : {kNan, -kNan, kInfinity, -kInfinity})
    for (const std::size_t at : {0, 1, 255, 256, 2048, 4095, 4999}) {
      auto values = normal_values(5000, 5);
      values[at] = bad;
      const auto used = codec_->encode(values, bytes);
      ASSERT_FALSE(used) << at;
      EXPECT_EQ(used.error().code, ErrorCode::non_finite);
    }
}

TEST_P(CodecContract, RefusesEveryOtherSize) {
  for (const std::size_t count : {1, 255, 256, 300, 513}) {
    auto bytes = encoded(*codec_, normal_values(count, 6));
    std::vector<float> decoded(count);
    for (std::size_t size = 0; size < bytes.size(); ++size) {
      const auto refused = codec_->decode(std::span(bytes).first(size), decoded);
      ASSERT_FALSE(refused) << size;
      EXPECT_EQ(refused.error().code, ErrorCode::bad_frame);
    }
    for (std::size_t more = 1; more < 300; ++more) {
      bytes.push_back(std::byte{0});
      ASSERT_FALSE(codec_->decode(bytes, decoded)) << more;
    }
  }
}

TEST_P(CodecContract, RandomBytesDecodeToFiniteValuesOrNotAtAll) {
  int refused = 0;
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    const std::size_t count = 1 + seed % 700;
    const auto bytes = random_bytes(codec_->encoded_bytes_max(count), seed);
    std::vector<float> decoded(count);
    if (const auto result = codec_->decode(bytes, decoded); !result) {
      EXPECT_EQ(result.error().code, ErrorCode::bad_frame);
      ++refused;
      continue;
    }
    for (const float value : decoded) ASSERT_TRUE(std::isfinite(value)) << "seed " << seed;
  }
  EXPECT_GT(refused, 0);
}

TEST_P(CodecContract, AChangeInOnePassIsItsPartsOneAfterAnother) {
  constexpr std::size_t kFrame = 2 * kTileElements + 300;
  const auto agreed = normal_values(kFrame, 7), contributed = normal_values(kFrame, 8);
  for (const bool with_feedback : {false, true}) {
    const auto feedback = with_feedback ? normal_values(kFrame, 9) : std::vector<float>();
    std::vector<float> quantity(kFrame), decoded(kFrame), want(kFrame), residual(kFrame);
    for (std::size_t i = 0; i < kFrame; ++i) {
      volatile float difference = agreed[i] - contributed[i];
      quantity[i] = with_feedback ? difference + feedback[i] : difference;
    }
    const auto whole = encoded(*codec_, quantity);
    ASSERT_TRUE(codec_->decode(whole, decoded));
    for (std::size_t i = 0; i < kFrame; ++i) want[i] = quantity[i] - decoded[i];
    Bytes frame(whole.size());
    for (std::size_t at = 0; at < kFrame; at += kTileElements) {
      const auto part = [&](auto& values) {
        return std::span(values).subspan(at, std::min(kTileElements, kFrame - at));
      };
      const Codec::Change change{part(agreed), part(contributed),
                                 with_feedback ? part(feedback) : std::span<const float>()};
      ASSERT_TRUE(codec_->encode_change(change, at, kFrame, frame, part(residual)));
    }
    EXPECT_EQ(frame, whole);
    EXPECT_TRUE(same_bits(residual, want));
  }
}

TEST_P(CodecContract, RefusesAChangeThatIsNotFinite) {
  const auto agreed = normal_values(kTileElements, 10);
  Bytes frame(codec_->encoded_bytes_max(kTileElements));
  std::vector<float> residual(kTileElements);
  for (const float bad : {kNan, -kNan, kInfinity, -kInfinity})
    for (const std::size_t at : {std::size_t{0}, std::size_t{255}, kTileElements - 1}) {
      auto contributed = normal_values(kTileElements, 11);
      contributed[at] = bad;
      const auto refused =
          codec_->encode_change({agreed, contributed, {}}, 0, kTileElements, frame, residual);
      ASSERT_FALSE(refused) << at;
      EXPECT_EQ(refused.error().code, ErrorCode::non_finite);
      EXPECT_THAT(refused.error().text(), HasSubstr("not finite"));
    }
}

// Also of more parts than one pass takes.
TEST_P(CodecContract, AStepIsThatOfDecodedValues) {
  constexpr std::size_t kFrame = kTileElements + 300;
  const auto agreed = normal_values(kFrame, 14);
  for (const std::size_t count : {1, 2, 17}) {
    std::vector<Bytes> frames;
    std::vector<Codec::WeightedFrame> parts;
    std::vector<float> value(kFrame), delta(kFrame);
    for (std::size_t p = 0; p < count; ++p) {
      frames.push_back(encoded(*codec_, normal_values(kFrame, 20 + p)));
      parts.push_back({{}, 0.7F / static_cast<float>(p + 1)});
      ASSERT_TRUE(codec_->decode(frames[p], value));
      for (std::size_t i = 0; i < kFrame; ++i) {
        volatile float product = parts[p].weight * value[i];
        delta[i] = p == 0 ? product : delta[i] + product;
      }
    }
    for (std::size_t p = 0; p < count; ++p) parts[p].frame = frames[p];
    std::vector<float> want(kFrame), got(kFrame), at_hand(kTileElements);
    for (std::size_t i = 0; i < kFrame; ++i) want[i] = agreed[i] - delta[i];
    const auto step_at = [&](std::size_t at) {
      const auto size = std::min(kTileElements, kFrame - at);
      return kernels::OuterStep{.agreed = std::span(agreed).subspan(at, size),
                                .momentum = {},
                                .next_agreed = std::span(got).subspan(at, size),
                                .next_momentum = {},
                                .agreed_at_hand = std::span(at_hand).first(size),
                                .momentum_at_hand = {}};
    };
    for (std::size_t at = 0; at < kFrame; at += kTileElements)
      ASSERT_TRUE(codec_->decode_step(parts, kFrame, at, step_at(at)));
    EXPECT_TRUE(same_bits(got, want)) << count;
    parts.back().frame = parts.back().frame.first(9);
    EXPECT_EQ(codec_->decode_step(parts, kFrame, 0, step_at(0)).error().code, ErrorCode::bad_frame);
  }
}

INSTANTIATE_TEST_SUITE_P(All, CodecContract,
                         testing::Values(CodecId::none, CodecId::bf16, CodecId::int8),
                         [](const auto& tested) { return std::string(to_string(tested.param)); });

// --- Each against a reference in double precision

TEST(Codec, NamesAndNumbers) {
  EXPECT_THAT(parse_codec("int4").error().text(), HasSubstr("none, bf16 and int8"));
  EXPECT_EQ(parse_codec("").error().code, ErrorCode::invalid_argument);
  // The wire's; they stay.
  EXPECT_EQ(static_cast<int>(CodecId::none), 0);
  EXPECT_EQ(static_cast<int>(CodecId::bf16), 1);
  EXPECT_EQ(static_cast<int>(CodecId::int8), 2);
  for (int id = 3; id < 256; ++id)
    EXPECT_EQ(codec_of_wire(static_cast<std::uint8_t>(id)).error().code, ErrorCode::unsupported);
}

TEST(F32Codec, KeepsEveryBit) {
  std::vector<float> values = normal_values(1000, 7);
  values.insert(values.end(), {0.0F, -0.0F, kLargestValue, -kLargestValue,
                               std::numeric_limits<float>::denorm_min()});
  std::vector<float> decoded(values.size());
  ASSERT_TRUE(
      make_codec(CodecId::none)->decode(encoded(*make_codec(CodecId::none), values), decoded));
  EXPECT_TRUE(same_bits(values, decoded));
}

TEST(Bf16Codec, LayoutIsHighPlaneThenLowPlane) {
  // 1.0 is 3f80, -2.5 is c020, 2^-126 is 0080.
  const float values[] = {1.0F, -2.5F, 0x1p-126F};
  const auto bytes = encoded(*make_codec(CodecId::bf16), values);
  const Bytes expected{std::byte{0x3f}, std::byte{0xc0}, std::byte{0x00},
                       std::byte{0x80}, std::byte{0x20}, std::byte{0x80}};
  EXPECT_EQ(bytes, expected);
}

TEST(Bf16Codec, IsTheNearestOfEightBits) {
  const auto codec = make_codec(CodecId::bf16);
  auto values = normal_values(20'000, 8);
  values.insert(values.end(), {kLargestValue, -kLargestValue, std::nextafter(kLargestValue, 0.0F)});
  std::vector<float> decoded(values.size());
  ASSERT_TRUE(codec->decode(encoded(*codec, values), decoded));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double x = values[i];
    // The nearest multiple of 2^(exponent - 7), ties to even, in double precision.
    int exponent = 0;
    std::frexp(x, &exponent);
    const double unit = std::ldexp(1.0, exponent - 8);
    ASSERT_EQ(static_cast<double>(decoded[i]), std::nearbyint(x / unit) * unit) << i;
    ASSERT_LE(std::abs(decoded[i] - x), std::abs(x) * 0x1p-8);
  }
}

TEST(Bf16Codec, RefusesEveryPatternAboveTheLargest) {
  const auto codec = make_codec(CodecId::bf16);
  for (unsigned bits = 0; bits < 65536; ++bits) {
    Bytes bytes(2 * 300, std::byte{0});
    const std::size_t at = bits % 300;
    bytes[at] = static_cast<std::byte>(bits >> 8);
    bytes[300 + at] = static_cast<std::byte>(bits);
    std::vector<float> decoded(300);
    const bool allowed = std::abs(std::bit_cast<float>(bits << 16)) <= kLargestValue;
    ASSERT_EQ(codec->decode(bytes, decoded).has_value(), allowed) << bits;
    if (allowed) {
      ASSERT_EQ(std::bit_cast<std::uint32_t>(decoded[at]), bits << 16);
    }
  }
}

TEST(Int8Codec, LayoutIsScalesThenCodes) {
  std::vector<float> values(257, 0.0F);
  values[0] = 254.0F;  // scale 2
  values[1] = -3.0F;   // -1.5 rounds to -2
  values[2] = 1.0F;    // 0.5 rounds to 0
  values[256] = -127.0F;
  const auto bytes = encoded(*make_codec(CodecId::int8), values);
  ASSERT_EQ(bytes.size(), 2 * 4 + 257u);
  ByteReader reader(bytes);
  EXPECT_EQ(reader.get<float>(), 2.0F);
  EXPECT_EQ(reader.get<float>(), 1.0F);
  EXPECT_EQ(reader.get<std::int8_t>(), 127);
  EXPECT_EQ(reader.get<std::int8_t>(), -2);
  EXPECT_EQ(reader.get<std::int8_t>(), 0);
  reader.raw(253);
  EXPECT_EQ(reader.get<std::int8_t>(), -127);
}

TEST(Int8Codec, MatchesTheReference) {
  const auto codec = make_codec(CodecId::int8);
  for (const auto count : kCounts) {
    auto values = normal_values(count, 100 + count);
    for (std::size_t i = 256; i < std::min<std::size_t>(512, count); ++i)
      values[i] = 0;  // a block of zeros
    const auto bytes = encoded(*codec, values);
    std::vector<float> decoded(count);
    ASSERT_TRUE(codec->decode(bytes, decoded));
    for (std::size_t block = 0; block < count; block += kernels::kInt8Block) {
      const std::size_t end = std::min(block + kernels::kInt8Block, count);
      double largest = 0;
      for (std::size_t i = block; i < end; ++i)
        largest = std::max(largest, std::abs(double{values[i]}));
      // Quotients and products of f32 in double, rounded once more: what one f32 operation gives.
      const auto scale = static_cast<float>(largest / 127.0);
      for (std::size_t i = block; i < end; ++i) {
        const auto quotient =
            scale == 0 ? 0.0F : static_cast<float>(double{values[i]} / double{scale});
        const double code = std::clamp(std::nearbyint(double{quotient}), -127.0, 127.0);
        ASSERT_EQ(decoded[i], static_cast<float>(code * double{scale})) << i;
        ASSERT_LE(std::abs(double{decoded[i]} - values[i]), 0.50001 * scale) << i;
      }
    }
  }
}

TEST(Int8Codec, RefusesHostileScales) {
  const auto codec = make_codec(CodecId::int8);
  const std::size_t count = 20 * 256 + 9;  // more than a batch
  const auto good = encoded(*codec, normal_values(count, 9));
  std::vector<float> decoded(count);
  ASSERT_TRUE(codec->decode(good, decoded));
  for (const float bad :
       {-1.0F, -0.0F, -0x1p-149F, kInfinity, -kInfinity, kNan, -kNan, kMax, 0x1p57F})
    for (std::size_t block = 0; block <= 20; ++block) {
      auto bytes = good;
      std::memcpy(bytes.data() + 4 * block, &bad, 4);
      const auto refused = codec->decode(bytes, decoded);
      ASSERT_FALSE(refused) << bad << " in block " << block;
      EXPECT_EQ(refused.error().code, ErrorCode::bad_frame);
    }
}

TEST(Int8Codec, TheLargestScaleIsAllowedUnderEveryCode) {
  const auto codec = make_codec(CodecId::int8);
  for (const float scale : {0.0F, 0x1p-149F, std::nextafter(0x1p57F, 0.0F)}) {
    Bytes bytes(4 + 256);
    std::memcpy(bytes.data(), &scale, 4);
    for (std::size_t code = 0; code < 256; ++code) bytes[4 + code] = static_cast<std::byte>(code);
    std::vector<float> decoded(256);
    ASSERT_TRUE(codec->decode(bytes, decoded));
    for (std::size_t code = 0; code < 256; ++code)
      ASSERT_EQ(decoded[code], static_cast<float>(double{scale} * static_cast<std::int8_t>(code)));
  }
}

TEST(Int8Codec, RefusesToEncodeWhatWouldComeBackTooLarge) {
  const auto codec = make_codec(CodecId::int8);
  Bytes bytes(codec->encoded_bytes_max(600));
  std::vector<float> values(600, 1.0F);
  values[300] = 126.5F * 0x1p57F;
  EXPECT_TRUE(codec->encode(values, bytes));
  for (const float bad : {127.0F * 0x1p57F, kMax, -kMax}) {
    values[300] = bad;
    EXPECT_EQ(codec->encode(values, bytes).error().code, ErrorCode::non_finite);
  }
}

TEST(Int8Codec, TinyBlocksComeBackAsZero) {
  const std::vector<float> values(256, std::numeric_limits<float>::denorm_min());
  std::vector<float> decoded(256, 1.0F);
  const auto codec = make_codec(CodecId::int8);
  ASSERT_TRUE(codec->decode(encoded(*codec, values), decoded));
  EXPECT_TRUE(std::all_of(decoded.begin(), decoded.end(), [](float v) { return v == 0; }));
}

}  // namespace
}  // namespace isthmus::compress
