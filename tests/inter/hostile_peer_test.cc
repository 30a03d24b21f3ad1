// What a listed peer can cost that does not keep to the protocol.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "inter/contribution.h"
#include "tests/inter/scripted_federation.h"
#include "tests/inter/sealed_chunks.h"

namespace isthmus::inter {
namespace {

// ---- A peer that sends garbage

class HostilePeerTest : public testing::Test {
 protected:
  // The first of four sites is the puppet, without a vote.
  static ScriptedFederation::Options endless_with_puppet() {
    auto options = options_of({kSecond, 2 * kSecond, 2 * kSecond, 2 * kSecond});
    options.puppets = {1};
    options.without_vote = {1};
    options.gateway.sync.outer_steps = 100'000;
    return options;
  }
};

// A view with a site that the roster does not have is accepted by nobody: no ballot above 0 would
// ever decide.
TEST_F(HostilePeerTest, InventedSitesThatWantInStopNothing) {
  auto options = endless_with_puppet();
  ScriptedFederation federation(std::move(options));
  auto& puppet = federation.puppet(1);
  puppet.heard = [&](Link& from, MessageType type, ByteReader& in) {
    Puppet::follow(from, type, in, [](const Status& theirs, Status& mine) {
      for (const auto& wish : theirs.wishes) EXPECT_LE(wish.site, 4U) << "passed on";
      for (SiteId site = 1000; site < 1000 + kSitesMax; ++site)
        mine.wishes.push_back({.site = site, .joins = true, .vote_file = 7, .hops = 1});
    });
  };
  auto& second = federation.gateway(2);
  ASSERT_TRUE(federation.run_until([&] { return second.state() && second.state()->step >= 3; },
                                   60 * kSecond));
  federation.cut_off(4, true);  // from now on somebody must be left out
  const auto step = second.state()->step;
  federation.run_for(120 * kSecond);
  EXPECT_GE(second.state()->step, step + 8);
}

// Chunks of which nothing is true, as many as are asked for.
class Garbage final : public ChunkSource {
 public:
  explicit Garbage(std::size_t bytes) : bytes_(bytes) {}
  ChunkBytes chunk(std::uint32_t) override { return {Bytes(bytes_), 1, 1}; }

 private:
  std::size_t bytes_;
};

TEST_F(HostilePeerTest, FalseChunksHoldNoFetchUp) {
  auto options = endless_with_puppet();
  ScriptedFederation federation(std::move(options));
  auto& puppet = federation.puppet(1);
  auto& second = federation.gateway(2);
  auto& fourth = federation.gateway(4);
  puppet.heard = [&](Link& from, MessageType type, ByteReader& in) {
    Puppet::follow(from, type, in);
    if (type != MessageType::open || from.peer().site == 2) return;
    const auto open = decode_signed(type, in);
    if (!open || open->signer != 4) return;
    // Of the fourth site's contribution to the second, for which it comes from elsewhere.
    auto& victim = puppet.link(2);
    const auto transfer = transfer_of(*open);
    victim.send(open->encode());
    if (!victim.offers(transfer))
      victim.offer(transfer, 1, decode_open(open->body)->chunks, std::make_shared<Garbage>(100),
                   false);
  };
  ASSERT_TRUE(federation.run_until([&] { return second.state() && second.state()->step >= 3; },
                                   60 * kSecond));
  federation.cut(2, 4, true);
  const auto unnamed = fourth.counters().unnamed;
  const auto step = second.state()->step;
  federation.run_for(120 * kSecond);
  EXPECT_GT(federation.events(2, "chunk_refused"), 3U);
  EXPECT_LT(federation.events(2, "chunk_refused"), 200U) << "the log is flooded";
  EXPECT_GE(second.state()->step, step + 8);
  EXPECT_LE(fourth.counters().unnamed, unnamed + 1);
}

TEST_F(HostilePeerTest, WhatItAsksForAgainAndAgainIsServedOnceAtATime) {
  auto options = endless_with_puppet();
  options.elements = 200'000;
  options.gateway.sync.chunk_elements = 8192;
  ScriptedFederation federation(std::move(options));
  auto& puppet = federation.puppet(1);
  auto& second = federation.gateway(2);
  std::size_t opens = 0;
  puppet.heard = [&](Link& from, MessageType type, ByteReader& in) {
    Puppet::follow(from, type, in);
    opens += type == MessageType::open;
  };
  ASSERT_TRUE(federation.run_until([&] { return second.state() && second.state()->step >= 6; },
                                   120 * kSecond));
  for (SiteId site = 2; site <= 4; ++site) federation.end_ranks(site);
  federation.run_for(60 * kSecond);
  const auto last = second.state()->step;
  auto& link = puppet.link(2);

  opens = 0;
  auto reads = federation.disk(2).counters().opened_to_read;
  for (int i = 0; i < 500; ++i) link.send(encode(Fetch{last, 3}));
  federation.run_for(5 * kSecond);
  EXPECT_GE(opens, 1U);
  EXPECT_LE(opens, 100U);
  for (std::uint64_t step = 0; step < 500; ++step) link.send(encode(Fetch{step, 9}));
  federation.run_for(5 * kSecond);
  EXPECT_LE(federation.disk(2).counters().opened_to_read - reads, 200U);

  // A question alone keeps no state in memory, and few of these 300 are answered from the disk.
  reads = federation.disk(2).counters().opened_to_read;
  for (int i = 0; i < 100; ++i) {
    for (const auto step : {last, last - 1, last - 2}) link.send(encode(StateRequest{step, false}));
    federation.run_for(kSecond / 2);
  }
  EXPECT_LE(federation.disk(2).counters().opened_to_read - reads, 100U);

  // One that is not there: looking for it takes a fifth of the time at most.
  federation.run_for(300 * kSecond);
  reads = federation.disk(2).counters().opened_to_read;
  for (int i = 0; i < 3000; ++i) {
    link.send(encode(StateRequest{last - 2, false}));
    federation.run_for(kMillisecond);
  }
  EXPECT_GE(federation.disk(2).counters().opened_to_read - reads, 10U);
  EXPECT_LE(federation.disk(2).counters().opened_to_read - reads, 450U);
}

// What it signs, and nobody can use, is neither kept for who enters the step nor passed on: all of
// it at once would be more than a link takes.
TEST_F(HostilePeerTest, WhatItSignsIsPassedOnOnlyIfItCounts) {
  ScriptedFederation federation(endless_with_puppet());
  auto& puppet = federation.puppet(1);
  puppet.heard = [&](Link& from, MessageType type, ByteReader& in) {
    Puppet::follow(from, type, in);
  };
  auto& second = federation.gateway(2);
  ASSERT_TRUE(federation.run_until([&] { return second.state() && second.state()->step >= 3; },
                                   60 * kSecond));
  for (const SiteId site : {3, 4}) federation.cut(1, site, true);
  federation.run_for(20 * kSecond);
  const auto passed_on = second.counters().relayed_messages;
  const StepId id{.run = second.genesis()->record.hash(),
                  .view = second.view().digest(),
                  .step = second.state()->step + 1,
                  .fragment = 0};
  for (const auto type : {MessageType::open, MessageType::close, MessageType::prepare,
                          MessageType::promise, MessageType::accept}) {
    for (int i = 0; i < 40; ++i) {
      ByteWriter body;
      body.raw(id.run.bytes).raw(id.view.bytes).put(id.step).put(id.fragment);
      body.put(i).raw(Bytes(20'000));
      puppet.link(2).send(sign(puppet.signer, 1, type, body.take()).encode());
    }
    for (std::uint64_t ballot = 1; ballot < 40; ++ballot)
      puppet.link(2).send(sign(puppet.signer, 1, id, Prepare{ballot}).encode());
  }
  federation.run_for(500 * kMillisecond);
  ASSERT_EQ(second.state()->step + 1, id.step) << "too late to say anything of the test";
  EXPECT_EQ(second.counters().relayed_messages, passed_on);
}

// A site may say anew what it has saved, with another root each time: that goes round now and then.
TEST_F(HostilePeerTest, WhatItSaysToHaveSavedIsPassedOnNowAndThen) {
  ScriptedFederation federation(endless_with_puppet());
  auto& puppet = federation.puppet(1);
  puppet.heard = [&](Link& from, MessageType type, ByteReader& in) {
    Puppet::follow(from, type, in);
  };
  auto& second = federation.gateway(2);
  ASSERT_TRUE(federation.run_until([&] { return second.state() && second.state()->step >= 3; },
                                   60 * kSecond));
  for (const SiteId site : {3, 4}) federation.cut(1, site, true);
  federation.run_for(20 * kSecond);
  const auto passed_on = second.counters().relayed_messages;
  Saved saved{.id = {.run = second.genesis()->record.hash(),
                     .view = second.view().digest(),
                     .step = second.state()->step,
                     .fragment = 0},
              .state_root = {},
              .strong_root = {},
              .spot_root = {}};
  for (int i = 0; i < 200; ++i) {
    saved.state_root.bytes[0] = static_cast<std::byte>(i);
    puppet.link(2).send(sign(puppet.signer, 1, MessageType::saved, encode(saved)).encode());
    federation.run_for(5 * kMillisecond);
  }
  EXPECT_GT(second.counters().relayed_messages, passed_on);
  const auto by_now = second.counters().relayed_messages;
  EXPECT_LE(by_now, passed_on + 2 * 3) << "to two, in a second";
  // The last of it is what everybody knows in the end.
  federation.run_for(2 * kSecond);
  EXPECT_EQ(second.counters().relayed_messages, by_now + 2);
}

// Whoever has no vote leads nothing, however often it says so.
TEST_F(HostilePeerTest, PreparesOfOneWithoutAVoteHoldNoBallotUp) {
  auto options = endless_with_puppet();
  ScriptedFederation federation(std::move(options));
  auto& puppet = federation.puppet(1);
  auto& second = federation.gateway(2);
  std::uint64_t ballot = 1, prepares = 0;
  puppet.heard = [&](Link& from, MessageType type, ByteReader& in) {
    Puppet::follow(from, type, in);
    if (type != MessageType::open && type != MessageType::close) return;
    const auto contribution = decode_signed(type, in);
    if (!contribution || contribution->signer == 1) return;
    ByteReader body(contribution->body);
    StepId id;
    const auto run = body.raw(32), view = body.raw(32);
    std::copy(run.begin(), run.end(), id.run.bytes.begin());
    std::copy(view.begin(), view.end(), id.view.bytes.begin());
    id.step = body.get<std::uint64_t>();
    id.fragment = body.get<std::uint32_t>();
    for (int i = 0; i < 200; ++i, ++prepares)
      for (const SiteId voter : {2U, 3U})
        federation.puppet(1).link(voter).send(
            sign(puppet.signer, 1, id, Prepare{ballot++}).encode());
  };
  ASSERT_TRUE(federation.run_until([&] { return second.state() && second.state()->step >= 3; },
                                   60 * kSecond));
  federation.cut_off(4, true);
  const auto step = second.state()->step;
  federation.run_for(120 * kSecond);
  EXPECT_GT(prepares, 100U);
  EXPECT_GE(second.state()->step, step + 8) << "the fourth site is absent: ballots are needed";
}

// ---- A peer that serves a state badly

// The list of its leaves is true; the leaves are false, or never come.
class BadLeaves final : public ChunkSource {
 public:
  BadLeaves(const std::vector<security::Digest>& leaves, bool come) : come_(come) {
    ByteWriter out;
    for (const auto& leaf : leaves) out.raw(leaf.bytes);
    list_ = out.take();
  }
  ChunkBytes chunk(std::uint32_t index) override {
    if (index == 0) return {list_, 1, 1};
    return come_ ? ChunkBytes{Bytes(4 * ModelLayout::kLeafElements), 1, 1} : ChunkBytes();
  }

 private:
  SharedBytes list_;
  const bool come_;
};

class BadServerTest : public testing::TestWithParam<bool> {};

TEST_P(BadServerTest, IsLeftForAnother) {
  auto options = options_of({kSecond, 2 * kSecond, 2 * kSecond, 2 * kSecond});
  options.puppets = {1};
  options.late = {4};
  options.without_vote = {1, 4};
  options.elements = 3 * static_cast<std::int64_t>(ModelLayout::kLeafElements);
  options.gateway.sync.chunk_elements = 1 << 18;
  options.gateway.sync.outer_steps = 1000;
  ScriptedFederation federation(std::move(options));
  auto& puppet = federation.puppet(1);
  auto& server = federation.gateway(2);
  puppet.heard = [&](Link& from, MessageType type, ByteReader& in) {
    if (type != MessageType::state_request) return;
    const auto request = decode_state_request(in);
    if (!request || !server.state() || server.saved_step() != server.state()->step) return;
    const auto& state = *server.state();
    const auto leaves = strong_leaves(federation.layout(), state);
    const Saved saved{.id = {.run = server.genesis()->record.hash(),
                             .view = {},
                             .step = state.step,
                             .fragment = 0},
                      .state_root = server.root(),
                      .strong_root = strong_root(leaves),
                      .spot_root = {}};
    if (request->send)
      from.offer(transfer_of_state(saved.id.run, state.step, *saved.strong_root), 1,
                 static_cast<std::uint32_t>(1 + leaves.size()),
                 std::make_shared<BadLeaves>(leaves, GetParam()), false);
    from.send(sign(puppet.signer, 1, MessageType::saved, encode(saved)).encode());
  };
  ASSERT_TRUE(federation.run_until([&] { return server.state() && server.state()->step >= 6; },
                                   120 * kSecond));
  federation.end_ranks(2);
  federation.end_ranks(3);
  federation.run_for(30 * kSecond);
  const auto step = server.state()->step;
  federation.start(4);
  auto& late = federation.gateway(4);
  const auto began = federation.now();
  ASSERT_TRUE(federation.run_until([&] { return late.state() && late.state()->step == step; },
                                   600 * kSecond));
  EXPECT_LT(federation.now() - began, 40 * kSecond);
  EXPECT_EQ(federation.events(4, GetParam() ? "state_fetch_stopped" : "state_fetch_goes_on"), 1U)
      << "the puppet was never asked";
  EXPECT_EQ(late.root(), server.root());
  // And sends no more: what nobody waits for would go before all contributions.
  federation.run_for(10 * kSecond);
  EXPECT_FALSE(puppet.link(4).sends_bulk());
}

INSTANTIATE_TEST_SUITE_P(Leaves, BadServerTest, testing::Bool(),
                         [](const auto& test) { return test.param ? "AreFalse" : "NeverCome"; });

// Records are the largest answer to the smallest question. A rate limit counts them.
TEST_F(HostilePeerTest, RecordsThatItAsksForHoldNobodyUp) {
  auto options = endless_with_puppet();
  options.gateway.sync.outer_steps = 100'000;
  options.gateway.rate_limit_bytes_per_second = 200'000;
  ScriptedFederation federation(std::move(options));
  auto& puppet = federation.puppet(1);
  std::size_t bytes = 0;
  puppet.heard = [&](Link& from, MessageType type, ByteReader& in) {
    if (type == MessageType::records) bytes += in.rest().size();
    Puppet::follow(from, type, in);
  };
  const auto step = [&] { return federation.step(2); };
  ASSERT_TRUE(federation.run_until([&] { return step() >= 60; }, 600 * kSecond));
  const auto steps_of = [&](int questions_each_100_ms) {
    const auto before = step();
    for (int i = 0; i < 600; ++i) {
      for (int k = 0; k < questions_each_100_ms; ++k)
        for (const SiteId site : {2, 3, 4}) puppet.link(site).send(encode(RecordRequest{1}));
      federation.run_for(100 * kMillisecond);
    }
    return step() - before;
  };
  const auto quiet = steps_of(0);
  bytes = 0;
  const auto asked = steps_of(10);
  EXPECT_GT(bytes, 0U);
  EXPECT_LT(bytes, 3 * 60 * 200'000 / 3) << "of three sites, in a minute: a third of their rate";
  EXPECT_GE(3 * asked, 2 * quiet);
  EXPECT_GE(3 * steps_of(0), 2 * quiet);
}

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
  federation.run_for(3600 * kSecond);
  EXPECT_GT(step() - before, 500U) << "1443 without it; and 44 where it is taken in each time";
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
  federation.run_for(4 * 3600 * kSecond);
  const auto steps_in_an_hour = [&](bool restarts) {
    const auto before = step();
    for (int i = 0; i < 6; ++i) {
      federation.run_for(590 * kSecond);
      if (restarts) federation.end_ranks(3);
      federation.run_for(10 * kSecond);
      if (restarts) federation.ranks(3).attach(federation.gateway(3));
    }
    return step() - before;
  };
  const auto quiet = steps_in_an_hour(false);
  EXPECT_GE(steps_in_an_hour(true), quiet * 3 / 4);
}

// It asks for two old states again and again: they do not take the room of the newest one.
TEST_F(HostilePeerTest, OldStatesThatItAsksForKeepNobodyOut) {
  for (const bool fetches : {false, true}) {
    auto options = endless_with_puppet();
    options.without_vote = {1, 4};
    options.gateway.sync.outer_steps = 100'000;
    ScriptedFederation federation(std::move(options));
    std::map<SiteId, std::set<std::uint64_t>> steps;
    federation.puppet(1).heard = [&](Link& from, MessageType type, ByteReader& in) {
      auto& old = steps[from.peer().site];
      if (type == MessageType::saved) {
        const auto message = decode_signed(type, in);
        const auto saved = message ? decode_saved(message->body) : std::nullopt;
        if (saved && saved->strong_root && saved->id.step > 0 && old.size() < 2 &&
            message->signer == from.peer().site)
          old.insert(saved->id.step);
      } else if (type == MessageType::status) {
        if (old.size() < 2) from.send(encode(StateRequest{0, false}));
        for (const auto step : old) from.send(encode(StateRequest{step, fetches}));
      }
    };
    ASSERT_TRUE(federation.run_until(
        [&] { return federation.step(2) >= 6 && federation.step(4) >= 5; }, 300 * kSecond));
    federation.cut_off(4, true);
    ASSERT_TRUE(federation.run_until([&] { return federation.step(2) >= 100; }, 3000 * kSecond));
    for (SiteId server = 2; server <= 3; ++server) ASSERT_EQ(steps[server].size(), 2U);
    federation.cut_off(4, false);
    EXPECT_TRUE(federation.run_until([&] { return federation.step(4) + 3 >= federation.step(2); },
                                     60 * kSecond))
        << fetches;
  }
}

// A listed site without a vote says that its vote file has the number of another one's. That one
// can never be started again.
TEST_F(HostilePeerTest, TheVoteFileOfAnotherKeepsNobodyFromStarting) {
  ScriptedFederation federation(endless_with_puppet());
  federation.puppet(1).heard = [&](Link& from, MessageType type, ByteReader& in) {
    Puppet::follow(from, type, in, [&](const Status&, Status& mine) {
      mine.contributes = mine.wants_in = true;
      mine.vote_file = federation.gateway(2).view().vote_file_of(2);
    });
  };
  ASSERT_TRUE(federation.run_until(
      [&] { return federation.step(2) >= 3 && federation.gateway(2).view().is_member(1); },
      600 * kSecond));
  federation.run_for(3 * kSecond);  // it is saved
  ASSERT_TRUE(federation.gateway(2).view().is_member(1));
  federation.kill(2);
  federation.start(2);
  federation.run_for(30 * kSecond);
  EXPECT_FALSE(federation.process(2).failure()) << federation.process(2).failure()->text();
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
  federation.run_for(1200 * kSecond);
  const auto quiet = federation.step(2) - before;
  plays_on = true;
  for (int third = 0; third < 3; ++third) {
    before = federation.step(2);
    federation.run_for(1200 * kSecond);
  }
  EXPECT_GE(federation.step(2) - before, quiet / 2);
}

// Contributions to old steps are read and hashed again each time that they are asked for.
TEST_F(HostilePeerTest, OldContributionsThatAreAskedForHoldNobodyUp) {
  auto options = endless_with_puppet();
  options.elements = 500'000;
  options.gateway.sync.chunk_elements = 1 << 17;
  ScriptedFederation federation(std::move(options));
  auto& puppet = federation.puppet(1);
  std::uint64_t first = 0, newest = 0;
  puppet.heard = [&](Link& from, MessageType type, ByteReader& in) {
    if (type != MessageType::status) return;
    const auto theirs = decode_status(in);
    newest = std::max(newest, theirs->step);
    Status mine;
    mine.step = 1;
    mine.vote_file = 77;
    from.send(encode(mine));
    if (newest > 1 && first == 0) first = newest;
    if (first != 0 && federation.step(2) < first + 12)
      from.send(encode(StateRequest{0, true}));  // so that all is kept
  };
  const auto step = [&] { return federation.step(2); };
  ASSERT_TRUE(federation.run_until([&] { return step() >= 16; }, 6000 * kSecond));
  const auto steps_of = [&](bool asks) {
    const auto before = step();
    for (int i = 0; i < 300; ++i) {
      if (asks)
        for (const SiteId site : {2, 3, 4})
          for (std::uint64_t of = newest - 12; of < newest - 2; ++of)
            for (const SiteId whose : {2, 3, 4}) puppet.link(site).send(encode(Fetch{of, whose}));
      federation.run_for(100 * kMillisecond);
    }
    return step() - before;
  };
  const auto quiet = steps_of(false);
  EXPECT_GE(3 * steps_of(true), 2 * quiet);
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
  std::map<std::uint64_t, std::pair<std::shared_ptr<Contribution>, Signed>> made;
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
    if (!made.contains(step)) {
      const auto open = plan->announce(
          {.run = gateway.genesis()->record.hash(), .view = gateway.view().digest(), .step = step},
          100, gateway.chain()[step - 2].record.hash(), 7);
      auto all = std::make_shared<Contribution>(
          plan, sign(puppet.signer, 1, MessageType::open, encode(open)), open);
      const auto& agreed = gateway.state()->agreed;
      std::vector<float> residual(agreed.size());
      const ValuesInVector values(std::vector<float>(agreed.begin(), agreed.end()));
      add_all_chunks(*all, puppet.signer, [&](std::uint32_t i) {
        return *code_chunk(*plan, i, agreed, {}, values, residual);
      });
      const Close close{.id = open.id,
                        .transfer = all->transfer(),
                        .root = all->root(),
                        .bytes = all->bytes(),
                        .tokens = open.tokens,
                        .base = open.base,
                        .state_root = gateway.root()};
      made[step] = {all, sign(puppet.signer, 1, MessageType::close, encode(close))};
    }
    const auto& [all, close] = made[step];
    from.send(all->announcement().encode());
    from.offer(all->transfer(), step, plan->chunks(), all, false);
    from.send(close.encode());
  };
  ASSERT_TRUE(federation.run_until([&] { return federation.step(2) >= 3; }, 600 * kSecond));
  lies = true;
  const auto before = federation.step(2);
  federation.run_for(3600 * kSecond);
  std::size_t named = 0;
  for (const auto& certificate : federation.gateway(2).chain())
    named += certificate.record.part_of(1) != nullptr;
  EXPECT_GT(named, 1U);
  EXPECT_GT(federation.step(2) - before, 500U) << "1443 without it; " << named << " name it";
}

// A short question whose answer is longer: control goes at once, and bulk pays for it.
TEST_F(HostilePeerTest, AnswersAboutAStateDoNotTakeTheRateLimit) {
  auto options = endless_with_puppet();
  options.gateway.sync.outer_steps = 100'000;
  options.gateway.rate_limit_bytes_per_second = 200'000;
  ScriptedFederation federation(std::move(options));
  auto& puppet = federation.puppet(1);
  std::uint64_t answers = 0;
  puppet.heard = [&](Link& from, MessageType type, ByteReader& in) {
    answers += type == MessageType::saved;
    Puppet::follow(from, type, in);
  };
  const auto step = [&] { return federation.step(2); };
  ASSERT_TRUE(federation.run_until([&] { return step() >= 20; }, 600 * kSecond));
  const auto steps_of = [&](int questions) {
    const auto before = step();
    for (int i = 0; i < 600; ++i) {
      for (int k = 0; k < questions; ++k)
        for (const SiteId site : {2, 3, 4}) puppet.link(site).send(encode(StateRequest{0, false}));
      federation.run_for(100 * kMillisecond);
    }
    return step() - before;
  };
  const auto quiet = steps_of(0);
  answers = 0;
  EXPECT_GE(3 * steps_of(150), 2 * quiet);
  EXPECT_GE(answers, 30U) << "who asks in earnest is answered";
}

}  // namespace
}  // namespace isthmus::inter
