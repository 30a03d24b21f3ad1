// Outer steps against an oracle in f64 that shares no code with them: three sites with unequal
// tokens, one of them absent now and then, both outer optimizers, every codec, error feedback
// included. And the state root against a second implementation.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <vector>

#include "base/random.h"
#include "inter/outer_state.h"
#include "inter/sim/simulated_keys.h"
#include "tests/bench/seconds.h"
#include "tests/inter/sealed_chunks.h"

namespace isthmus::inter {
namespace {

struct Case {
  const char* name;
  OuterRule rule;
  compress::CodecId codec;
};

class OuterStepTest : public testing::TestWithParam<Case> {};

// What the bytes of a frame mean, from FORMATS.md alone.
double nearest_bf16(double x) {
  const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(x));
  return static_cast<double>(
      std::bit_cast<float>((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000u));
}

std::vector<double> oracle_decode(const ModelLayout& layout, const std::vector<double>& x,
                                  compress::CodecId codec) {
  std::vector<double> out = x;
  if (codec == compress::CodecId::bf16)
    for (auto& v : out) v = nearest_bf16(v);
  if (codec == compress::CodecId::int8) {
    for (std::uint32_t t = 0; t < layout.tensors().size(); ++t) {
      const auto begin = layout.offset(t), end = begin + layout.tensor_elements(t);
      for (auto block = begin; block < end; block += 256) {
        const auto stop = std::min(block + 256, end);
        double largest = 0;
        for (auto i = block; i < stop; ++i) largest = std::max(largest, std::abs(x[i]));
        const double scale =
            static_cast<double>(static_cast<float>(static_cast<float>(largest) / 127.0f));
        for (auto i = block; i < stop; ++i)
          out[i] = scale == 0 ? 0 : std::nearbyint(x[i] / scale) * scale;
      }
    }
  }
  return out;
}

TEST_P(OuterStepTest, FollowsTheOracle) {
  const auto& [name, rule, codec] = GetParam();
  auto layout = ModelLayout::make(
      {{"w", Shape{37, 19}, 0}, {"norm", Shape{100}, 0}, {"big", Shape{700, 3}, 0}});
  ASSERT_TRUE(layout);
  const auto plan = std::make_shared<const ChunkPlan>(*layout, 0, 512, codec);
  const auto n = layout->elements();
  Random random(3);

  OuterState state;
  std::vector<double> agreed(n), momentum(n);
  for (std::size_t i = 0; i < n; ++i) {
    state.agreed.push_back(static_cast<float>(random.normal()));
    agreed[i] = static_cast<double>(state.agreed.back());
  }
  if (rule.has_momentum()) state.momentum.resize(n);
  std::map<SiteId, std::vector<float>> feedback;
  std::map<SiteId, std::vector<double>> oracle_feedback;
  for (SiteId s = 1; s <= 3; ++s) {
    feedback[s].resize(n);
    oracle_feedback[s].resize(n);
  }

  for (std::uint64_t step = 1; step <= 12; ++step) {
    // Site 3 contributes and is not named in every third step; its work is carried.
    std::map<SiteId, std::uint64_t> tokens = {{1, 1000}, {2, 37}, {3, 512 + 3 * step}};
    Record record;
    record.step = step;
    record.rule = rule;
    std::vector<std::unique_ptr<Contribution>> made;
    std::map<SiteId, std::vector<double>> decoded_oracle;
    std::map<SiteId, std::vector<float>> residuals;
    for (SiteId site = 1; site <= 3; ++site) {
      std::vector<float> x(state.agreed.begin(), state.agreed.end());
      for (auto& v : x) v -= static_cast<float>(0.01 * random.normal());
      const Open open =
          plan->announce({.run = {}, .view = {}, .step = step, .fragment = 0}, tokens[site], {}, 0);
      sim::SimulatedSigner signer(site);
      auto contribution = std::make_unique<Contribution>(
          plan, sign(signer, site, MessageType::open, encode(open)), open);
      const ValuesInVector values(x);
      std::vector<float> quantity(n);
      for (std::size_t i = 0; i < n; ++i)
        quantity[i] = (state.agreed[i] - x[i]) + feedback[site][i];
      residuals[site].resize(n);
      add_all_chunks(*contribution, signer, [&](std::uint32_t c) {
        return *code_chunk(*plan, c, state.agreed, feedback[site], values, residuals[site]);
      });
      // The oracle's, in f64, from its own books.
      std::vector<double> q(n);
      for (std::size_t i = 0; i < n; ++i) q[i] = static_cast<double>(quantity[i]);
      for (std::size_t i = 0; i < n; ++i)
        ASSERT_NEAR(q[i],
                    static_cast<double>(state.agreed[i]) - static_cast<double>(x[i]) +
                        oracle_feedback[site][i],
                    1e-6);
      decoded_oracle[site] = oracle_decode(*layout, q, codec);
      const bool named = site != 3 || step % 3 != 0;
      for (std::size_t i = 0; i < n; ++i)
        oracle_feedback[site][i] = named ? q[i] - decoded_oracle[site][i] : q[i];
      if (named) {
        record.parts.push_back({site, {}, tokens[site], {}});
        made.push_back(std::move(contribution));
        feedback[site] = residuals[site];
      } else {
        feedback[site] = residuals[site];
        for (std::uint32_t c = 0; c < plan->chunks(); ++c)
          ASSERT_TRUE(carry_chunk(*plan, c, *contribution->unpack(c), feedback[site]));
      }
      for (std::size_t i = 0; i < n; ++i)
        ASSERT_NEAR(static_cast<double>(feedback[site][i]), oracle_feedback[site][i], 1e-6)
            << name << " step " << step;
    }
    const auto weights = weights_of(record);
    for (std::uint32_t c = 0; c < plan->chunks(); ++c) {
      std::vector<CodedChunk> coded;
      for (const auto& contribution : made) coded.push_back(*contribution->unpack(c));
      ASSERT_TRUE(step_chunk(*plan, c, weights, coded, rule, state, state));
    }
    double sum = 0;
    for (const auto& part : record.parts) sum += static_cast<double>(part.tokens);
    for (std::size_t i = 0; i < n; ++i) {
      double delta = 0;
      for (const auto& part : record.parts)
        delta += static_cast<double>(part.tokens) / sum * decoded_oracle[part.site][i];
      if (rule.has_momentum()) {
        momentum[i] = 0.9 * momentum[i] + delta;
        agreed[i] -= 0.7 * (delta + 0.9 * momentum[i]);
      } else {
        agreed[i] -= delta;
      }
      ASSERT_NEAR(static_cast<double>(state.agreed[i]), agreed[i], 5e-6)
          << name << " step " << step << " element " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, OuterStepTest,
    testing::Values(
        Case{"average_none", {}, compress::CodecId::none},
        Case{"average_bf16", {}, compress::CodecId::bf16},
        Case{"average_int8", {}, compress::CodecId::int8},
        Case{"nesterov_none", {OuterRuleKind::nesterov, 0.7f, 0.9f}, compress::CodecId::none},
        Case{"nesterov_int8", {OuterRuleKind::nesterov, 0.7f, 0.9f}, compress::CodecId::int8}),
    [](const auto& chosen) { return std::string(chosen.param.name); });

TEST(Weights, AreDividedInF64AndRoundedOnce) {
  Record record;
  record.parts = {{1, {}, 1, {}}, {2, {}, 2, {}}};
  EXPECT_EQ(weights_of(record),
            (std::vector<float>{static_cast<float>(1.0 / 3.0), static_cast<float>(2.0 / 3.0)}));
  record.parts[0].tokens = record.parts[1].tokens = 0;
  EXPECT_EQ(weights_of(record), (std::vector<float>{0.5f, 0.5f}));
}

TEST(StateRoot, DependsOnEveryLeafAndItsPlace) {
  std::vector<kernels::Hash128> leaves(5);
  for (std::size_t i = 0; i < leaves.size(); ++i) leaves[i] = {i, 2 * i};
  const auto root = state_root(leaves);
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    auto other = leaves;
    other[i].high ^= 1;
    EXPECT_NE(state_root(other), root) << i;
  }
  auto swapped = leaves;
  std::swap(swapped[1], swapped[2]);
  EXPECT_NE(state_root(swapped), root);
}

TEST(Records, SurviveEncodingAndRefuseEveryTruncation) {
  Record record;
  record.step = 7;
  record.view = {{1, 2, 9}, {1, 2}, {{1, 5}, {2, 6}, {9, 7}}};
  record.next_view = {{1, 2}, {1, 2}, {{1, 5}, {2, 8}}};
  record.parts = {{1, {}, 10, {}}, {9, {}, 20, {}}};
  Certificate certificate{.record = record, .ballot = 3, .accepts = {{1, {}}, {2, {}}}};
  ByteWriter out;
  certificate.encode(out);
  ByteReader in(out.view());
  const auto back = Certificate::decode(in);
  ASSERT_TRUE(back && in.done());
  EXPECT_EQ(back->record, record);
  EXPECT_EQ(back->accepts, certificate.accepts);
  for (std::size_t n = 0; n < out.size(); ++n) {
    ByteReader torn(out.view().first(n));
    EXPECT_FALSE(Certificate::decode(torn)) << n;
  }
  Random random(1);
  for (int i = 0; i < 20000; ++i) {
    Bytes bytes(out.view().begin(), out.view().end());
    for (int k = 0; k < 4; ++k)
      bytes[random.below(bytes.size())] = static_cast<std::byte>(random.next());
    ByteReader garbage(bytes);
    (void)Certificate::decode(garbage);  // fails or not, but ends, within its bounds
  }
}

TEST(ModelLayoutTest, ChecksThatBoxesCoverEachElementOnce) {
  const auto layout = ModelLayout::make({{"w", Shape{4, 6}, 0}});
  ASSERT_TRUE(layout);
  EXPECT_TRUE(layout->check_cover({{0, Shape{0, 0}, Shape{4, 6}}}));
  EXPECT_TRUE(layout->check_cover({{0, Shape{0, 0}, Shape{4, 3}}, {0, Shape{0, 3}, Shape{4, 3}}}));
  EXPECT_FALSE(layout->check_cover({{0, Shape{0, 0}, Shape{4, 4}}, {0, Shape{0, 3}, Shape{4, 3}}}));
  EXPECT_FALSE(layout->check_cover({{0, Shape{0, 0}, Shape{4, 5}}}));
  EXPECT_FALSE(layout->check_cover({{0, Shape{0, 0}, Shape{5, 6}}}));
  EXPECT_FALSE(layout->check_cover({{1, Shape{0}, Shape{1}}}));
  // As many elements as the tensor has, but some twice and others never.
  EXPECT_FALSE(layout->check_cover({{0, Shape{0, 0}, Shape{4, 3}}, {0, Shape{0, 2}, Shape{4, 3}}}));
  // No straight cut parts these.
  EXPECT_TRUE(ModelLayout::make({{"w", Shape{3, 3}, 0}})
                  ->check_cover({{0, Shape{0, 0}, Shape{1, 2}},
                                 {0, Shape{0, 2}, Shape{2, 1}},
                                 {0, Shape{2, 1}, Shape{1, 2}},
                                 {0, Shape{1, 0}, Shape{2, 1}},
                                 {0, Shape{1, 1}, Shape{1, 1}}}));
}

// In pairs sixteen times as many would take 256 times as long.
TEST(ModelLayoutTest, ManyBoxesOfOneTensorAreCheckedSoon) {
  const auto check = [](std::int64_t side) {
    const auto layout = ModelLayout::make({{"w", Shape{side, side, 3}, 0}});
    std::vector<Box> boxes;
    for (std::int64_t row = 0; row < side; ++row)
      for (std::int64_t column = 0; column < side; ++column)
        boxes.push_back({0, Shape{row, column, 0}, Shape{1, 1, 3}});
    const double began = bench::thread_seconds();
    EXPECT_TRUE(layout->check_cover(boxes));
    boxes[1].first = boxes[0].first;
    EXPECT_FALSE(layout->check_cover(boxes));
    return bench::thread_seconds() - began;
  };
  const auto few = check(128);
  EXPECT_LT(check(512), 80 * few);
}

}  // namespace
}  // namespace isthmus::inter
