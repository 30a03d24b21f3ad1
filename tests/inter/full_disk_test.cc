// A site whose disk is full: the others go on without it, and it takes part once there is room
// again.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/inter/scripted_federation.h"

namespace isthmus::inter {
namespace {

bool reaches_step(ScriptedFederation& federation, std::uint64_t step) {
  return federation.run_until(
      [&] { return federation.gateway(1).state() && federation.gateway(1).state()->step >= step; },
      120 * kSecond);
}

class FullForTest : public testing::TestWithParam<const char*> {};

// Its own contribution finds room, or that of another site does; the state, or the other's, not.
TEST_P(FullForTest, TheOthersGoOnWithoutTheSiteUntilThereIsRoomAgain) {
  auto options = options_of({kSecond, kSecond, kSecond});
  options.gateway.straggler_wait = 10'000 * kSecond;
  options.gateway.sync.outer_steps = 30;
  ScriptedFederation federation(std::move(options));
  const auto step = [&] { return federation.gateway(1).state()->step; };
  ASSERT_TRUE(reaches_step(federation, 6));
  federation.disk(2).set_faults({.full_for = GetParam()});
  const auto full_at = step();
  ASSERT_TRUE(federation.run_until([&] { return step() >= full_at + 8; }, 300 * kSecond));
  EXPECT_GT(federation.events(2, "disk_failed") + federation.events(2, "state_not_saved") +
                federation.events(2, "contribution_failed"),
            0U);
  federation.disk(2).set_faults({});
  EXPECT_TRUE(federation.run_until([&] { return federation.finished(); }, 600 * kSecond));
  EXPECT_EQ(federation.gateway(1).root(), federation.gateway(2).root());
}

INSTANTIATE_TEST_SUITE_P(Files, FullForTest, testing::Values("/state.", "-2", "-3", "/feedback."));

// Everything of a contribution comes while no file can be made for it, the close too, which comes
// once in a session.
TEST(FullDiskTest, WhatCameMeanwhileIsHeldOnceThereIsRoom) {
  auto options = options_of({kSecond, kSecond});
  options.without_vote = {2};
  options.gateway.sync.min_sites = 2;
  options.gateway.sync.outer_steps = 10;
  ScriptedFederation federation(std::move(options));
  ASSERT_TRUE(reaches_step(federation, 6));
  federation.disk(1).set_faults({.full_for = "-2"});
  federation.run_for(20 * kSecond);
  EXPECT_GT(federation.events(1, "disk_failed"), 0U);
  federation.disk(1).set_faults({});
  EXPECT_TRUE(federation.run_until([&] { return federation.finished(); }, 100 * kSecond));
}

struct StuckChunk {
  sim::DiskFaults faults;
  bool begun = false;  // the file of the contribution
  bool cut = false;    // the link, meanwhile
};
class StuckChunkTest : public testing::TestWithParam<StuckChunk> {};

// Nothing goes on without it, but nor does the link carry one chunk for ever.
TEST_P(StuckChunkTest, IsNotSentAgainAndAgain) {
  auto options = options_of({kSecond, kSecond});
  options.elements = 20'000;
  options.gateway.sync.outer_steps = 20;
  options.gateway.sync.min_sites = 2;
  options.gateway.sync.chunk_elements = 20'000;
  ScriptedFederation federation(std::move(options));
  ASSERT_TRUE(reaches_step(federation, 6));
  auto& disk = federation.disk(2);
  disk.set_faults(GetParam().faults);
  federation.run_for(20 * kSecond);
  const auto step = federation.gateway(2).state()->step + 1;
  EXPECT_EQ(*disk.exists(fmt::format("outer/contributions/{:08}-1", step)), GetParam().begun);
  if (GetParam().cut) {
    federation.cut(1, 2, true);
    federation.run_for(20 * kSecond);
    federation.cut(1, 2, false);
    federation.run_for(20 * kSecond);
  }
  const auto sent = [&] { return federation.gateway(1).status().links.at(0).chunks_sent; };
  const auto before = sent();
  federation.run_for(600 * kSecond);
  EXPECT_LE(sent(), before + 16) << "more than the credit";
  const auto all = sent();
  federation.run_for(600 * kSecond);
  EXPECT_EQ(sent(), all);
  disk.set_faults({});
  EXPECT_TRUE(federation.run_until([&] { return federation.finished(); }, 600 * kSecond));
  EXPECT_EQ(federation.gateway(1).root(), federation.gateway(2).root());
}

// No file can be made for it, or it does not fit into the file.
INSTANTIATE_TEST_SUITE_P(
    Faults, StuckChunkTest,
    testing::Values(StuckChunk{.faults = {.full_for = "contributions"}},
                    StuckChunk{.faults = {.full_for = "contributions"}, .cut = true},
                    StuckChunk{.faults = {.fits = 5000, .full_for = "-1"}, .begun = true},
                    StuckChunk{
                        .faults = {.fits = 5000, .full_for = "-1"}, .begun = true, .cut = true}));

// Its file can be begun, and the disk takes no chunk: peers are not sent again and again what comes
// to nothing. Others' contributions fit all the time.
TEST(FullDiskTest, AContributionThatDoesNotFitIsSentNoMoreThanOnce) {
  auto options = options_of({kSecond, kSecond, kSecond});
  options.elements = 150'000;
  options.gateway.sync.chunk_elements = 1 << 14;  // ten chunks
  options.gateway.straggler_wait = 10'000 * kSecond;
  options.gateway.sync.outer_steps = 15;
  ScriptedFederation federation(std::move(options));
  ASSERT_TRUE(reaches_step(federation, 6));
  const auto chunks = [&] { return federation.gateway(2).status().links.at(0).chunks_sent; };
  federation.disk(2).set_faults({.fits = 5000, .full_for = "-2"});
  federation.run_for(20 * kSecond);
  const auto before = chunks();
  federation.run_for(60 * kSecond);
  EXPECT_GT(federation.events(2, "disk_failed"), 0U);
  EXPECT_EQ(chunks(), before);
  federation.disk(2).set_faults({});
  EXPECT_TRUE(federation.run_until([&] { return federation.finished(); }, 600 * kSecond));
  EXPECT_EQ(federation.gateway(1).root(), federation.gateway(2).root());
}

// Bytes that are free.
class KeptForOthersTest : public testing::TestWithParam<std::size_t> {};

// As when a site that returns was served until there was no room, and all were killed then: who
// runs lets it go, and so does who is about to, whichever of its files does not fit.
TEST_P(KeptForOthersTest, KeepsNoGatewayFromBeginning) {
  auto options = options_of({kSecond, 20 * kSecond});
  options.gateway.sync.outer_steps = 8;
  ScriptedFederation federation(std::move(options));
  ASSERT_TRUE(reaches_step(federation, 5));
  // Its contribution to the step at hand is written anew when it starts again.
  const auto contributed = [&] { return federation.gateway(1).held().contains(1); };
  ASSERT_TRUE(federation.run_until(contributed, 10 * kSecond));
  federation.run_for(kSecond);
  federation.kill(1);
  auto& disk = federation.disk(1);
  const std::string kept = "outer/contributions/00000001-2";
  ASSERT_TRUE(replace_file(disk, kept, Bytes(1 << 20)));
  disk.set_faults({.room = disk.used_bytes() + GetParam()});
  federation.start(1);
  EXPECT_TRUE(federation.run_until([&] { return federation.finished(); }, 300 * kSecond));
  EXPECT_GE(federation.events(1, "own_contribution_restored"), 1U);
  EXPECT_FALSE(*disk.exists(kept));
  EXPECT_EQ(federation.gateway(1).root(), federation.gateway(2).root());
}

INSTANTIATE_TEST_SUITE_P(Free, KeptForOthersTest,
                         testing::Values(0, 8, 300, 4096, 8192, 20'000, 30'000));

// A record is what finds no room first: no contribution that is refused has made any.
TEST(FullDiskTest, ARecordTakesTheRoomOfWhatIsKeptForOthers) {
  auto options = options_of({5 * kSecond, 5 * kSecond});
  options.gateway.sync.outer_steps = 12;
  ScriptedFederation federation(std::move(options));
  ASSERT_TRUE(reaches_step(federation, 5));
  federation.run_for(2 * kSecond);  // what the last step no longer needs is gone
  auto& disk = federation.disk(1);
  const std::string kept = "outer/contributions/00000001-2";
  ASSERT_TRUE(replace_file(disk, kept, Bytes(1 << 20)));
  disk.set_faults({.room = disk.used_bytes(), .full_for = "/records"});
  EXPECT_TRUE(federation.run_until([&] { return federation.finished(); }, 300 * kSecond));
  EXPECT_FALSE(federation.process(1).failure());
  EXPECT_EQ(federation.events(1, "removed_for_room"), 1U);
  EXPECT_FALSE(*disk.exists(kept));
}

// Each time it is full is told, and when there is room again; one that flaps is not told each time.
TEST(FullDiskTest, EachTimeItIsFullIsTold) {
  auto options = options_of({kSecond, kSecond});
  options.elements = 20'000;
  options.gateway.sync.min_sites = 2;
  options.gateway.sync.outer_steps = 100;
  ScriptedFederation federation(std::move(options));
  ASSERT_TRUE(reaches_step(federation, 3));
  const auto fill_and_free = [&] {
    federation.disk(1).set_faults({.full_for = "contributions"});
    federation.run_for(7 * kSecond);
    federation.disk(1).set_faults({});
    federation.run_for(5 * kSecond);
  };
  for (std::size_t times = 1; times <= 3; ++times) {
    fill_and_free();
    EXPECT_EQ(federation.events(1, "disk_failed"), times);
    EXPECT_EQ(federation.events(1, "disk_takes_again"), times);
  }
  for (int i = 0; i < 7; ++i) fill_and_free();
  EXPECT_EQ(federation.events(1, "disk_failed"), 5U) << "four at once, then one a minute";
  EXPECT_EQ(federation.events(1, "disk_takes_again"), 5U);
}

TEST(FullDiskTest, AStateThatIsSavedInTheEndIsTold) {
  auto options = options_of({kSecond, kSecond});
  options.gateway.sync.min_sites = 2;
  options.gateway.sync.outer_steps = 30;
  ScriptedFederation federation(std::move(options));
  ASSERT_TRUE(reaches_step(federation, 3));
  federation.disk(1).set_faults({.full_for = "/state."});
  federation.run_for(12 * kSecond);
  ASSERT_GT(federation.events(1, "state_not_saved"), 0U);
  EXPECT_EQ(federation.events(1, "disk_takes_again"), 0U);
  federation.disk(1).set_faults({});
  federation.run_for(20 * kSecond);
  EXPECT_EQ(federation.events(1, "disk_takes_again"), 1U);
}

// It still votes, and its ranks still compute; but no contribution fits, its own or another one's.
TEST(FullDiskTest, TheOthersGoOnWithoutTheSiteUntilThereIsRoomAgain) {
  auto options = options_of({kSecond, kSecond, kSecond});
  options.elements = 100'000;
  options.gateway.sync.chunk_elements = 1 << 16;
  options.gateway.straggler_wait = 10'000 * kSecond;
  options.gateway.sync.outer_steps = 30;
  ScriptedFederation federation(std::move(options));
  ASSERT_TRUE(reaches_step(federation, 6));
  federation.disk(2).set_faults({.fits = 5000});  // the head of a file does
  const auto step = federation.gateway(1).state()->step;
  const auto sent = federation.gateway(1).status().links.at(0).chunks_sent;
  ASSERT_TRUE(federation.run_until([&] { return federation.gateway(1).state()->step >= step + 6; },
                                   300 * kSecond));
  // Once, for its own contribution and those of others, however often they are tried again.
  EXPECT_EQ(federation.events(2, "disk_failed"), 1U);
  EXPECT_EQ(federation.events(2, "contribution_failed"), 0U);
  EXPECT_FALSE(federation.gateway(2).status().attention.empty());
  EXPECT_EQ(federation.gateway(2).status().phase, "waiting for the disk");
  EXPECT_EQ(federation.gateway(1).status().phase.find("disk"), std::string::npos);
  EXPECT_LE(federation.gateway(1).status().links.at(0).chunks_sent, sent + 30) << "again and again";
  federation.disk(2).set_faults({});
  EXPECT_TRUE(federation.run_until([&] { return federation.finished(); }, 600 * kSecond));
  EXPECT_EQ(federation.gateway(1).root(), federation.gateway(2).root());
}

}  // namespace
}  // namespace isthmus::inter
