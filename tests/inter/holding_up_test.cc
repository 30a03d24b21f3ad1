// How long a listed peer that keeps its promises not, or says of itself what is not so, holds the
// steps of the others up.
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <set>

#include "tests/inter/hand_made.h"
#include "tests/inter/hostile_peer.h"

namespace isthmus::inter {
namespace {

// It says that its ranks compute, and never contributes: it is waited for, dropped and taken in
// again, ever more seldom.
TEST_F(HostilePeerTest, WhenItNeverContributesItHoldsFewStepsUp) {
  auto options = endless_with_puppet();
  options.gateway.sync.outer_steps = 100'000;
  ScriptedFederation federation(std::move(options));
  auto& puppet = federation.puppet(1);
  puppet.heard = [](Link& from, MessageType type, ByteReader& in) {
    Puppet::follow(from, type, in, [](const Status&, Status& mine) {
      mine.contributes = mine.wants_in = true;
      mine.vote_file = 77;
    });
  };
  const auto step = [&] { return federation.step(2); };
  ASSERT_TRUE(federation.run_until([&] { return step() >= 3; }, 6000 * kSecond));
  const auto before = step();
  federation.run_for(1200 * kSecond);
  EXPECT_GT(step() - before, 160U) << "481 without it; and 15 where it is taken in each time";
}

// Nor are restarts of an honest member's ranks, in which too few contributions can come for some
// seconds, a door for it.
TEST_F(HostilePeerTest, RanksThatStartAgainLetItInNoMoreOften) {
  auto options = options_of({kSecond, 10 * kSecond, 10 * kSecond});
  options.puppets = {1};
  options.without_vote = {1};
  options.gateway.sync.outer_steps = 100'000;
  options.gateway.sync.min_sites = 2;
  options.gateway.sync.absent_steps = 3;
  options.gateway.straggler_wait = 600 * kSecond;
  ScriptedFederation federation(std::move(options));
  federation.puppet(1).heard = [](Link& from, MessageType type, ByteReader& in) {
    Puppet::follow(from, type, in, [](const Status&, Status& mine) {
      mine.contributes = mine.wants_in = true;
      mine.vote_file = 77;
    });
  };
  const auto step = [&] { return federation.step(2); };
  ASSERT_TRUE(federation.run_until([&] { return step() >= 3; }, 6000 * kSecond));
  federation.run_for(2 * 3600 * kSecond);
  const auto steps_in_half_an_hour = [&](bool restarts) {
    const auto before = step();
    for (int i = 0; i < 3; ++i) {
      federation.run_for(590 * kSecond);
      if (restarts) federation.end_ranks(3);
      federation.run_for(10 * kSecond);
      if (restarts) federation.ranks(3).attach(federation.gateway(3));
    }
    return step() - before;
  };
  const auto quiet = steps_in_half_an_hour(false);
  EXPECT_GE(steps_in_half_an_hour(true), quiet * 3 / 4);
}

// A listed site that is no member says that it is a step behind, for ever: that it would like to
// join, or that its ranks compute.
class OneBehindTest : public HostilePeerTest, public testing::WithParamInterface<bool> {};

TEST_P(OneBehindTest, HoldsFewStepsUp) {
  auto options = endless_with_puppet();
  options.compute.assign(4, kSecond / 2);
  ScriptedFederation federation(std::move(options));
  bool lies = false;
  federation.puppet(1).heard = [&](Link& from, MessageType type, ByteReader& in) {
    Puppet::follow(from, type, in, [&](const Status& theirs, Status& mine) {
      mine.step = theirs.step > 1 ? theirs.step - 1 : 0;
      mine.wants_in = lies && GetParam();
      mine.contributes = lies && !GetParam();
      mine.vote_file = 77;
    });
  };
  ASSERT_TRUE(federation.run_until([&] { return federation.step(2) >= 3; }, 600 * kSecond));
  const auto steps_in_ten_minutes = [&] {
    const auto before = federation.step(2);
    federation.run_for(600 * kSecond);
    return federation.step(2) - before;
  };
  const auto quiet = steps_in_ten_minutes();
  lies = true;
  EXPECT_GE(steps_in_ten_minutes(), quiet * 3 / 4) << quiet << " without it";
}

INSTANTIATE_TEST_SUITE_P(It, OneBehindTest, testing::Bool(), [](const auto& test) {
  return test.param ? "WouldLikeToJoin" : "Computes";
});

// A listed site that is no member says that it replays, each step more slowly than the one before,
// and now and then asks for a state.
TEST_F(HostilePeerTest, ReplayWithoutEndHoldsFewStepsUp) {
  ScriptedFederation federation(endless_with_puppet());
  struct Play {
    std::uint64_t newest = 0, step = 0;
    Nanoseconds since = 0;
    bool advanced = false;
    Learnt pace;
  };
  std::map<SiteId, Play> plays;
  bool plays_on = false;
  federation.puppet(1).heard = [&](Link& from, MessageType type, ByteReader& in) {
    if (type != MessageType::status) return;
    const auto theirs = decode_status(in);
    if (!theirs || theirs->step == 0) return;
    const auto now = federation.now();
    auto& play = plays[from.peer().site];
    Status mine;
    mine.contributes = true;
    mine.vote_file = 77;
    mine.step = 1;
    if (!plays_on) {
      play.step = 0;
    } else if (play.step == 0) {
      from.send(encode(StateRequest{0, true}));
      play.step = theirs->step;
      return;
    } else if (theirs->step >= play.step + 2) {
      if (play.newest != theirs->step) {
        play.newest = theirs->step;
        play.since = now;
        play.advanced = false;
        if (theirs->step > play.step + 2) play.step = theirs->step - 2;
        from.send(encode(StateRequest{play.step - 1, true}));
      }
      const auto limit = std::max(2 * kSecond, 2 * play.pace.spread());
      if (!play.advanced && now - play.since >= limit * 3 / 4) {
        play.pace.add(now - play.since);
        play.advanced = true;
        ++play.step;
      }
      mine.step = play.step;
    } else {
      mine.step = play.step;
    }
    from.send(encode(mine));
  };
  ASSERT_TRUE(federation.run_until([&] { return federation.step(2) >= 3; }, 600 * kSecond));
  auto before = federation.step(2);
  federation.run_for(400 * kSecond);
  const auto quiet = federation.step(2) - before;
  plays_on = true;
  for (int third = 0; third < 3; ++third) {
    before = federation.step(2);
    federation.run_for(400 * kSecond);
  }
  EXPECT_GE(federation.step(2) - before, quiet / 2);
}

// A listed site that is no member goes a step forward and a step back, again and again, and asks
// for a state before what it replays, so that none of it counts as replayed. A member is away, so
// that never everything is there that the step at hand waits for.
TEST_F(HostilePeerTest, ReplayToAndFroHoldsFewStepsUpWhileAMemberIsAway) {
  auto options = endless_with_puppet();
  options.gateway.sync.absent_steps = 100'000;
  ScriptedFederation federation(std::move(options));
  std::map<SiteId, std::uint64_t> newest, said;
  federation.puppet(1).heard = [&](Link& from, MessageType type, ByteReader& in) {
    if (type != MessageType::status) return;
    if (const auto theirs = decode_status(in)) newest[from.peer().site] = theirs->step;
  };
  ASSERT_TRUE(federation.run_until([&] { return federation.step(2) >= 8; }, 600 * kSecond));
  federation.cut_off(4, true);
  const auto steps_in = [&](Nanoseconds time, bool lies) {
    const auto before = federation.step(2);
    for (Nanoseconds i = 0; i < time / kSecond; ++i) {
      federation.run_for(kSecond);
      for (const SiteId site : {2, 3}) {
        auto& link = federation.puppet(1).link(site);
        if (!link.up() || newest[site] < 8) continue;
        said[site] = said[site] == newest[site] - 2 ? newest[site] - 1 : newest[site] - 2;
        Status mine;
        mine.step = said[site];
        mine.contributes = lies;
        mine.vote_file = 77;
        link.send(encode(mine));
        link.send(encode(StateRequest{newest[site] - 4, false}));
      }
    }
    return federation.step(2) - before;
  };
  const auto quiet = steps_in(300 * kSecond, false);
  steps_in(300 * kSecond, true);
  EXPECT_GE(steps_in(300 * kSecond, true), quiet * 3 / 4) << quiet << " without it";
}

// As HostilePeerTest.WhenItNeverContributesItHoldsFewStepsUp, but that it contributes once, each
// time that it is taken in: so it was never taken in vain.
TEST_F(HostilePeerTest, WhenItContributesOnceAMembershipItHoldsFewStepsUp) {
  auto options = endless_with_puppet();
  const auto chunk_elements = options.gateway.sync.chunk_elements;
  const auto codec = options.gateway.sync.codec;
  ScriptedFederation federation(std::move(options));
  auto& puppet = federation.puppet(1);
  const auto plan = std::make_shared<ChunkPlan>(federation.layout(), 0, chunk_elements, codec);
  bool lies = false;
  std::uint64_t member_since = 0;
  std::map<SiteId, std::uint64_t> told;
  std::map<std::uint64_t, HandMade> made;
  puppet.heard = [&](Link& from, MessageType type, ByteReader& in) {
    std::uint64_t step = 0;
    Puppet::follow(from, type, in, [&](const Status& theirs, Status& mine) {
      mine.vote_file = 77;
      mine.contributes = mine.wants_in = lies;
      step = theirs.step;
    });
    auto& gateway = federation.gateway(2);
    if (!gateway.state() || gateway.state()->step + 1 != step || step < 2) return;
    if (!gateway.view().is_member(1)) {
      member_since = 0;
      return;
    }
    if (member_since == 0) member_since = step;
    if (step != member_since || told[from.peer().site] == step) return;
    told[from.peer().site] = step;
    if (!made.contains(step))
      made[step] = hand_made(plan, puppet.signer, 1, gateway, [](auto...) {});
    made[step].offer_to(from);
  };
  ASSERT_TRUE(federation.run_until([&] { return federation.step(2) >= 3; }, 600 * kSecond));
  lies = true;
  const auto before = federation.step(2);
  federation.run_for(1800 * kSecond);
  std::size_t named = 0;
  for (const auto& certificate : federation.gateway(2).chain())
    named += certificate.record.part_of(1) != nullptr;
  EXPECT_GT(named, 1U);
  EXPECT_GT(federation.step(2) - before, 250U) << "721 without it; " << named << " name it";
}

// It says of a member that is away that it sees it, and that its ranks compute: that is waited for
// twice.
TEST_F(HostilePeerTest, WhatItSaysOfWhoIsAwayHoldsTwoStepsUp) {
  auto options = endless_with_puppet();
  options.gateway.sync.absent_steps = 100'000;
  const auto straggler_wait = *options.gateway.straggler_wait;
  ScriptedFederation federation(std::move(options));
  bool lies = false;
  federation.puppet(1).heard = [&](Link& from, MessageType type, ByteReader& in) {
    Puppet::follow(from, type, in, [&](const Status&, Status& mine) {
      mine.sees = {1, 2, 3};
      if (!lies) return;
      mine.sees.push_back(4);
      mine.sees_contribute = {4};
    });
  };
  ASSERT_TRUE(federation.run_until([&] { return federation.step(2) >= 12; }, 600 * kSecond));
  federation.cut_off(4, true);
  federation.run_for(30 * kSecond);
  const auto steps_in = [&](Nanoseconds time) {
    const auto before = federation.step(2);
    federation.run_for(time);
    return federation.step(2) - before;
  };
  const auto quiet = steps_in(300 * kSecond);
  lies = true;
  steps_in(3 * straggler_wait);
  EXPECT_GE(steps_in(300 * kSecond), quiet / 2) << quiet << " without it";
}

// One of two voters has no room for a while for what a third site contributes. That another site
// says that it has all does not end the wait for it.
TEST_F(HostilePeerTest, WhatItSaysThatOthersHoldHurriesNobody) {
  auto options = endless_with_puppet();
  options.without_vote = {1, 4};
  ScriptedFederation federation(std::move(options));
  federation.puppet(1).heard = [](Link& from, MessageType type, ByteReader& in) {
    Puppet::follow(from, type, in, [](const Status&, Status& mine) {
      mine.sees_complete = {2, 3, 4};
    });
  };
  ASSERT_TRUE(federation.run_until([&] { return federation.step(2) >= 8; }, 600 * kSecond));
  federation.disk(3).set_faults({.full_for = "-4"});
  const auto before = federation.gateway(2).chain().size();
  federation.run_for(40 * kSecond);
  federation.disk(3).set_faults({});
  ASSERT_TRUE(
      federation.run_until([&] { return federation.step(2) >= before + 3; }, 120 * kSecond));
  const auto& chain = federation.gateway(2).chain();
  for (auto k = before; k < chain.size(); ++k)
    EXPECT_NE(chain[k].record.part_of(4), nullptr) << "step " << k + 1;
}

// One of two voters has no room for what a third site contributes, which no record names therefore.
// The other voter has it: it was not waited for in vain, and is waited for as long as before.
TEST(PromisesTest, AreKeptByWhoIsHereAndNotNamed) {
  auto options = options_of({kSecond, kSecond, kSecond});
  options.without_vote = {3};
  options.gateway.sync.outer_steps = 100'000;
  options.gateway.sync.absent_steps = 100'000;
  ScriptedFederation federation(std::move(options));
  const auto makes_steps = [&](std::uint64_t steps) {
    const auto wanted = federation.step(1) + steps;
    return federation.run_until(
        [&] { return federation.step(1) >= wanted && federation.step(2) >= wanted; },
        1200 * kSecond);
  };
  const auto names_it = [&] {
    return federation.gateway(1).chain().back().record.part_of(3) != nullptr;
  };
  ASSERT_TRUE(makes_steps(8));
  federation.disk(2).set_faults({.full_for = "-3"});
  ASSERT_TRUE(makes_steps(4));
  EXPECT_FALSE(names_it());
  federation.disk(2).set_faults({});
  federation.kill(2);  // and it forgets whom it waited for
  federation.start(2);
  ASSERT_TRUE(makes_steps(3));
  EXPECT_TRUE(names_it());
  federation.ranks(3).slow_down(30);
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(makes_steps(1));
    EXPECT_TRUE(names_it()) << federation.step(1);
  }
}

}  // namespace
}  // namespace isthmus::inter
