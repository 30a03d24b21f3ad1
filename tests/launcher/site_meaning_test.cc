#include "launcher/site_meaning.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "launcher/site_memory.h"
#include "launcher/units.h"
#include "runtime/model_config.h"
#include "security/roster.h"
#include "tests/launcher/sample_site.h"

namespace isthmus::launcher {
namespace {

using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

security::Roster roster_of(const std::vector<bool>& voters) {
  static constexpr std::array kNames = {"alpha", "beta", "gamma", "delta"};
  security::Roster roster;
  for (std::size_t i = 0; i < voters.size(); ++i)
    roster.sites.push_back({.id = static_cast<std::uint32_t>(i + 1),
                            .name = kNames[i],
                            .voter = voters[i],
                            .identity = {},
                            .gateways = {}});
  return roster;
}

SyncOptions sync_of(std::int64_t min_sites) {
  SyncOptions sync;
  sync.inner_steps = 10;
  sync.outer_steps = 24;
  sync.min_sites = min_sites;
  return sync;
}

TEST(LossLines, TwoEqualVoters) {
  EXPECT_THAT(
      loss_lines(roster_of({true, true}), sync_of(2)),
      ElementsAre(
          "the run begins when all 2 voters are here",
          "if any one of alpha and beta is lost: nothing commits until it returns: 1 of 2 "
          "voters is no majority. Each other site trains on for 10 inner steps past the last "
          "agreed state, then waits",
          "to let one site go on without the other, give it the only vote (voter = false at "
          "the other, in the roster) and set min_sites = 1"));
}

TEST(LossLines, OneVoterOfTwo) {
  EXPECT_THAT(loss_lines(roster_of({true, false}), sync_of(1)),
              ElementsAre("if alpha is lost: nothing commits until it returns: 0 of 1 voter is no "
                          "majority. Each other site trains on for 10 inner steps past the last "
                          "agreed state, then waits",
                          "if beta is lost: the others go on; its work is used when it returns"));
}

TEST(LossLines, ThreeVotersAndMinSites) {
  EXPECT_THAT(loss_lines(roster_of({true, true, true}), sync_of(2)),
              ElementsAre("the run begins when all 3 voters are here",
                          "if any one of alpha, beta and gamma is lost: the others go on; its work "
                          "is used when it returns",
                          "voters that may be lost at the same time: 1"));
  EXPECT_THAT(loss_lines(roster_of({true, true, true}), sync_of(3)),
              ElementsAre("the run begins when all 3 voters are here",
                          "if any one of alpha, beta and gamma is lost: nothing commits until it "
                          "returns: min_sites = 3, and 2 sites are left",
                          "voters that may be lost at the same time: 1"));
}

// One is written while the newest are kept, and the best.
TEST(Meaning, ThereMustBeRoomForTheBestCheckpointToo) {
  auto file = checked(std::string(kGood)).file;
  const auto roster = roster_of({true, true});
  const double vector = 4.0 * static_cast<double>(runtime::parameter_count(file.model.config));
  EXPECT_THAT(meaning_of(file, &roster),
              HasSubstr(about_bytes((3 * 3 + 2) * vector) + " for checkpoints"));
  file.train.evaluate_every = 10;
  EXPECT_THAT(meaning_of(file, &roster),
              HasSubstr(about_bytes((3 * 4 + 2) * vector) + " for checkpoints"));
}

TEST(Meaning, TheRateLimitIsOfAllOtherSitesTogether) {
  auto file = checked(std::string(kGood)).file;
  file.gateway.rate_limit = 8'000'000;
  const double bytes = 4.0 * static_cast<double>(runtime::parameter_count(file.model.config)) *
                       codec_share(file.sync.codec);
  for (const auto& [sites, to_all] : {std::pair(2, ""), {3, " to both"}, {4, " to all 3"}}) {
    const auto roster = roster_of(std::vector<bool>(static_cast<std::size_t>(sites), true));
    EXPECT_THAT(meaning_of(file, &roster),
                HasSubstr(fmt::format("on the wire to each other site; {}{} at 8 Mbit/s\n",
                                      about_duration((sites - 1) * bytes / 1e6), to_all)));
  }
  const auto alone = roster_of({true});
  EXPECT_THAT(meaning_of(file, &alone), Not(HasSubstr("8 Mbit/s")));
}

TEST(Meaning, WhatHoldsInEachHourIsSaidAndWhatNeverHoldsIsNot) {
  auto file = checked(std::string(kGood)).file;
  const auto roster = roster_of({true, true});
  auto& gateway = file.gateway;
  gateway.rate_limit = 20'000'000;
  gateway.zone = "Europe/Berlin";
  gateway.windows = {{8 * 60, 18 * 60, 1'000'000}, {18 * 60, 22 * 60, 0}};
  EXPECT_THAT(meaning_of(file, &roster),
              ContainsRegex("[0-9] m?s at 1 Mbit/s from 08:00 to 18:00; as fast as the line goes "
                            "from 18:00 to 22:00; else [^;]* at 20 Mbit/s .time of Europe/Berlin"));
  gateway.windows[1].to = 8 * 60;
  EXPECT_THAT(meaning_of(file, &roster), Not(HasSubstr("20 Mbit/s")));
  EXPECT_EQ(gateway.rate_limit_min(), 1'000'000);
  gateway.rate_limit = 100'000;
  EXPECT_EQ(gateway.rate_limit_min(), 1'000'000);
  gateway.windows.clear();
  for (int hour = 0; hour < 6; ++hour)
    gateway.windows.push_back({60 * hour, 60 * hour + 60, hour % 2 == 0 ? 0 : 64'000 * hour});
  EXPECT_THAT(meaning_of(file, &roster),
              ContainsRegex("in 6 windows [^;]* at 64 kbit/s to as fast as the line goes; "
                            "else [^;]* at 100 kbit/s"));
}

}  // namespace
}  // namespace isthmus::launcher
