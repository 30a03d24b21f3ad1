// Against the frequencies that transformers 5.24 computes, in f32, for a head of 64 elements and
// theta 500000: every third of the 32.
#include "runtime/rope_scaling.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>

namespace isthmus::runtime {
namespace {

using Kind = RopeScaling::Kind;

void expect_frequencies(const RopeScaling& scaling, const std::array<double, 11>& expected) {
  ASSERT_TRUE(check(scaling)) << check(scaling).error().text();
  const auto frequencies = rope_frequencies(500000.0, 64, scaling);
  ASSERT_EQ(frequencies.size(), 32U);
  for (std::size_t i = 0; i < expected.size(); ++i)
    EXPECT_NEAR(frequencies[3 * i], expected[i], 1e-6 * expected[i]) << 3 * i;
}

constexpr RopeScaling kLlama3{.kind = Kind::llama3, .factor = 8, .original_positions = 8192};
constexpr RopeScaling kYarn{.kind = Kind::yarn, .factor = 4, .original_positions = 32768};
constexpr RopeScaling kOtherYarn{.kind = Kind::yarn,
                                 .factor = 16,
                                 .original_positions = 4096,
                                 .beta_fast = 24,
                                 .beta_slow = 2,
                                 .truncate = false,
                                 .attention_factor = 1.5};

TEST(RopeScaling, FrequenciesAreThoseOfTransformers) {
  expect_frequencies(
      {.kind = Kind::linear, .factor = 4},
      {0.25, 0.0730569586, 0.0213492755, 0.00623885216, 0.00182316627, 0.000532779901,
       0.000155693109, 4.54978581e-05, 1.32957393e-05, 3.88538501e-06, 1.13541762e-06});
  expect_frequencies(
      kLlama3, {1, 0.292227834, 0.0853971019, 0.0249554086, 0.00729266508, 0.00137189368,
                7.78465546e-05, 2.2748929e-05, 6.64786967e-06, 1.94269251e-06, 5.6770881e-07});
  expect_frequencies(
      kYarn, {1, 0.292227834, 0.0853971019, 0.0249554086, 0.00729266508, 0.00159833964,
              0.000311386189, 4.54978581e-05, 1.32957393e-05, 3.88538501e-06, 1.13541762e-06});
  expect_frequencies(
      kOtherYarn, {1, 0.292227834, 0.0853971019, 0.0212945323, 0.0028380726, 0.000133194975,
                   3.89232773e-05, 1.13744645e-05, 3.32393483e-06, 9.71346253e-07, 2.83854405e-07});
  EXPECT_EQ(rope_amplitude(kLlama3), 1);
  EXPECT_NEAR(rope_amplitude(kYarn), 1.138629436111989, 1e-15);
  EXPECT_EQ(rope_amplitude(kOtherYarn), 1.5);
}

TEST(RopeScaling, NoneIsThePaper) {
  const auto frequencies = rope_frequencies(10000.0, 8, {});
  ASSERT_EQ(frequencies.size(), 4U);
  for (std::size_t i = 0; i < 4; ++i)
    EXPECT_DOUBLE_EQ(frequencies[i], std::pow(10000.0, -2.0 * static_cast<double>(i) / 8.0));
}

TEST(RopeScaling, NamesTheFaultyField) {
  const auto refuse = [](RopeScaling scaling, void (*change)(RopeScaling&), const char* field) {
    change(scaling);
    const auto checked = check(scaling);
    ASSERT_FALSE(checked) << field;
    EXPECT_THAT(checked.error().text(), testing::HasSubstr(field));
  };
  for (const auto& scaling : {kLlama3, kYarn}) {
    refuse(
        scaling, [](auto& s) { s.factor = 0.5; }, "factor");
    refuse(
        scaling, [](auto& s) { s.factor = std::nan(""); }, "factor");
    refuse(
        scaling, [](auto& s) { s.original_positions = 0; }, "original_max_position_embeddings");
  }
  refuse(
      kLlama3, [](auto& s) { s.low_frequency_factor = 0; }, "low_freq_factor");
  refuse(
      kLlama3, [](auto& s) { s.high_frequency_factor = 1; }, "high_freq_factor");
  refuse(
      kYarn, [](auto& s) { s.beta_slow = -1; }, "beta_slow");
  refuse(
      kYarn, [](auto& s) { s.beta_fast = 0.5; }, "beta_fast");
  refuse(
      kYarn, [](auto& s) { s.attention_factor = -1; }, "attention_factor");
}

TEST(RopeScaling, DifferentOnesReadDifferently) {
  std::vector<std::string> texts{describe({})};
  for (const auto& scaling :
       {kLlama3, kYarn, kOtherYarn, RopeScaling{.kind = Kind::linear, .factor = 4}})
    texts.push_back(describe(scaling));
  for (const auto& text : texts) {
    EXPECT_THAT(texts, testing::Contains(text).Times(1));
    EXPECT_EQ(text.find(','), std::string::npos) << "settings are told apart by commas";
  }
}

}  // namespace
}  // namespace isthmus::runtime
