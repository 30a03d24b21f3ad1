#include "kernels/block_int8.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/outer_arithmetic.h"
#include "tests/kernels/outer_step_reference.h"

namespace isthmus::kernels {
namespace {

struct Int8Blocks {
  std::vector<float> scales;
  std::vector<std::int8_t> codes;
};

Int8Blocks encode_reference(const std::vector<float>& values) {
  Int8Blocks out{std::vector<float>(int8_blocks(values.size())),
                 std::vector<std::int8_t>(values.size())};
  for (std::size_t block = 0; block < out.scales.size(); ++block) {
    const std::size_t first = block * kInt8Block;
    const std::size_t end = std::min(first + kInt8Block, values.size());
    float largest = 0;
    for (std::size_t i = first; i < end; ++i) largest = std::max(largest, std::fabs(values[i]));
    out.scales[block] = largest / 127.0F;
    for (std::size_t i = first; i < end; ++i) {
      if (out.scales[block] == 0.0F) continue;
      const float quotient = values[i] / out.scales[block];
      out.codes[i] =
          static_cast<std::int8_t>(std::nearbyint(std::min(std::max(quotient, -127.0F), 127.0F)));
    }
  }
  return out;
}

void expect_int8(const std::vector<float>& values) {
  const Int8Blocks want = encode_reference(values);
  Int8Blocks got{std::vector<float>(want.scales.size(), 5.0F),
                 std::vector<std::int8_t>(values.size(), 99)};
  int8_encode(values, got.scales, got.codes);
  EXPECT_TRUE(same_bits(got.scales, want.scales)) << values.size();
  EXPECT_TRUE(same_bits(got.codes, want.codes)) << values.size();

  std::vector<float> decoded(values.size());
  std::vector<float> want_decoded(values.size());
  int8_decode(want.codes, want.scales, decoded);
  for (std::size_t i = 0; i < values.size(); ++i)
    want_decoded[i] = static_cast<float>(want.codes[i]) * want.scales[i / kInt8Block];
  EXPECT_TRUE(same_bits(decoded, want_decoded)) << values.size();
  EXPECT_TRUE(all_finite(decoded));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double scale = want.scales[i / kInt8Block];
    // Half a step, and what the scale itself was rounded by where it is subnormal.
    EXPECT_LE(std::fabs(static_cast<double>(decoded[i]) - static_cast<double>(values[i])),
              scale * 0.50001 + 128 * 0x1p-149);
  }
}

TEST(BlockInt8, IsTheNearest) {
  on_every_target([] {
    for (const std::size_t length : {1, 5, 255, 256, 257, 512, 1000}) {
      expect_int8(mixed_values("int8", length));
      expect_int8(std::vector<float>(length, 0.0F));
      expect_int8(std::vector<float>(length, value_of(1)));    // its scale rounds to 0
      expect_int8(std::vector<float>(length, value_of(200)));  // a subnormal scale
      expect_int8(std::vector<float>(length, -0x1.fffffep126F));
    }
    // Ties: with a largest value of 127 the scale is 1, so halves must go to even.
    std::vector<float> ties = {127.0F, 0.5F, 1.5F, 2.5F, -0.5F, -1.5F, -2.5F, 126.5F, 0.49999997F};
    std::vector<float> scales(1);
    std::vector<std::int8_t> codes(ties.size());
    int8_encode(ties, scales, codes);
    EXPECT_EQ(codes, (std::vector<std::int8_t>{127, 0, 2, 2, 0, -2, -2, 126, 0}));
  });
}

struct Int8Change {
  std::vector<float> quantity, residual;
  Int8Blocks blocks;
};

Int8Change change_reference(const std::vector<float>& agreed, const std::vector<float>& contributed,
                            const std::vector<float>& feedback) {
  Int8Change want{agreed, agreed, {}};
  for (std::size_t i = 0; i < agreed.size(); ++i) {
    volatile float difference = agreed[i] - contributed[i];
    want.quantity[i] = feedback.empty() ? difference : difference + feedback[i];
  }
  want.blocks = encode_reference(want.quantity);
  for (std::size_t i = 0; i < agreed.size(); ++i) {
    volatile float decoded =
        static_cast<float>(want.blocks.codes[i]) * want.blocks.scales[i / kInt8Block];
    want.residual[i] = want.quantity[i] - decoded;
  }
  return want;
}

void expect_int8_change(const std::vector<float>& agreed, const std::vector<float>& contributed,
                        const std::vector<float>& feedback) {
  const auto length = agreed.size();
  const auto want = change_reference(agreed, contributed, feedback);
  Int8Blocks got{std::vector<float>(want.blocks.scales.size(), 5.0F),
                 std::vector<std::int8_t>(length, 99)};
  std::vector<float> residual(length, 7.0F);
  int8_encode_change(agreed, contributed, feedback, got.scales, got.codes, residual);
  EXPECT_TRUE(same_bits(got.scales, want.blocks.scales)) << length;
  EXPECT_TRUE(same_bits(got.codes, want.blocks.codes)) << length;
  EXPECT_TRUE(same_bits(residual, want.residual)) << length;
  if (feedback.empty()) return;
  residual = feedback;  // in its memory
  int8_encode_change(agreed, contributed, residual, got.scales, got.codes, residual);
  EXPECT_TRUE(same_bits(residual, want.residual)) << length;
}

// One pass is what its parts are, one after another.
TEST(BlockInt8, OfAChange) {
  on_every_target([] {
    for (const std::size_t length : {1, 5, 255, 256, 257, 512, 1000}) {
      const auto agreed = mixed_values("agreed", length);
      const auto contributed = mixed_values("contributed", length);
      const auto feedback = mixed_values("feedback", length);
      expect_int8_change(agreed, contributed, {});
      expect_int8_change(agreed, contributed, feedback);
      // Blocks of zeros, and some whose scale rounds to 0.
      const std::vector<float> small(length, value_of(3)), smaller(length, value_of(2));
      const std::vector<float> none(length, 0.0F), negative_none(length, -0.0F);
      expect_int8_change(agreed, agreed, {});
      expect_int8_change(agreed, agreed, none);
      expect_int8_change(negative_none, none, negative_none);
      expect_int8_change(small, smaller, {});
      expect_int8_change(small, smaller, none);
      for (const float bad : {INFINITY, -INFINITY, std::nanf(""), -std::nanf("")}) {
        auto spoilt = contributed;
        spoilt[length / 2] = bad;
        std::vector<float> scales(int8_blocks(length)), residual(length);
        std::vector<std::int8_t> codes(length);
        int8_encode_change(agreed, spoilt, {}, scales, codes, residual);
        for (std::size_t block = 0; block < scales.size(); ++block)
          EXPECT_EQ(std::isinf(scales[block]), block == length / 2 / kInt8Block) << length;
      }
    }
  });
}

TEST(BlockInt8, OfAChangeWritesItsOwnAtAnyAddress) {
  on_every_target([] {
    for (const std::size_t length : {1, 2, 3, 5, 256, 257, 258, 259, 300})
      for (std::size_t offset = 0; offset < kOffsets; ++offset) {
        const auto agreed = mixed_values("agreed", length);
        const auto contributed = mixed_values("contributed", length);
        const auto want = change_reference(agreed, contributed, {});
        std::vector<float> scales(int8_blocks(length));
        std::vector<std::int8_t> codes(length + 2 * kOffsets, 99);
        Guarded residual(length, offset);
        int8_encode_change(agreed, contributed, {}, scales,
                           std::span(codes).subspan(offset, length), residual.span());
        ASSERT_TRUE(same_bits(residual.values(), want.residual)) << length << " at " << offset;
        for (std::size_t i = 0; i < codes.size(); ++i) {
          const bool own = i >= offset && i < offset + length;
          ASSERT_EQ(codes[i], own ? want.blocks.codes[i - offset] : 99) << length << ", " << i;
        }
      }
  });
}

// And so is this one.
TEST(BlockInt8, OuterStepOfParts) {
  on_every_target([] {
    for (const std::size_t length : {1, 5, 255, 256, 257, 512, 1000})
      for (const std::size_t count :
           {std::size_t{1}, std::size_t{2}, std::size_t{3}, kInt8PartsMax})
        for (const auto& rule : kRules) {
          std::vector<Int8Blocks> blocks;
          std::vector<std::vector<std::byte>> scales;
          std::vector<Int8Part> parts;
          std::vector<float> value(length), delta(length);
          for (std::size_t p = 0; p < count; ++p) {
            blocks.push_back(encode_reference(mixed_values(fmt::format("part {}", p), length)));
            const auto bytes = std::as_bytes(std::span(blocks[p].scales));
            scales.emplace_back(1).insert(scales[p].end(), bytes.begin(), bytes.end());
            const float weight = 0.37F / static_cast<float>(p + 1);
            int8_decode(blocks[p].codes, blocks[p].scales, value);
            if (p == 0)
              scale(weight, value, delta);
            else
              accumulate(weight, value, delta);
            parts.push_back({{}, {}, weight});
          }
          for (std::size_t p = 0; p < count; ++p) {
            parts[p].codes = blocks[p].codes;
            parts[p].scales =
                std::span<const std::byte>(scales[p]).subspan(1);  // at an odd address
          }
          const auto agreed = mixed_values("agreed", length);
          const auto momentum = mixed_values("momentum", rule ? length : 0);
          Stepped got(length, rule.has_value());
          int8_outer_step(parts, got.step(rule, agreed, momentum));
          expect_step(got, step_reference(delta, rule, agreed, momentum));
        }
  });
}

TEST(BlockInt8, DecodesAnyCode) {
  on_every_target([] {
    std::vector<std::int8_t> codes(256);
    for (int i = 0; i < 256; ++i)
      codes[static_cast<std::size_t>(i)] = static_cast<std::int8_t>(i - 128);
    const std::vector<float> scales = {0.5F};
    std::vector<float> values(256);
    int8_decode(codes, scales, values);
    for (int i = 0; i < 256; ++i)
      EXPECT_EQ(values[static_cast<std::size_t>(i)], 0.5F * static_cast<float>(i - 128));
  });
}

}  // namespace
}  // namespace isthmus::kernels
