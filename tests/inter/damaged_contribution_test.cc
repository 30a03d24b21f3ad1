// What a crash leaves of a site's own contribution: the close, and not every chunk that was written
// before it. Or the disk forgets, and others have it whole.
#include <gtest/gtest.h>

#include "base/aligned_buffer.h"
#include "tests/inter/scripted_federation.h"

namespace isthmus::inter {
namespace {

class DamagedContributionTest : public testing::TestWithParam<bool> {
 protected:
  static constexpr SiteId kSite = 3;

  static ScriptedFederation::Options options() {
    return options_of({20 * kSecond, 20 * kSecond, kSecond});
  }
  bool contributed() { return federation_.gateway(kSite).held().contains(kSite); }
  void damage() {
    auto& disk = federation_.disk(kSite);
    const auto file = disk.open("outer/contributions/00000001-3", Disk::Open::update);
    ASSERT_TRUE(file);
    // The head has the first block; the first chunk begins with its index.
    ASSERT_TRUE((*file)->write_at(kDiskAlignment, Bytes(kDiskAlignment)));
    ASSERT_TRUE((*file)->sync());
  }

  ScriptedFederation federation_{options()};
};

TEST_P(DamagedContributionTest, IsMadeAnewWhereNobodyHasIt) {
  const bool others_have_it = GetParam();
  ASSERT_TRUE(federation_.run_until([&] { return federation_.gateway(kSite).state() != nullptr; },
                                    60 * kSecond));
  if (!others_have_it) federation_.cut_off(kSite, true);
  ASSERT_TRUE(federation_.run_until([&] { return contributed(); }, 60 * kSecond));
  const auto made = federation_.gateway(kSite).held().at(kSite);
  if (others_have_it) {
    ASSERT_TRUE(federation_.run_until([&] { return federation_.gateway(1).held().contains(kSite); },
                                      60 * kSecond));
  }
  federation_.kill(kSite);
  damage();
  federation_.cut_off(kSite, false);
  federation_.start(kSite);
  ASSERT_TRUE(federation_.run_until([&] { return federation_.gateway(1).held().contains(kSite); },
                                    60 * kSecond));
  EXPECT_EQ(federation_.gateway(1).held().at(kSite) == made, others_have_it);
  EXPECT_TRUE(federation_.run_until([&] { return federation_.finished(); }, 600 * kSecond));
  for (const SiteId site : {1, 2, 3}) {
    EXPECT_EQ(federation_.events(site, "two_contributions"), 0U);
    EXPECT_FALSE(federation_.process(site).failure());
  }
}

INSTANTIATE_TEST_SUITE_P(Others, DamagedContributionTest, testing::Bool(),
                         [](const auto& tested) { return tested.param ? "HaveIt" : "DoNot"; });

}  // namespace
}  // namespace isthmus::inter
