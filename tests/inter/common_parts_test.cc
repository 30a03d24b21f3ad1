#include "inter/common_parts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>

#include "base/random.h"

namespace isthmus::inter {
namespace {

using Held = std::vector<std::vector<Part>>;

Part part(SiteId site, std::uint64_t tokens = 1) {
  return {.site = site, .root = {}, .tokens = tokens, .base = {}};
}

std::optional<std::vector<Part>> best(const Held& held, std::size_t min_sites) {
  std::vector<const std::vector<Part>*> all;
  for (const auto& parts : held) all.push_back(&parts);
  return best_common_parts(all, held.size() / 2 + 1, min_sites);
}

// Every majority is looked at.
std::optional<std::vector<Part>> best_of_all(const Held& held, std::size_t min_sites) {
  std::optional<std::vector<Part>> best;
  const auto rank = [](const std::vector<Part>& parts) {
    std::uint64_t tokens = 0;
    for (const auto& part : parts) tokens += part.tokens;
    return std::pair(tokens, parts.size());
  };
  for (std::uint32_t mask = 0; mask < 1U << held.size(); ++mask) {
    if (static_cast<std::size_t>(std::popcount(mask)) != held.size() / 2 + 1) continue;
    std::vector<Part> shared = held[static_cast<std::size_t>(std::countr_zero(mask))];
    for (std::size_t i = 0; i < held.size(); ++i) {
      if ((mask >> i & 1) == 0) continue;
      std::vector<Part> both;
      std::ranges::set_intersection(shared, held[i], std::back_inserter(both));
      shared = std::move(both);
    }
    if (shared.empty() || shared.size() < min_sites) continue;
    if (!best || rank(shared) > rank(*best) || (rank(shared) == rank(*best) && shared < *best))
      best = std::move(shared);
  }
  return best;
}

Held random_held(Random& random, std::size_t holders, SiteId sites, double chance) {
  std::vector<Part> parts;
  for (SiteId site = 1; site <= sites; ++site) parts.push_back(part(site, random.below(4)));
  Held held(holders);
  for (auto& some : held)
    for (const auto& one : parts)
      if (random.chance(chance)) some.push_back(one);
  return held;
}

TEST(CommonParts, AreTheBestOnesThatAFewHave) {
  std::size_t found = 0, none = 0;
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    Random random(seed);
    const auto held = random_held(random, 1 + random.below(12),
                                  static_cast<SiteId>(1 + random.below(20)), random.uniform());
    const auto min_sites = random.below(5);
    const auto expected = best_of_all(held, min_sites);
    EXPECT_EQ(best(held, min_sites), expected) << "seed " << seed;
    ++(expected ? found : none);
  }
  EXPECT_GT(found, 400U);
  EXPECT_GT(none, 400U);
}

// A majority of many has some parts in common; besides, each has others at random.
TEST(CommonParts, AreFoundAmongMany) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    Random random(seed);
    const auto holders = 14 + random.below(kSitesMax - 13);
    auto held =
        random_held(random, holders, static_cast<SiteId>(holders), 0.3 + 0.3 * random.uniform());
    const auto min_sites = 1 + random.below(3);
    std::vector<std::size_t> order(holders);
    for (std::size_t i = 0; i < holders; ++i) order[i] = i;
    for (std::size_t i = 0; i < holders; ++i)
      std::swap(order[i], order[i + random.below(holders - i)]);
    for (std::size_t i = 0; i < holders / 2 + 1; ++i) {
      auto& some = held[order[i]];
      for (std::size_t k = 0; k < min_sites; ++k)
        some.push_back(part(static_cast<SiteId>(1000 + k)));
    }
    const auto common = best(held, min_sites);
    ASSERT_TRUE(common) << "seed " << seed;
    EXPECT_GE(common->size(), min_sites);
    const auto having = std::ranges::count_if(
        held, [&](const auto& some) { return std::ranges::includes(some, *common); });
    EXPECT_GT(2 * static_cast<std::size_t>(having), holders);
  }
}

// Whatever they have, an answer comes soon.
TEST(CommonParts, OfManyWithoutAnyAreNotLookedForWithoutEnd) {
  Random random(1);
  EXPECT_FALSE(best(random_held(random, kSitesMax, kSitesMax, 0.9), 200));
}

TEST(CommonParts, OfNobodyAreNone) {
  EXPECT_FALSE(best({}, 0));
  EXPECT_FALSE(best({{}, {}, {}}, 0));
}

}  // namespace
}  // namespace isthmus::inter
