// How a run ends where not all sites are there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "tests/inter/scripted_federation.h"

namespace isthmus::inter {
namespace {

class LateTest : public testing::TestWithParam<int> {};

// Killed and dropped, it is started again when the others have just made the last step; until the
// new session begins they see the old one.
TEST_P(LateTest, ASiteThatReturnsForTheEndGetsIt) {
  constexpr auto kCompute = 300 * kMillisecond;
  auto options = options_of({kCompute, kCompute, kCompute});
  options.network.silent_deaths = 1;
  options.gateway.sync.outer_steps = 8;
  options.gateway.first_wait = 500 * kMillisecond;
  options.gateway.straggler_wait = 500 * kMillisecond;
  options.gateway.linger = 2 * kSecond;
  ScriptedFederation federation(std::move(options));
  const auto at = [&](std::uint64_t step) {
    return federation.run_until(
        [&, step] {
          const auto& state = federation.gateway(1).state();
          return state && state->step >= step;
        },
        300 * kSecond);
  };
  ASSERT_TRUE(at(5));
  federation.kill(3);
  ASSERT_TRUE(at(8));
  EXPECT_FALSE(federation.gateway(1).view().is_member(3));
  federation.run_for(GetParam() * kMillisecond);
  EXPECT_EQ(federation.gateway(1).status().links.at(1).state, "up") << "the old session";
  federation.start(3);
  EXPECT_TRUE(federation.run_until(
      [&] {
        const auto& state = federation.gateway(3).state();
        return state && state->step == 8;
      },
      120 * kSecond));
}

INSTANTIATE_TEST_SUITE_P(Milliseconds, LateTest, testing::Values(0, 100, 300, 600, 1000));

// It never was a member, and comes when the run is over: a site of it is started again.
TEST(EndedRunTest, IsServedToWhoComesLate) {
  auto options = options_of({kSecond, kSecond});
  options.without_vote = {2};
  options.late = {2};
  options.network.delay = 200 * kMillisecond;
  ScriptedFederation federation(std::move(options));
  ASSERT_TRUE(federation.run_until([&] { return federation.process(1).ended(); }, 120 * kSecond));
  federation.start(2);
  federation.run_for(30 * kSecond);
  EXPECT_FALSE(federation.gateway(2).state());
  federation.kill(1);
  federation.start(1);
  EXPECT_TRUE(federation.run_until([&] { return federation.finished(); }, 60 * kSecond));
  EXPECT_EQ(federation.gateway(2).root(), federation.gateway(1).root());
}

// The run ends without one that was killed; who ends says so, unless all have the last step.
TEST(EndedRunTest, SaysWhoLacksTheEnd) {
  for (const bool killed : {true, false}) {
    ScriptedFederation federation(options_of({kSecond, kSecond, kSecond}));
    ASSERT_TRUE(federation.run_until(
        [&] { return federation.gateway(3).state() && federation.gateway(3).state()->step >= 1; },
        60 * kSecond));
    if (killed) federation.kill(3);
    ASSERT_TRUE(federation.run_until(
        [&] { return federation.process(1).ended() && federation.process(2).ended(); },
        600 * kSecond));
    for (const SiteId site : {1, 2})
      EXPECT_EQ(federation.events(site, "end_not_everywhere"), killed ? 1U : 0U) << site;
  }
}

// Whoever is started once more knows only of those that come.
TEST(EndedRunTest, SaysNothingOfOthersWhenItIsStartedAgain) {
  ScriptedFederation federation(options_of({kSecond, kSecond, kSecond}));
  ASSERT_TRUE(federation.run_until([&] { return federation.finished(); }, 600 * kSecond));
  ASSERT_TRUE(federation.run_until(
      [&] {
        return federation.process(1).ended() && federation.process(2).ended() &&
               federation.process(3).ended();
      },
      60 * kSecond));
  federation.kill(1);
  federation.start(1);
  ASSERT_TRUE(federation.run_until([&] { return federation.process(1).ended(); }, 120 * kSecond));
  EXPECT_EQ(federation.events(1, "run_finished"), 2U);
  EXPECT_EQ(federation.events(1, "end_not_everywhere"), 0U);
}

// One that can be reached and does not save the last step: whoever waits for it says so.
TEST(EndedRunTest, SaysForWhomItGoesOn) {
  auto options = options_of({kSecond, kSecond, kSecond});
  options.puppets = {3};
  options.without_vote = {3};
  ScriptedFederation federation(std::move(options));
  federation.puppet(3).heard = [](Link& from, MessageType type, ByteReader& in) {
    Puppet::follow(from, type, in);
  };
  ASSERT_TRUE(
      federation.run_until([&] { return federation.gateway(1).finished(); }, 120 * kSecond));
  federation.run_for(30 * kSecond);
  EXPECT_FALSE(federation.process(1).ended());
  const auto name = federation.roster().sites[2].name;
  EXPECT_EQ(federation.gateway(1).status().attention,
            std::vector{"it waits for " + name + " to have saved the last step"});
  EXPECT_EQ(federation.events(1, "sites_missed"), 1U);
  federation.cut_off(3, true);
  EXPECT_TRUE(federation.run_until([&] { return federation.process(1).ended(); }, 120 * kSecond));
}

// It is not served for ever, and nobody's ranks wait for it.
TEST(EndedRunTest, GoesOnForNobodyWhoComesNoNearer) {
  auto options = options_of({kSecond, kSecond, kSecond});
  options.puppets = {3};
  options.without_vote = {3};
  ScriptedFederation federation(std::move(options));
  federation.puppet(3).heard = [](Link& from, MessageType type, ByteReader& in) {
    Puppet::follow(from, type, in);
  };
  const auto ended = [&] { return federation.process(1).ended() && federation.process(2).ended(); };
  ASSERT_TRUE(federation.run_until([&] { return federation.finished(); }, 60 * kSecond));
  EXPECT_FALSE(federation.run_until(ended, 100 * kSecond));
  EXPECT_TRUE(federation.run_until(ended, 60 * kSecond));
  for (const SiteId site : {1, 2})
    EXPECT_EQ(federation.events(site, "end_not_everywhere"), 1U) << site;
}

// Nor for one that says to be a step further each minute, beyond the end of the run too.
TEST(EndedRunTest, GoesOnForNobodyWhoSaysToComeNearerForEver) {
  auto options = options_of({kSecond, kSecond, kSecond});
  options.puppets = options.without_vote = {3};
  ScriptedFederation federation(std::move(options));
  std::uint64_t step = 1;
  federation.puppet(3).heard = [&](Link& from, MessageType type, ByteReader& in) {
    Puppet::follow(from, type, in, [&](const Status&, Status& mine) { mine.step = step; });
  };
  const auto ended = [&] { return federation.process(1).ended() && federation.process(2).ended(); };
  ASSERT_TRUE(federation.run_until([&] { return federation.finished(); }, 60 * kSecond));
  int minutes = 0;
  for (; !ended() && minutes < 200; ++minutes, ++step) federation.run_for(60 * kSecond);
  EXPECT_TRUE(ended());
  EXPECT_GE(minutes, 7) << "for the steps that there are it is waited for";
  EXPECT_LE(minutes, 15);
}

// Nor for one that fetches the state again and again.
TEST(EndedRunTest, GoesOnForNobodyWhoFetchesItForEver) {
  auto options = options_of({kSecond, kSecond, kSecond});
  options.puppets = options.without_vote = {3};
  ScriptedFederation federation(std::move(options));
  auto& puppet = federation.puppet(3);
  std::optional<TransferId> state;
  int chunks = 0;
  puppet.heard = [&](Link& from, MessageType type, ByteReader& in) {
    Puppet::follow(from, type, in, [](const Status&, Status& mine) { mine.step = 1; });
    if (type == MessageType::status) from.send(encode(StateRequest{0, false}));
    const auto message = type == MessageType::saved ? decode_signed(type, in) : std::nullopt;
    const auto saved = message ? decode_saved(message->body) : std::nullopt;
    if (!saved || !saved->strong_root || saved->id.step < 6) return;
    state = transfer_of_state(saved->id.run, saved->id.step, *saved->strong_root);
    from.send(encode(StateRequest{saved->id.step, true}));
  };
  puppet.came = [&](Link& from, const ChunkArrival& arrival) {
    ++chunks;
    from.settle(arrival, true);
  };
  const auto ended = [&] { return federation.process(1).ended() && federation.process(2).ended(); };
  ASSERT_TRUE(federation.run_until([&] { return federation.finished() && state; }, 60 * kSecond));
  const std::vector<bool> nothing(
      1 + strong_leaves(federation.layout(), *federation.gateway(1).state()).size());
  const auto fetch_for = [&](int minutes) {
    for (; minutes > 0; --minutes) {
      for (const SiteId site : {1, 2}) puppet.link(site).have(*state, nothing);
      federation.run_for(60 * kSecond);
    }
  };
  fetch_for(60);
  EXPECT_FALSE(ended()) << "it may take long";
  EXPECT_GE(chunks, 200);
  fetch_for(90);
  EXPECT_TRUE(ended());
}

// However long it takes, who comes nearer to it is served.
TEST(EndedRunTest, IsServedToWhoeverFetchesItSlowly) {
  auto options = options_of({kSecond, kSecond});
  options.elements = 1'000'000;
  options.gateway.sync.chunk_elements = 1 << 16;
  options.late = options.without_vote = {2};
  ScriptedFederation federation(std::move(options));
  ASSERT_TRUE(federation.run_until([&] { return federation.process(1).ended(); }, 120 * kSecond));
  federation.start(2);
  federation.kill(1);
  federation.start(1);
  federation.gateway(1).set_rate_limit(20'000);
  const auto began = federation.now();
  EXPECT_TRUE(federation.run_until([&] { return federation.finished(); }, 1800 * kSecond));
  EXPECT_GT(federation.now() - began, 130 * kSecond) << "too fast to say anything of the test";
  EXPECT_EQ(federation.gateway(2).root(), federation.gateway(1).root());
}

}  // namespace
}  // namespace isthmus::inter
