// What a crash leaves of a site's own contribution: the close, and not every chunk that was written
// before it. Or the disk forgets, and others have it whole.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "base/aligned_buffer.h"
#include "tests/inter/scripted_federation.h"

namespace isthmus::inter {
namespace {

// The first chunk of the contribution of site 3 to this step, which others may have.
void damage_contribution(sim::SimulatedDisk& disk, std::uint64_t step) {
  const auto file = disk.open(fmt::format("outer/contributions/{:08}-3", step), Disk::Open::update);
  ASSERT_TRUE(file);
  // The head has the first block; the first chunk begins with its index.
  ASSERT_TRUE((*file)->write_at(kDiskAlignment, Bytes(kDiskAlignment)));
  ASSERT_TRUE((*file)->sync());
}

class DamagedContributionTest : public testing::TestWithParam<bool> {
 protected:
  static constexpr SiteId kSite = 3;

  static ScriptedFederation::Options options() {
    return options_of({20 * kSecond, 20 * kSecond, kSecond});
  }
  bool contributed() { return federation_.gateway(kSite).held().contains(kSite); }

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
  damage_contribution(federation_.disk(kSite), 1);
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

// It waits for leave to make it anew, which one that is lost for good never gives. Its ranks are
// gone meanwhile, so that nothing of it counts for the step: that takes in who would like to be in.
TEST(DamagedAndAloneTest, HoldsUpNoStepWithoutRanks) {
  constexpr SiteId kSite = 3, kLost = 1, kNew = 4;
  auto options = options_of({5 * kSecond, 20 * kSecond, kSecond, 5 * kSecond});
  options.late = {kNew};
  options.without_vote = {kNew};
  options.gateway.sync.min_sites = 2;
  options.gateway.sync.outer_steps = 20;
  ScriptedFederation federation(std::move(options));
  const auto contributed = [&](SiteId site) {
    return federation.gateway(site).held().contains(site);
  };
  ASSERT_TRUE(federation.run_until([&] { return federation.step(kSite) >= 3; }, 200 * kSecond));
  federation.kill(kLost);
  federation.cut_off(kSite, true);
  ASSERT_TRUE(federation.run_until([&] { return contributed(kSite); }, 60 * kSecond));
  const auto step = federation.step(kSite) + 1;
  federation.kill(kSite);
  damage_contribution(federation.disk(kSite), step);
  federation.start(kSite);
  federation.cut_off(kSite, false);
  ASSERT_TRUE(federation.run_until(
      [&] { return federation.gateway(kSite).status().phase == "exchanging"; }, 60 * kSecond));
  federation.end_ranks(kSite);
  federation.start(kNew);
  EXPECT_TRUE(federation.run_until([&] { return federation.step(2) >= step + 1; }, 600 * kSecond));
  EXPECT_FALSE(contributed(kSite));
  EXPECT_TRUE(federation.gateway(2).view().is_member(kNew));
}

// The disk has forgotten what the codec cut off of a contribution that others have: the residual
// before rode in that contribution, and does not ride once more.
class ForgottenFeedbackTest : public testing::TestWithParam<bool> {};

TEST_P(ForgottenFeedbackTest, TheOneBeforeDoesNotCountTwice) {
  const bool missing = GetParam();
  constexpr SiteId kSite = 3;
  ScriptedFederation federation(options_of({20 * kSecond, 20 * kSecond, kSecond}));
  const auto at_step = [&](std::uint64_t step) {
    const auto& gateway = federation.gateway(kSite);
    return gateway.state() && gateway.state()->step == step;
  };
  const auto is_zero = [](const LargeVector<float>& values) {
    return std::ranges::all_of(values, [](float value) { return value == 0; });
  };
  ASSERT_TRUE(federation.run_until(
      [&] { return at_step(1) && federation.gateway(1).held().contains(kSite); }, 200 * kSecond));
  federation.kill(kSite);
  auto& disk = federation.disk(kSite);
  std::size_t forgotten = 0;
  for (const auto* slot : {"outer/feedback.0", "outer/feedback.1"}) {
    auto bytes = *read_file(disk, slot, 1 << 20);
    ByteReader in(bytes);
    in.raw(8 + 4);
    if (in.get<std::uint64_t>() != 2) continue;
    bytes.back() ^= std::byte{1};
    ASSERT_TRUE(missing ? disk.remove(slot) : replace_file(disk, slot, bytes));
    ++forgotten;
  }
  ASSERT_EQ(forgotten, 1U);
  federation.start(kSite);
  ASSERT_TRUE(federation.run_until([&] { return at_step(1); }, 60 * kSecond));
  const auto lost = [&] { return federation.events(kSite, "feedback_lost"); };
  EXPECT_EQ(lost(), 1U);
  ASSERT_TRUE(federation.run_until([&] { return at_step(2); }, 200 * kSecond));
  EXPECT_TRUE(is_zero(federation.gateway(kSite).feedback()));
  ASSERT_TRUE(federation.run_until([&] { return !is_zero(federation.gateway(kSite).feedback()); },
                                   200 * kSecond));
  EXPECT_EQ(lost(), 1U);
  EXPECT_TRUE(federation.run_until([&] { return federation.finished(); }, 600 * kSecond));
}

// Others have a contribution that is damaged here, and what rode in it: of its two feedbacks, which
// are whole, the one before rides no more once a record names it. Where its own is lost, too, that
// is said.
TEST(DamagedWithFeedbackTest, WhatRodeInItDoesNotCountTwice) {
  constexpr SiteId kSite = 3;
  for (const bool own_is_lost : {false, true}) {
    ScriptedFederation federation(options_of({20 * kSecond, 20 * kSecond, kSecond}));
    const auto at_step = [&](std::uint64_t step) {
      const auto& gateway = federation.gateway(kSite);
      return gateway.state() && gateway.state()->step == step;
    };
    ASSERT_TRUE(federation.run_until(
        [&] { return at_step(1) && federation.gateway(1).held().contains(kSite); }, 200 * kSecond));
    federation.kill(kSite);
    auto& disk = federation.disk(kSite);
    const auto slot_of_step = [&](std::uint64_t step) {
      for (const std::string slot : {"outer/feedback.0", "outer/feedback.1"}) {
        const auto bytes = *read_file(disk, slot, 1 << 20);
        ByteReader in(bytes);
        in.raw(8 + 4);
        if (in.get<std::uint64_t>() == step) return slot;
      }
      return std::string();
    };
    const auto slot = slot_of_step(2);
    ASSERT_NE(slot, "");
    auto bytes = *read_file(disk, slot, 1 << 20);
    LargeVector<float> residual(federation.layout().elements());
    const auto values = std::as_writable_bytes(std::span(residual));
    std::copy_n(bytes.end() - static_cast<std::ptrdiff_t>(values.size()), values.size(),
                values.begin());
    damage_contribution(disk, 2);
    if (own_is_lost) {
      bytes.back() ^= std::byte{1};
      ASSERT_TRUE(replace_file(disk, slot, bytes));
    }
    federation.start(kSite);
    ASSERT_TRUE(federation.run_until([&] { return at_step(2); }, 200 * kSecond));
    EXPECT_EQ(federation.gateway(kSite).feedback(), own_is_lost ? LargeVector<float>() : residual);
    EXPECT_EQ(federation.events(kSite, "feedback_lost"), own_is_lost ? 1U : 0U);
    // And it is what another restart goes on from: the next one is written over the one before.
    ASSERT_TRUE(federation.run_until([&] { return federation.gateway(kSite).pending_step() == 3U; },
                                     200 * kSecond));
    if (!own_is_lost) {
      EXPECT_NE(slot_of_step(3), slot);
    }
    EXPECT_TRUE(federation.run_until([&] { return federation.finished(); }, 600 * kSecond));
  }
}

// Nor of both slots is it silent.
TEST(MissingFeedbackTest, OfBothSlotsIsTold) {
  constexpr SiteId kSite = 3;
  ScriptedFederation federation(options_of({20 * kSecond, 20 * kSecond, kSecond}));
  const auto named = [&] { return federation.gateway(kSite).state()->step >= 2; };
  ASSERT_TRUE(federation.run_until([&] { return federation.gateway(kSite).state() && named(); },
                                   200 * kSecond));
  federation.kill(kSite);
  for (const auto* slot : {"outer/feedback.0", "outer/feedback.1"})
    ASSERT_TRUE(federation.disk(kSite).remove(slot));
  federation.start(kSite);
  EXPECT_TRUE(federation.run_until([&] { return federation.finished(); }, 600 * kSecond));
  EXPECT_EQ(federation.events(kSite, "feedback_lost"), 1U);
}

// Nor is anything lost of who has contributed once, or of whose slots the older one is missing.
TEST(MissingFeedbackTest, ThatIsNotTheNewestIsNotMissed) {
  constexpr SiteId kSite = 3;
  for (const std::uint64_t steps : {0, 1}) {
    ScriptedFederation federation(options_of({20 * kSecond, 20 * kSecond, kSecond}));
    ASSERT_TRUE(federation.run_until(
        [&] {
          const auto& gateway = federation.gateway(kSite);
          return gateway.state() && gateway.state()->step == steps &&
                 federation.gateway(1).held().contains(kSite);
        },
        200 * kSecond));
    federation.kill(kSite);
    auto& disk = federation.disk(kSite);
    for (const auto* slot : {"outer/feedback.0", "outer/feedback.1"}) {
      const auto bytes = read_file(disk, slot, 1 << 20);
      if (!bytes) continue;
      ByteReader in(*bytes);
      in.raw(8 + 4);
      if (in.get<std::uint64_t>() == steps) {
        ASSERT_TRUE(disk.remove(slot));
      }
    }
    federation.start(kSite);
    EXPECT_TRUE(federation.run_until([&] { return federation.finished(); }, 600 * kSecond));
    EXPECT_EQ(federation.events(kSite, "feedback_lost"), 0U) << steps;
  }
}

// A crash tore a chunk of another site's contribution, which came again then: it is there twice.
TEST(TornContributionTest, CountsWithWhatCameAgain) {
  ScriptedFederation federation(options_of({20 * kSecond, 20 * kSecond, kSecond}));
  const auto holds = [&] { return federation.gateway(1).held().contains(3); };
  ASSERT_TRUE(federation.run_until(holds, 60 * kSecond));
  federation.cut_off(1, true);
  federation.kill(1);
  auto& disk = federation.disk(1);
  const std::string path = "outer/contributions/00000001-3";
  const auto whole = *read_file(disk, path, 1 << 20);
  const auto first = std::span(whole).subspan(kDiskAlignment);
  const auto length = ByteReader(first.subspan(4)).get<std::uint32_t>();
  Bytes torn(first.begin(), first.begin() + static_cast<std::ptrdiff_t>(disk_aligned(8 + length)));
  torn[8 + length - 1] ^= std::byte{1};
  auto both = whole;
  both.insert(both.begin() + kDiskAlignment, torn.begin(), torn.end());
  ASSERT_TRUE(replace_file(disk, path, both));
  federation.start(1);
  EXPECT_TRUE(federation.run_until(holds, 10 * kSecond));
  // And once more: what is whole is written whole.
  federation.kill(1);
  EXPECT_EQ(read_file(disk, path, 1 << 20)->size(), whole.size());
  federation.start(1);
  EXPECT_TRUE(federation.run_until(holds, 10 * kSecond));
}

INSTANTIATE_TEST_SUITE_P(Slots, ForgottenFeedbackTest, testing::Bool(),
                         [](const auto& tested) { return tested.param ? "Missing" : "Damaged"; });
INSTANTIATE_TEST_SUITE_P(Others, DamagedContributionTest, testing::Bool(),
                         [](const auto& tested) { return tested.param ? "HaveIt" : "DoNot"; });

}  // namespace
}  // namespace isthmus::inter
