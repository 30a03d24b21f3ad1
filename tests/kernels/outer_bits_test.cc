// Every kernel that touches outer state, on every instruction set this CPU has, against the scalar
// specification in the headers: equal to the bit.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "base/large_vector.h"
#include "base/random.h"
#include "base/thread_pool.h"
#include "kernels/bf16.h"
#include "kernels/block_int8.h"
#include "kernels/leaf_hash.h"
#include "kernels/outer_arithmetic.h"
#include "kernels/outer_step.h"
#include "kernels/stream_copy.h"
#include "kernels/sum_of_squares.h"
#include "kernels/vector_targets.h"

namespace isthmus::kernels {
namespace {

// The targets that the build compiles (kernels/CMakeLists.txt) and this CPU has, found without
// Highway, so that a target which silently went missing is noticed.
std::size_t targets_expected() {
  std::size_t count = 1;  // the baseline
#if !defined(ISTHMUS_ONE_HIGHWAY_TARGET)
  const bool avx2 = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0 &&
                    __builtin_cpu_supports("bmi2") != 0;
  const bool avx3_dl =
      avx2 && __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
      __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0 &&
      __builtin_cpu_supports("avx512vnni") != 0 && __builtin_cpu_supports("avx512vbmi") != 0 &&
      __builtin_cpu_supports("avx512vbmi2") != 0 && __builtin_cpu_supports("avx512bitalg") != 0 &&
      __builtin_cpu_supports("avx512vpopcntdq") != 0 && __builtin_cpu_supports("vpclmulqdq") != 0;
  count += avx2 + avx3_dl;
#endif
  return count;
}

void on_every_target(const std::function<void()>& body) {
  std::string names;
  for (const VectorTarget& target : vector_targets()) {
    SCOPED_TRACE(target.name);
    names += (names.empty() ? "" : ", ") + target.name;
    const ForcedVectorTarget forced(target);
    body();
  }
  testing::Test::RecordProperty("targets", names);
  fmt::print("targets run: {}\n", names);
}

float value_of(std::uint32_t bits) { return std::bit_cast<float>(bits); }

// Ordinary values, and all the odd ones: subnormals, extremes, halves, signed zeros.
std::vector<float> mixed_values(std::string_view name, std::size_t count) {
  const Random random = Random(7).split(name);
  const std::array<float, 14> odd = {0.0F,
                                     -0.0F,
                                     value_of(1),
                                     -value_of(1),
                                     value_of(0x007fffff),
                                     0x1p-126F,
                                     0x1p-100F,
                                     1.0F,
                                     std::nextafter(1.0F, 2.0F),
                                     -1.5F,
                                     0x1p24F,
                                     1e30F,
                                     0.49999997F,
                                     1e-30F};
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    const auto block = random.block(i);
    if (block[0] % 8 == 0)
      values[i] = odd[block[1] % odd.size()];
    else
      values[i] = static_cast<float>(random.normal_at(count + i)) *
                  std::ldexp(1.0F, static_cast<int>(block[2] % 40) - 20);
  }
  return values;
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

// Lengths around every vector width.
const std::array<std::size_t, 12> kLengths = {0, 1, 3, 8, 15, 16, 17, 31, 63, 256, 700, 1000};

TEST(StreamCopy, ExactlyWhatItIsTold) {
  on_every_target([] {
    std::vector<float> from(200);
    for (std::size_t i = 0; i < from.size(); ++i)
      from[i] = value_of(0x7FC00001 + static_cast<std::uint32_t>(i));
    for (std::size_t at = 0; at < 20; ++at)
      for (std::size_t to_at = 0; to_at < 20; ++to_at)
        for (const std::size_t count : {0, 1, 15, 16, 17, 63, 64, 150}) {
          std::vector<float> to(200, 1.0F);
          const auto before = to;
          stream_copy(std::span(from).subspan(at, count), std::span(to).subspan(to_at, count));
          ASSERT_EQ(std::memcmp(&to[to_at], &from[at], 4 * count), 0);
          std::copy_n(before.begin(), count, to.begin() + static_cast<std::ptrdiff_t>(to_at));
          ASSERT_EQ(to, before) << "nothing beside it";
        }
  });
}

TEST(OuterBits, RunsOnEveryTargetTheCpuHas) {
  std::vector<VectorTarget> targets = vector_targets();
  std::string names;
  for (const auto& target : targets) names += target.name + " ";
  EXPECT_EQ(targets.size(), targets_expected()) << names;
}

TEST(OuterBits, FloatEnvironment) { EXPECT_TRUE(float_environment_is_ieee()); }

TEST(OuterBits, AllFinite) {
  on_every_target([] {
    for (const std::size_t length : kLengths) {
      std::vector<float> x = mixed_values("finite", length);
      EXPECT_TRUE(all_finite(x));
      for (std::size_t i = 0; i < length; ++i) {
        const float kept = x[i];
        for (const float bad : {INFINITY, -INFINITY, std::nanf(""), value_of(0xff800001)}) {
          x[i] = bad;
          EXPECT_FALSE(all_finite(x)) << i << " of " << length;
        }
        x[i] = std::numeric_limits<float>::max();
        EXPECT_TRUE(all_finite(x));
        x[i] = kept;
      }
    }
  });
}

TEST(OuterBits, Arithmetic) {
  on_every_target([] {
    for (const std::size_t length : kLengths) {
      const std::vector<float> a = mixed_values("a", length);
      const std::vector<float> b = mixed_values("b", length);
      const float weight = 0.37F;
      std::vector<float> got(length);
      std::vector<float> want(length);

      subtract(a, b, got);
      for (std::size_t i = 0; i < length; ++i) want[i] = a[i] - b[i];
      EXPECT_TRUE(same_bits(got, want)) << "subtract " << length;

      add(a, b, got);
      for (std::size_t i = 0; i < length; ++i) want[i] = a[i] + b[i];
      EXPECT_TRUE(same_bits(got, want)) << "add " << length;

      scale(weight, a, got);
      for (std::size_t i = 0; i < length; ++i) want[i] = weight * a[i];
      EXPECT_TRUE(same_bits(got, want)) << "scale " << length;

      got = b;
      accumulate(weight, a, got);
      for (std::size_t i = 0; i < length; ++i) {
        volatile float product = weight * a[i];  // volatile: rounded by itself
        want[i] = b[i] + product;
      }
      EXPECT_TRUE(same_bits(got, want)) << "accumulate " << length;

      got = a;  // in place
      add(got, b, got);
      for (std::size_t i = 0; i < length; ++i) want[i] = a[i] + b[i];
      EXPECT_TRUE(same_bits(got, want)) << "add in place " << length;
    }
  });
}

// Values at any place of a line of the cache, with guards around them.
class Guarded {
 public:
  Guarded(std::size_t length, std::size_t offset)
      : first_(kGuard + offset), length_(length), memory_(first_ + length + kGuard, kUntouched) {}
  std::span<float> span() { return std::span(memory_).subspan(first_, length_); }
  // The values; and that nothing was written beside them.
  std::vector<float> values() const {
    for (std::size_t i = 0; i < memory_.size(); ++i) {
      const bool own = i >= first_ && i < first_ + length_;
      EXPECT_TRUE(own || memory_[i] == kUntouched) << i << " of " << length_ << " at " << first_;
    }
    const auto begin = memory_.begin() + static_cast<std::ptrdiff_t>(first_);
    return {begin, begin + static_cast<std::ptrdiff_t>(length_)};
  }

 private:
  static constexpr std::size_t kGuard = 16;
  static constexpr float kUntouched = 77;
  std::size_t first_, length_;
  LargeVector<float> memory_;  // begins with a line
};
constexpr std::size_t kOffsets = 17;

// What a rule makes of a delta; and what holds it, as a kernel wants it.
struct Stepped {
  std::vector<float> agreed, momentum, agreed_at_hand, momentum_at_hand;

  explicit Stepped(std::size_t length, bool has_momentum)
      : agreed(length),
        momentum(has_momentum ? length : 0),
        agreed_at_hand(length),
        momentum_at_hand(momentum.size()) {}
  OuterStep step(std::optional<Nesterov> rule, std::span<const float> before,
                 std::span<const float> momentum_before) {
    return {.nesterov = rule,
            .agreed = before,
            .momentum = momentum_before,
            .next_agreed = agreed,
            .next_momentum = momentum,
            .agreed_at_hand = agreed_at_hand,
            .momentum_at_hand = momentum_at_hand};
  }
};

Stepped step_reference(const std::vector<float>& delta, std::optional<Nesterov> rule,
                       const std::vector<float>& agreed, const std::vector<float>& momentum) {
  Stepped want(delta.size(), rule.has_value());
  for (std::size_t i = 0; i < delta.size(); ++i) {
    if (!rule) {
      want.agreed[i] = agreed[i] - delta[i];
      continue;
    }
    volatile float kept = rule->momentum_factor * momentum[i];
    volatile float m = kept + delta[i];
    volatile float ahead = rule->momentum_factor * m;
    volatile float direction = delta[i] + ahead;
    volatile float change = rule->rate * direction;
    want.momentum[i] = m;
    want.agreed[i] = agreed[i] - change;
  }
  return want;
}

void expect_step(const Stepped& got, const Stepped& want) {
  EXPECT_TRUE(same_bits(got.agreed, want.agreed)) << want.agreed.size();
  EXPECT_TRUE(same_bits(got.momentum, want.momentum)) << want.agreed.size();
  EXPECT_TRUE(same_bits(got.agreed_at_hand, want.agreed)) << want.agreed.size();
  EXPECT_TRUE(same_bits(got.momentum_at_hand, want.momentum)) << want.agreed.size();
}

const std::array<std::optional<Nesterov>, 2> kRules = {std::nullopt, Nesterov{0.7F, 0.9F}};

TEST(OuterBits, OuterStep) {
  on_every_target([] {
    for (const std::size_t length : kLengths)
      for (const auto& rule : kRules) {
        const auto delta = mixed_values("delta", length);
        auto agreed = mixed_values("agreed", length);
        auto momentum = mixed_values("momentum", rule ? length : 0);
        const auto want = step_reference(delta, rule, agreed, momentum);
        Stepped got(length, rule.has_value());
        outer_step(delta, got.step(rule, agreed, momentum));
        expect_step(got, want);
        got.agreed = agreed;  // in place
        got.momentum = momentum;
        outer_step(delta, got.step(rule, got.agreed, got.momentum));
        expect_step(got, want);
      }
  });
}

TEST(OuterBits, OuterStepWritesItsOwnAtAnyAddress) {
  on_every_target([] {
    for (const auto& rule : kRules)
      for (const std::size_t length : {1, 2, 3, 4, 15, 16, 17, 18, 19, 63, 64})
        for (std::size_t offset = 0; offset < kOffsets; ++offset) {
          const auto delta = mixed_values("delta", length);
          const auto agreed = mixed_values("agreed", length);
          const auto momentum = mixed_values("momentum", rule ? length : 0);
          Guarded next(length, offset), next_momentum(momentum.size(), offset);
          Guarded at_hand(length, offset), momentum_at_hand(momentum.size(), offset);
          outer_step(delta, {.nesterov = rule,
                             .agreed = agreed,
                             .momentum = momentum,
                             .next_agreed = next.span(),
                             .next_momentum = next_momentum.span(),
                             .agreed_at_hand = at_hand.span(),
                             .momentum_at_hand = momentum_at_hand.span()});
          const auto want = step_reference(delta, rule, agreed, momentum);
          ASSERT_TRUE(same_bits(next.values(), want.agreed)) << length << " at " << offset;
          ASSERT_TRUE(same_bits(next_momentum.values(), want.momentum));
          ASSERT_TRUE(same_bits(at_hand.values(), want.agreed));
          ASSERT_TRUE(same_bits(momentum_at_hand.values(), want.momentum));
        }
  });
}

// A fused multiply-add would give another result here; the test above would not notice values for
// which it happens not to matter.
TEST(OuterBits, AccumulateRoundsTwice) {
  on_every_target([] {
    const float a = 1.0F + 0x1p-12F;
    for (const std::size_t length : {1, 16, 64}) {
      const std::vector<float> x(length, a);
      std::vector<float> sum(length, -(1.0F + 0x1p-11F));
      accumulate(a, x, sum);  // a² = 1 + 2^-11 + 2^-24: the last bit is lost when rounded first
      for (const float value : sum) EXPECT_EQ(value, 0.0F);
    }
  });
}

TEST(OuterBits, SumOfSquares) {
  on_every_target([] {
    for (const std::size_t length :
         {std::size_t{0}, std::size_t{1}, std::size_t{17}, std::size_t{1000}, kSumOfSquaresBlock,
          2 * kSumOfSquaresBlock + 77}) {
      const std::vector<float> x = mixed_values("squares", length);
      double want = 0;
      for (std::size_t first = 0; first < length; first += kSumOfSquaresBlock) {
        std::array<double, 16> sums{};
        const std::size_t size = std::min(kSumOfSquaresBlock, length - first);
        for (std::size_t i = 0; i < size; ++i) {
          const double value = x[first + i];
          sums[i % 16] += value * value;
        }
        for (std::size_t width = 8; width > 0; width /= 2)
          for (std::size_t j = 0; j < width; ++j) sums[j] += sums[j + width];
        want += sums[0];
      }
      EXPECT_EQ(sum_of_squares(x), want) << length;
      for (const std::size_t threads : {1, 2}) {
        ThreadPool pool(std::vector<int>(threads, -1));
        std::vector<double> scratch(sum_of_squares_blocks(length));
        EXPECT_EQ(sum_of_squares(pool, x, scratch), want) << length << " on " << threads;
      }
    }
  });
}

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

TEST(OuterBits, BlockInt8) {
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
TEST(OuterBits, Int8OfAChange) {
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

TEST(OuterBits, Int8OfAChangeWritesItsOwnAtAnyAddress) {
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
TEST(OuterBits, OuterStepOfInt8Parts) {
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

TEST(OuterBits, DecodesAnyCode) {
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

TEST(OuterBits, Bf16OfChosenValues) {
  on_every_target([] {
    const float most = value_of(0x7f7f0000);
    for (const auto& [in, bits] : std::vector<std::pair<float, int>>{
             {0.0F, 0x0000},
             {-0.0F, 0x8000},
             {1.0F, 0x3f80},
             {value_of(0x3f808000), 0x3f80},  // a tie, to even
             {value_of(0x3f818000), 0x3f82},
             {value_of(0x3f808001), 0x3f81},
             {value_of(1), 0x0000},
             {most, 0x7f7f},
             {std::numeric_limits<float>::max(), 0x7f7f},  // saturates
             {-std::numeric_limits<float>::max(), 0xff7f},
             {INFINITY, 0x7f80},
             {-INFINITY, 0xff80},
             {value_of(0x7f800001), 0x7fc0},  // a NaN whose payload would be cut off
             {value_of(0xffc12345), 0xffc1}}) {
      for (const std::size_t length : {1, 16, 35}) {
        const std::vector<float> values(length, in);
        std::vector<bf16_t> out(length);
        float_to_bf16(values, out);
        for (const bf16_t value : out) EXPECT_EQ(value.bits, bits) << in;
      }
    }
  });
}

// A check of the specification itself, by another route: the nearest of the two neighbours.
TEST(OuterBits, Bf16SpecificationIsNearestEven) {
  const Random random(3);
  for (std::uint64_t i = 0; i < 200000; ++i) {
    const auto bits = static_cast<std::uint32_t>(random.at(i));
    const float value = value_of(bits);
    if (!std::isfinite(value)) continue;
    const std::uint32_t below = bits & 0xffff0000U;
    const double low = value_of(below);
    const std::uint32_t above = below + 0x10000U;
    if ((above & 0x7f800000U) == 0x7f800000U) continue;  // saturation: chosen values above
    const double high = value_of(above);
    const double to_low = std::fabs(static_cast<double>(value) - low);
    const double to_high = std::fabs(high - static_cast<double>(value));
    const bool takes_low = to_low < to_high || (to_low == to_high && ((below >> 16) & 1U) == 0);
    EXPECT_EQ(to_bf16(value).bits, (takes_low ? below : above) >> 16) << bits;
  }
}

TEST(OuterBits, Bf16BackIsExact) {
  on_every_target([] {
    std::vector<bf16_t> all(65536);
    for (std::size_t i = 0; i < all.size(); ++i) all[i].bits = static_cast<std::uint16_t>(i);
    std::vector<float> values(all.size());
    bf16_to_float(all, values);
    for (std::size_t i = 0; i < all.size(); ++i)
      EXPECT_EQ(std::bit_cast<std::uint32_t>(values[i]), i << 16);
  });
}

#if defined(__OPTIMIZE__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// What the 65,536 floats with upper half `high` must become: the lower ones one value, the upper
// ones the next.
void expected_bf16(std::uint32_t high, std::vector<bf16_t>& out) {
  const std::uint32_t magnitude = high & 0x7fffU;
  const auto down = static_cast<std::uint16_t>(high);
  if (magnitude >= 0x7f80U) {  // infinity, then NaN: made quiet, payload cut
    std::fill(out.begin(), out.end(), bf16_t{static_cast<std::uint16_t>(down | 0x0040U)});
    if (magnitude == 0x7f80U) out[0] = bf16_t{down};
    return;
  }
  const auto up = static_cast<std::uint16_t>(magnitude == 0x7f7fU ? down : down + 1U);
  const std::ptrdiff_t tie_goes_up = static_cast<std::ptrdiff_t>(high & 1U);
  const auto turn = out.begin() + 0x8001 - tie_goes_up;
  std::fill(out.begin(), turn, bf16_t{down});
  std::fill(turn, out.end(), bf16_t{up});
}

TEST(OuterBits, Bf16OfEveryFloat) {
  constexpr std::size_t kChunk = 1 << 16;
  ThreadPool pool(available_cpus());
  struct Worker {
    std::vector<float> in = std::vector<float>(kChunk);
    std::vector<bf16_t> out = std::vector<bf16_t>(kChunk);
    std::vector<bf16_t> want = std::vector<bf16_t>(kChunk);
  };
  std::vector<Worker> workers(pool.workers());
  on_every_target([&] {
    std::atomic<std::size_t> wrong_chunks{0};
    pool.parallel_for(65536, [&](std::size_t high, std::size_t worker) {
      Worker& w = workers[worker];
      for (std::size_t low = 0; low < kChunk; ++low)
        w.in[low] = value_of(static_cast<std::uint32_t>((high << 16) | low));
      float_to_bf16(w.in, w.out);
      expected_bf16(static_cast<std::uint32_t>(high), w.want);
      bool same = same_bits(w.out, w.want);
      // The specification itself, where it could turn.
      for (const std::size_t low : {0x0, 0x1, 0x7fff, 0x8000, 0x8001, 0xffff})
        same = same && to_bf16(w.in[low]).bits == w.want[low].bits;
      if (!same) ++wrong_chunks;
    });
    EXPECT_EQ(wrong_chunks.load(), 0U);
  });
}
#endif

TEST(LeafHash, IsXxh3Of128Bits) {
  // The published value of XXH3-128 for no input, seed 0.
  const Hash128 empty = leaf_hash({});
  EXPECT_EQ(empty.high, 0x99aa06d3014798d8ULL);
  EXPECT_EQ(empty.low, 0x6001c324468d497fULL);
  std::vector<std::byte> bytes(1000, std::byte{7});
  const Hash128 before = leaf_hash(bytes);
  bytes[999] = std::byte{6};
  EXPECT_NE(leaf_hash(bytes), before);
}

TEST(LeafHash, IsTheSamePieceByPiece) {
  std::vector<std::byte> bytes(100'000);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * i >> 3);
  LeafHasher hasher;
  for (const std::size_t piece : {1, 100, 8192, 99'999, 100'000}) {
    hasher.begin();
    for (std::size_t at = 0; at < bytes.size(); at += piece)
      hasher.update(std::span(bytes).subspan(at, std::min(piece, bytes.size() - at)));
    EXPECT_EQ(hasher.finish(), leaf_hash(bytes)) << piece;
  }
}

}  // namespace
}  // namespace isthmus::kernels
