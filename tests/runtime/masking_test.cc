#include "runtime/masking.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "base/random.h"
#include "runtime/batch_loss.h"
#include "runtime/byte_tokenizer.h"
#include "runtime/family.h"
#include "runtime/text_tokens.h"

namespace isthmus::runtime {
namespace {

using testing::Each;

constexpr std::int32_t kMasks = 999, kWords = 1000;

struct MaskedRow {
  std::vector<std::int32_t> tokens, targets;
  bool operator==(const MaskedRow&) const = default;
};

// Ordinary tokens, each of which the next one follows.
MaskedRow plain_row(std::size_t size, std::uint64_t seed) {
  MaskedRow row;
  Random random(seed);
  for (std::size_t i = 0; i <= size; ++i)
    row.tokens.push_back(static_cast<std::int32_t>(random.below(kMasks)));
  row.targets.assign(row.tokens.begin() + 1, row.tokens.end());
  row.tokens.pop_back();
  return row;
}

MaskedRow hidden(const Masking& masking, MaskedRow row, std::uint64_t key) {
  masking.hide(key, row.tokens, row.targets);
  return row;
}

// Within five standard deviations of so many draws.
void expect_share(std::size_t found, std::size_t draws, double share) {
  const auto count = static_cast<double>(draws);
  EXPECT_NEAR(static_cast<double>(found), count * share,
              5 * std::sqrt(count * share * (1 - share)));
}

TEST(Masking, HidesItsShareAsMaskAnyTokenAndItself) {
  constexpr std::size_t kRows = 1000, kColumns = 201;  // the first of each may not be chosen
  for (const double share : {0.05, 0.15, 0.4}) {
    const Masking masking({.share = share, .token = kMasks, .vocabulary = kWords});
    std::size_t chosen = 0, masked = 0, kept = 0, other = 0;
    double sum_of_others = 0;
    for (std::uint64_t r = 0; r < kRows; ++r) {
      const auto before = plain_row(kColumns, r);
      const auto after = hidden(masking, before, Random(1).at(r));
      for (std::size_t i = 0; i < kColumns; ++i) {
        if (after.targets[i] == kIgnoredTarget) {
          EXPECT_EQ(after.tokens[i], before.tokens[i]);
          continue;
        }
        ASSERT_EQ(after.targets[i], before.tokens[i]);
        ++chosen;
        if (after.tokens[i] == kMasks) {
          ++masked;
        } else if (after.tokens[i] == before.tokens[i]) {
          ++kept;
        } else {
          ++other;
          sum_of_others += after.tokens[i];
          EXPECT_TRUE(after.tokens[i] >= 0 && after.tokens[i] < kWords);
        }
      }
    }
    expect_share(chosen, kRows * (kColumns - 1), share);
    expect_share(masked, chosen, 0.8 + 0.1 / kWords);
    expect_share(kept, chosen, 0.1 + 0.1 / kWords);
    expect_share(other, chosen, 0.1 * (1 - 2.0 / kWords));
    const auto others = static_cast<double>(other);  // uniform over the vocabulary
    EXPECT_NEAR(sum_of_others / others, kWords / 2.0, 5 * kWords / std::sqrt(12 * others));
  }
}

// Of equal tokens, too.
TEST(Masking, EachPositionIsChosenAsOftenByItself) {
  constexpr std::size_t kRows = 20'000, kColumns = 12;
  const Masking masking({.token = kMasks, .vocabulary = kWords});
  std::vector<std::size_t> chosen(kColumns), beside(kColumns);
  for (std::uint64_t r = 0; r < kRows; ++r) {
    const MaskedRow equal{.tokens = std::vector(kColumns, 3), .targets = std::vector(kColumns, 3)};
    const auto after = hidden(masking, equal, Random(2).at(r));
    for (std::size_t i = 1; i < kColumns; ++i) {
      const bool here = after.targets[i] != kIgnoredTarget;
      chosen[i] += here;
      beside[i] += here && after.targets[i - 1] != kIgnoredTarget;
    }
  }
  EXPECT_EQ(chosen[0], 0U);
  for (std::size_t i = 1; i < kColumns; ++i) expect_share(chosen[i], kRows, 0.15);
  for (std::size_t i = 2; i < kColumns; ++i) expect_share(beside[i], kRows, 0.15 * 0.15);
}

TEST(Masking, IsAFunctionOfKeyAndPositionAlone) {
  const Masking masking({.token = kMasks, .vocabulary = kWords});
  const auto row = plain_row(200, 3);
  const auto first = hidden(masking, row, 7);
  EXPECT_EQ(hidden(masking, row, 7), first);
  EXPECT_NE(hidden(masking, row, 8), first);
  // What is elsewhere in the row does not matter.
  auto other = row;
  std::fill(other.tokens.begin() + 100, other.tokens.end(), 5);
  std::fill(other.targets.begin() + 99, other.targets.end(), 5);
  const auto second = hidden(masking, other, 7);
  for (std::size_t i = 0; i < 100; ++i) {
    EXPECT_EQ(second.tokens[i], first.tokens[i]);
    EXPECT_EQ(second.targets[i], first.targets[i]);
  }
}

TEST(Masking, NeverHidesASpecialTokenNorWhatIsNoTarget) {
  const Masking masking(
      {.share = 1, .token = kMasks, .vocabulary = kWords, .special = {500, 0, 7, 5000}});
  const std::vector<std::int32_t> specials = {0, 7, 500, 5000, kMasks};
  auto row = plain_row(300, 4);
  for (std::size_t i = 0; i < 300; i += 3) row.tokens[i] = specials[i / 3 % 5];
  std::copy(row.tokens.begin() + 1, row.tokens.end(), row.targets.begin());
  std::fill(row.targets.begin() + 100, row.targets.begin() + 200, kIgnoredTarget);
  const auto after = hidden(masking, row, 1);
  for (std::size_t i = 0; i < 300; ++i) {
    const bool special = std::ranges::find(specials, row.tokens[i]) != specials.end();
    const bool may = i > 0 && !special && row.targets[i - 1] != kIgnoredTarget;
    EXPECT_EQ(after.targets[i], may ? row.tokens[i] : kIgnoredTarget) << i;
    if (!may) {
      EXPECT_EQ(after.tokens[i], row.tokens[i]) << i;
    }
  }
}

TEST(Masking, OfARowWithoutTargetsNothingIsHidden) {
  const Masking masking({.share = 1, .token = kMasks, .vocabulary = kWords});
  auto row = plain_row(50, 5);
  std::ranges::fill(row.targets, kIgnoredTarget);
  EXPECT_EQ(hidden(masking, row, 1), row);
  auto one = plain_row(1, 6);
  EXPECT_EQ(hidden(masking, one, 1).targets.front(), kIgnoredTarget);
  masking.hide(1, {}, {});
}

TEST(Masking, TokensOutsideItsVocabularyMayBeHidden) {
  const Masking masking({.share = 1, .token = 2000, .vocabulary = 10});
  const auto after = hidden(masking, plain_row(50, 7), 1);
  for (std::size_t i = 1; i < 50; ++i) EXPECT_GE(after.targets[i], 0);
  EXPECT_THAT(after.tokens, testing::Contains(2000));
}

TEST(Masking, KnowsWhatIsSpecialInATokenizer) {
  const auto bytes = make_byte_tokenizer();
  EXPECT_EQ(mask_token(*bytes), kMaskToken);
  EXPECT_THAT(special_tokens(*bytes),
              testing::ElementsAre(kBeginToken, kEndToken, kPadToken, kMaskToken));
  const auto disk = make_system_disk();
  const auto qwen = open_tokenizer(*disk, std::string(ISTHMUS_TOKENIZER_VECTORS) + "/qwen.json");
  ASSERT_TRUE(qwen);
  EXPECT_EQ(mask_token(**qwen), std::nullopt);
  const auto special = special_tokens(**qwen);
  EXPECT_THAT(special, testing::Contains(*(*qwen)->special("<|im_start|>")));
  std::vector<std::int32_t> text;
  ASSERT_TRUE((*qwen)->encode("The narrow strip joins two lands.", text));
  for (const auto id : text) EXPECT_THAT(special, Each(testing::Ne(id)));
}

TEST(Masking, FamiliesSayWhatTheyPredict) {
  for (const auto& family : families()) {
    ModelConfig config;
    config.family = family.name;
    EXPECT_EQ(objective_of(config), family.objective);
  }
  EXPECT_EQ(objective_of({.family = "llama"}), Objective::next_token);
  EXPECT_EQ(to_string(Objective::masked_tokens), "masked_tokens");
}

}  // namespace
}  // namespace isthmus::runtime
