#include "base/random.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

namespace isthmus {
namespace {

using Block = std::array<std::uint32_t, 4>;

// The known answers that the authors of Philox publish (Random123, kat_vectors).
TEST(Random, PhiloxGivesTheKnownAnswers) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}),
            (Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  const std::uint32_t f = 0xffffffff;
  EXPECT_EQ(philox4x32({f, f, f, f}, {f, f}),
            (Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Random, ADrawIsAFunctionOfKeyAndPosition) {
  const Random a(42);
  Random b(42);
  std::vector<std::uint64_t> drawn;
  for (int i = 0; i < 100; ++i) drawn.push_back(b.next());
  for (std::uint64_t i = 100; i-- > 0;) EXPECT_EQ(a.at(i), drawn[i]);
  EXPECT_EQ(b.position(), 100u);

  b.seek(17);
  EXPECT_EQ(b.next(), drawn[17]);
  EXPECT_EQ(Random(42).block(0), philox4x32({0, 0, 0, 0}, {42, 0}));
  EXPECT_NE(Random(43).at(0), a.at(0));
  EXPECT_NE(Random(std::uint64_t{1} << 32).at(0), Random(1).at(0));
  EXPECT_NE(a.at(std::uint64_t{1} << 32), a.at(1));
}

TEST(Random, SplittingNamesStreamsThatDoNotMeet) {
  const Random root(7);
  EXPECT_EQ(root.split(3).key(), root.split(3).key());
  EXPECT_EQ(root.split("data").key(), root.split("data").key());
  Random moved(7);
  moved.next();
  EXPECT_EQ(moved.split(3).key(), root.split(3).key());  // whatever was drawn before

  std::set<std::uint64_t> keys{root.key()};
  for (std::uint64_t name = 0; name < 1000; ++name) {
    keys.insert(root.split(name).key());
    keys.insert(root.split(name).split(name).key());
    keys.insert(Random(8).split(name).key());
  }
  for (const auto* name : {"", "a", "b", "ab", "ba", "data", "data "})
    keys.insert(root.split(name).key());
  EXPECT_EQ(keys.size(), 1u + 3000u + 7u);

  std::set<std::uint64_t> draws;
  for (std::uint64_t i = 0; i < 1000; ++i) {
    draws.insert(root.at(i));
    draws.insert(root.split(0).at(i));
    draws.insert(root.split("data").at(i));
  }
  EXPECT_EQ(draws.size(), 3000u);
}

TEST(Random, StreamsOfOneParentAreNotCorrelated) {
  const Random root(11);
  const auto a = root.split(0);
  const auto b = root.split(1);
  const int n = 100'000;
  double sum = 0;
  for (int i = 0; i < n; ++i) sum += (a.uniform_at(i) - 0.5) * (b.uniform_at(i) - 0.5);
  // Variance of one product is 1/144: five standard deviations.
  EXPECT_LT(std::abs(sum / n), 5.0 / 12.0 / std::sqrt(n));
}

TEST(Random, UniformIsInRangeWithItsMoments) {
  Random random(3);
  const int n = 200'000;
  double sum = 0, squares = 0, low = 1, high = 0;
  for (int i = 0; i < n; ++i) {
    const double u = random.uniform();
    ASSERT_GE(u, 0.0);
    ASSERT_LT(u, 1.0);
    low = std::min(low, u), high = std::max(high, u);
    sum += u, squares += u * u;
  }
  EXPECT_NEAR(sum / n, 0.5, 5 * std::sqrt(1.0 / 12 / n));
  EXPECT_NEAR(squares / n, 1.0 / 3, 5 * std::sqrt(4.0 / 45 / n));
  EXPECT_LT(low, 1e-4);
  EXPECT_GT(high, 1 - 1e-4);
}

TEST(Random, NormalHasItsMoments) {
  Random random(5);
  const int n = 200'000;
  double sum = 0, squares = 0, fourths = 0;
  for (int i = 0; i < n; ++i) {
    const double x = random.normal();
    ASSERT_TRUE(std::isfinite(x));
    sum += x, squares += x * x, fourths += x * x * x * x;
  }
  EXPECT_NEAR(sum / n, 0.0, 5 / std::sqrt(n));
  EXPECT_NEAR(squares / n, 1.0, 5 * std::sqrt(2.0 / n));
  EXPECT_NEAR(fourths / n, 3.0, 5 * std::sqrt(96.0 / n));
}

TEST(Random, BelowStaysBelowAndReachesEverything) {
  Random random(9);
  EXPECT_EQ(random.below(1), 0u);
  for (const std::uint64_t bound : {2, 3, 7, 10}) {
    std::vector<int> counts(bound);
    const int n = 70'000;
    for (int i = 0; i < n; ++i) {
      const auto x = random.below(bound);
      ASSERT_LT(x, bound);
      ++counts[x];
    }
    const double expected = static_cast<double>(n) / static_cast<double>(bound);
    for (const int count : counts) EXPECT_NEAR(count, expected, 6 * std::sqrt(expected));
  }
}

TEST(Random, BelowIsFairForBoundsThatDoNotDivide) {
  // 3/4 of 2^64: a plain remainder would land in the first third twice as often as in the others.
  Random random(13);
  const std::uint64_t bound = std::uint64_t{3} << 62;
  int first = 0;
  const int n = 30'000;
  for (int i = 0; i < n; ++i) {
    const auto x = random.below(bound);
    ASSERT_LT(x, bound);
    if (x < bound / 3) ++first;
  }
  EXPECT_NEAR(first, n / 3.0, 6 * std::sqrt(n * 2.0 / 9));
  EXPECT_DEATH(random.below(0), "bound > 0");
}

TEST(Random, ChanceIsAProbability) {
  Random random(15);
  int hits = 0;
  for (int i = 0; i < 100'000; ++i) {
    EXPECT_FALSE(random.chance(0.0));
    EXPECT_TRUE(random.chance(1.0));
    hits += random.chance(0.1);
  }
  EXPECT_NEAR(hits, 10'000, 6 * std::sqrt(9'000));
}

}  // namespace
}  // namespace isthmus
