// What a listed peer can cost that does not keep to the protocol.
#include "tests/inter/hostile_peer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

namespace isthmus::inter {
namespace {

// ---- A peer that says that another process lives

class RefusingTwins : public HostilePeerTest {
 protected:
  // Of so many sites this one has a gateway, which starts before it is refused; of the others some
  // say that they have a session with another process, some do not answer at all, and the rest
  // refuse for another reason.
  static constexpr SiteId kRefused = 5;
  static std::unique_ptr<ScriptedFederation> refused_by(const std::set<SiteId>& refusing,
                                                        const std::set<SiteId>& silent) {
    auto options = options_of({kSecond, kSecond, kSecond, kSecond, kSecond});
    options.puppets = {1, 2, 3, 4};
    auto federation = std::make_unique<ScriptedFederation>(std::move(options));
    for (const auto site : {1U, 2U, 3U, 4U}) federation->puppet(site).objects = "not now";
    for (const auto site : silent) federation->cut(site, kRefused, true);
    const auto refuse_again = [at = federation.get(), refusing](const auto& again) -> void {
      for (const auto site : refusing)
        at->puppet(site).say(kRefused,
                             Refuse{Refuse::Kind::duplicate, "another live process"}.encode());
      at->puppet(1).loop.call_at(at->now() + 50 * kMillisecond, [again] { again(again); });
    };
    refuse_again(refuse_again);
    return federation;
  }
  static bool ends(ScriptedFederation& federation, Nanoseconds within) {
    return federation.run_until([&] { return federation.process(kRefused).ended(); }, within);
  }
};

TEST_F(RefusingTwins, HalfOfTheSitesEndNobody) {
  auto federation = refused_by({1, 2}, {3, 4});
  EXPECT_FALSE(ends(*federation, 120 * kSecond));
}

TEST_F(RefusingTwins, NorDoMoreWhereOneThatIsHereDoesNot) {
  auto federation = refused_by({1, 2, 3}, {});
  EXPECT_FALSE(ends(*federation, 120 * kSecond));
}

TEST_F(RefusingTwins, WhomAllThatAreHereRefuseEndsAfterThreeTimesAndMayBeStartedAgain) {
  auto federation = refused_by({1, 2, 3}, {4});
  EXPECT_FALSE(ends(*federation, 19 * kSecond)) << "words that nobody asked for count";
  ASSERT_TRUE(ends(*federation, 20 * kSecond));
  const auto& failure = federation->process(kRefused).failure();
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->code, ErrorCode::busy) << failure->text();
}

// ---- A peer that sends garbage

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
  const auto id = federation.step_at_hand(2);
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

// The list of its leaves is true; the leaves are false, or never come, or it says that they are
// gone.
enum class Leaves { false_ones, none, gone };
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

class BadServerTest : public testing::TestWithParam<Leaves> {};

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
    if (request->send && GetParam() == Leaves::gone) {
      from.send(encode(Lacking{{request->step, kStateItself}}));
      return;
    }
    if (request->send)
      from.offer(transfer_of_state(saved.id.run, state.step, *saved.strong_root), 1,
                 static_cast<std::uint32_t>(1 + leaves.size()),
                 std::make_shared<BadLeaves>(leaves, GetParam() == Leaves::false_ones), false);
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
  EXPECT_LT(federation.now() - began, (GetParam() == Leaves::gone ? 10 : 40) * kSecond);
  const bool goes_on = GetParam() == Leaves::none;
  EXPECT_EQ(federation.events(4, goes_on ? "state_fetch_goes_on" : "state_fetch_stopped"), 1U)
      << "the puppet was never asked";
  EXPECT_EQ(late.root(), server.root());
  // And sends no more: what nobody waits for would go before all contributions.
  federation.run_for(10 * kSecond);
  EXPECT_FALSE(puppet.link(4).sends_bulk());
}

INSTANTIATE_TEST_SUITE_P(Leaves, BadServerTest,
                         testing::Values(Leaves::false_ones, Leaves::none, Leaves::gone),
                         [](const auto& test) {
                           return test.param == Leaves::false_ones ? "AreFalse"
                                  : test.param == Leaves::none     ? "NeverCome"
                                                                   : "AreGone";
                         });

// Chunks that are there one by one, as the test says.
class OneByOne final : public ChunkSource {
 public:
  explicit OneByOne(Bytes first) : chunks_{std::move(first)} {}
  void drip(Bytes next) { chunks_.push_back(std::move(next)); }
  ChunkBytes chunk(std::uint32_t index) override {
    return index < chunks_.size() ? ChunkBytes{chunks_[index], 1, 1} : ChunkBytes();
  }

 private:
  std::vector<Bytes> chunks_;
};

// Its list of leaves is invented, and it answers at once; of its leaves it sends so many at once,
// and then one within each patience. The others hold the true one. In sight of who comes late are
// those that have votes, and it has none; or it has one, and the honest one in sight has none.
class InventedListTest : public testing::Test {
 protected:
  static constexpr SiteId kHonest = 1, kVoter = 2, kOtherVoter = 3, kHostile = 4, kLate = 5;

  void begin(bool voters_in_sight, std::size_t leaves, std::size_t at_once) {
    auto options = options_of(std::vector<Nanoseconds>(5, 10 * kSecond));
    options.puppets = {kHostile};
    options.late = {kLate};
    options.without_vote = {voters_in_sight ? kHostile : kHonest, kLate};
    options.tensors = static_cast<std::int64_t>(leaves);
    options.elements = 10 * options.tensors;
    options.gateway.sync.chunk_elements = 1 << 14;
    options.gateway.sync.outer_steps = 100'000;
    federation_.emplace(std::move(options));
    auto& puppet = federation_->puppet(kHostile);
    puppet.heard = [=, this](Link& from, MessageType type, ByteReader& in) {
      const auto& server = federation_->gateway(kHonest);
      federation_->puppet(kHostile).vote_for_run(from, type, in);
      Puppet::follow(from, type, in, [](const Status&, Status& mine) { mine.vote_file = 77; });
      if (server.state()) roots_[server.state()->step] = server.root();
      if (type != MessageType::state_request || roots_.size() < 2) return;
      const auto request = decode_state_request(in);
      const auto& [step, root] =
          request->send ? *roots_.find(request->step) : *std::next(roots_.rbegin());
      const std::vector<security::Digest> invented(leaves, strong_leaf(leaf_));
      const Saved saved{
          .id = {.run = server.genesis()->record.hash(), .view = {}, .step = step, .fragment = 0},
          .state_root = root,
          .strong_root = strong_root(invented),
          .spot_root = {}};
      if (request->send) {
        ByteWriter list;
        for (const auto& digest : invented) list.raw(digest.bytes);
        drip_ = std::make_shared<OneByOne>(list.take());
        for (std::size_t i = 0; i < at_once; ++i) drip_->drip(leaf_);
        from.offer(transfer_of_state(saved.id.run, saved.id.step, *saved.strong_root), 1,
                   static_cast<std::uint32_t>(1 + leaves), drip_, false);
      }
      from.send(
          sign(federation_->puppet(kHostile).signer, kHostile, MessageType::saved, encode(saved))
              .encode());
    };
    drip_on();
    ASSERT_TRUE(
        federation_->run_until([&] { return federation_->step(kHonest) >= 5; }, 300 * kSecond));
    for (const SiteId voter : {kVoter, kOtherVoter})
      federation_->cut(voter, kLate, !voters_in_sight);
  }
  // The others read their states for some seconds, so that it is asked for its own.
  void start_late() {
    for (const SiteId site : {kHonest, kVoter, kOtherVoter})
      federation_->disk(site).set_faults({.unreadable = "outer/state."});
    federation_->start(kLate);
    ASSERT_TRUE(
        federation_->run_until([&] { return events("state_fetch_began") == 1; }, 60 * kSecond));
    federation_->run_for(8 * kSecond);
    ASSERT_TRUE(drip_) << "the puppet was never asked";
    for (const SiteId site : {kHonest, kVoter, kOtherVoter}) federation_->disk(site).set_faults({});
  }
  bool fetched_within(Nanoseconds limit) {
    return federation_->run_until(
        [&] { return federation_->gateway(kLate).counters().state_fetches == 1; }, limit);
  }
  std::size_t events(std::string_view id) const { return federation_->events(kLate, id); }

  std::optional<ScriptedFederation> federation_;

 private:
  void drip_on() {
    if (drip_) drip_->drip(leaf_);
    auto& puppet = federation_->puppet(kHostile);
    puppet.link(kLate).poke();
    puppet.loop.call_at(federation_->now() + 4900 * kMillisecond, [this] { drip_on(); });
  }

  const Bytes leaf_ = Bytes(4 * 10);
  std::shared_ptr<OneByOne> drip_;
  std::map<std::uint64_t, security::Digest> roots_;  // of the states, by step
};

TEST_F(InventedListTest, IsLeftOnceAMajorityHasAnswered) {
  begin(true, 200, 0);
  start_late();
  EXPECT_TRUE(fetched_within(20 * kSecond));
  EXPECT_EQ(events("state_fetch_began"), 1U);
  EXPECT_EQ(events("state_fetch_goes_on"), 1U);
}

TEST_F(InventedListTest, IsLeftThoughNobodyElseInSightHasAVote) {
  begin(false, 200, 0);
  start_late();
  EXPECT_TRUE(fetched_within(20 * kSecond));
  EXPECT_EQ(events("state_fetch_began"), 1U);
  EXPECT_EQ(events("state_fetch_goes_on"), 1U);
}

// More than half came at once. By then the honest one has no more what it offered at first.
TEST_F(InventedListTest, IsLeftAfterHalfAnHourForWhatIsThere) {
  begin(false, 2000, 1100);
  start_late();
  EXPECT_FALSE(fetched_within(1700 * kSecond));
  EXPECT_TRUE(fetched_within(200 * kSecond));
  EXPECT_EQ(events("state_fetch_stopped"), 0U);
  EXPECT_EQ(events("state_fetch_goes_on"), 1U);
}

// Also for one that was asked first, and out of sight for a while.
TEST_F(InventedListTest, IsLeftAfterHalfAnHourForOneThatFailedBefore) {
  begin(false, 2000, 1100);
  federation_->cut(kHostile, kLate, true);
  federation_->start(kLate);
  ASSERT_TRUE(
      federation_->run_until([&] { return events("state_fetch_began") == 1; }, 60 * kSecond));
  federation_->cut(kHonest, kLate, true);
  federation_->cut(kHostile, kLate, false);
  federation_->run_for(30 * kSecond);
  ASSERT_EQ(events("state_fetch_stopped"), 1U);
  federation_->cut(kHonest, kLate, false);
  ASSERT_TRUE(
      federation_->run_until([&] { return events("state_fetch_began") == 2; }, 60 * kSecond));
  EXPECT_FALSE(fetched_within(1700 * kSecond));
  EXPECT_TRUE(fetched_within(200 * kSecond));
  EXPECT_EQ(events("state_fetch_stopped"), 1U);
  EXPECT_EQ(events("state_fetch_goes_on"), 1U);
}

// What the others said to it long ago, of a state that is written over by now, it passes on to who
// asks for one, sooner than they answer: they read theirs for some seconds.
TEST_F(HostilePeerTest, WhatOthersOfferedLongAgoIsNotAskedFor) {
  auto options = endless_with_puppet();
  options.compute.assign(4, 60 * kSecond);  // so that three steps later it is in no memory either
  options.late = {4};
  options.without_vote = {1, 4};
  ScriptedFederation federation(std::move(options));
  auto& puppet = federation.puppet(1);
  std::vector<Bytes> offers;
  bool asked = false;
  puppet.heard = [&](Link& from, MessageType type, ByteReader& in) {
    Puppet::follow(from, type, in);
    if (type == MessageType::saved) {
      const auto message = decode_signed(type, in);
      const auto saved = message ? decode_saved(message->body) : std::nullopt;
      if (saved && saved->strong_root) offers.push_back(message->encode());
    } else if (type == MessageType::state_request) {
      asked = true;
      for (const auto& offer : offers) from.send(offer);
    }
  };
  ASSERT_TRUE(federation.run_until([&] { return federation.step(2) >= 15; }, 2000 * kSecond));
  for (const SiteId voter : {2, 3}) puppet.link(voter).send(encode(StateRequest{14, false}));
  ASSERT_TRUE(federation.run_until([&] { return offers.size() == 2; }, 5 * kSecond));
  ASSERT_TRUE(federation.run_until([&] { return federation.step(2) >= 18; }, 2000 * kSecond));
  for (const SiteId voter : {2, 3})
    federation.disk(voter).set_faults({.unreadable = "outer/state."});
  federation.start(4);
  federation.run_for(15 * kSecond);
  for (const SiteId voter : {2, 3}) federation.disk(voter).set_faults({});
  EXPECT_TRUE(federation.run_until(
      [&] { return federation.gateway(4).counters().state_fetches == 1; }, 30 * kSecond));
  EXPECT_TRUE(asked);
  EXPECT_EQ(federation.events(4, "state_fetch_stopped"), 0U);
}

// Of a list of two chunks the first one that comes is false, and nothing follows. Whoever brings
// the rest is not blamed for it.
TEST_F(HostilePeerTest, AListOfLeavesComesFromOneServer) {
  constexpr std::size_t kLeaves = (1 << 15) + 8;
  auto options = options_of({kSecond, 2 * kSecond, 2 * kSecond, 2 * kSecond});
  options.puppets = {1};
  options.late = {4};
  options.without_vote = {1, 4};
  options.tensors = kLeaves;
  options.elements = kLeaves;
  options.gateway.sync.chunk_elements = 1 << 16;
  options.gateway.sync.outer_steps = 1000;
  options.network.jitter = 0;  // the puppet answers first
  ScriptedFederation federation(std::move(options));
  auto& puppet = federation.puppet(1);
  auto& server = federation.gateway(2);
  bool asked = false;
  puppet.heard = [&](Link& from, MessageType type, ByteReader& in) {
    if (type != MessageType::state_request || !server.state()) return;
    const auto request = decode_state_request(in);
    const auto leaves = strong_leaves(federation.layout(), *server.state());
    const Saved saved{.id = {.run = server.genesis()->record.hash(),
                             .view = {},
                             .step = server.state()->step,
                             .fragment = 0},
                      .state_root = server.root(),
                      .strong_root = strong_root(leaves),
                      .spot_root = {}};
    if (request->send) {
      asked = true;
      from.offer(transfer_of_state(saved.id.run, saved.id.step, *saved.strong_root), 1, 2 + kLeaves,
                 std::make_shared<OneByOne>(Bytes(1 << 20)), false);
    }
    from.send(sign(puppet.signer, 1, MessageType::saved, encode(saved)).encode());
  };
  ASSERT_TRUE(federation.run_until([&] { return federation.step(2) >= 6; }, 300 * kSecond));
  for (const SiteId site : {2, 3}) federation.end_ranks(site);
  federation.run_for(30 * kSecond);
  federation.start(4);
  auto& late = federation.gateway(4);
  ASSERT_TRUE(federation.run_until(
      [&] { return late.state() != nullptr && late.root() == server.root(); }, 600 * kSecond));
  EXPECT_TRUE(asked);
  EXPECT_EQ(federation.events(4, "state_fetch_goes_on"), 1U);
  EXPECT_EQ(federation.events(4, "state_fetch_stopped"), 0U);
}

// Who asks to be sent a state sooner than it is answered is sent it when its turn comes, and hears
// of one that is gone.
TEST_F(HostilePeerTest, AStateIsSentWhenTheTurnComes) {
  ScriptedFederation federation(endless_with_puppet());
  auto& puppet = federation.puppet(1);
  int answers = 0;
  std::uint64_t lacking = 0;
  puppet.heard = [&](Link& from, MessageType type, ByteReader& in) {
    Puppet::follow(from, type, in);
    if (type == MessageType::saved) {
      const auto message = decode_signed(type, in);
      const auto saved = message ? decode_saved(message->body) : std::nullopt;
      answers += saved && saved->strong_root;
    } else if (type == MessageType::lacking) {
      const auto of = decode_lacking(in);
      if (of && of->site == kStateItself) lacking = of->step;
    }
  };
  ASSERT_TRUE(federation.run_until([&] { return federation.step(2) >= 6; }, 120 * kSecond));
  for (SiteId site = 2; site <= 4; ++site) federation.end_ranks(site);
  federation.run_for(60 * kSecond);
  const auto last = federation.step(2);
  auto& link = puppet.link(2);
  link.send(encode(StateRequest{last, false}));
  federation.run_for(kSecond);
  for (int i = 0; i < 30; ++i) link.send(encode(StateRequest{last, false}));
  federation.run_for(kSecond / 2);
  EXPECT_GE(answers, 16);
  EXPECT_LE(answers, 18);
  answers = 0;
  link.send(encode(StateRequest{last, true}));
  federation.run_for(5 * kSecond);
  EXPECT_EQ(answers, 1);
  link.send(encode(StateRequest{last - 2, true}));
  federation.run_for(10 * kSecond);
  EXPECT_EQ(lacking, last - 2);
}

// Leaves of a state may take minutes each: longer than a server keeps it for who asks no more.
TEST_F(HostilePeerTest, AStateIsKeptWhileItIsOnItsWay) {
  constexpr std::size_t kChunks = 17;  // a list of hashes, and a leaf for each MiB
  auto options = endless_with_puppet();
  options.elements = 4'000'000;
  options.gateway.sync.chunk_elements = 1 << 18;
  ScriptedFederation federation(std::move(options));
  auto& puppet = federation.puppet(1);
  puppet.heard = [](Link& from, MessageType type, ByteReader& in) {
    Puppet::follow(from, type, in);
    if (type != MessageType::saved) return;
    const auto message = decode_signed(type, in);
    const auto saved = message ? decode_saved(message->body) : std::nullopt;
    if (saved && saved->strong_root)
      from.have(transfer_of_state(saved->id.run, saved->id.step, *saved->strong_root),
                std::vector<bool>(kChunks, false));
  };
  ASSERT_TRUE(federation.run_until([&] { return federation.step(2) >= 3; }, 600 * kSecond));
  for (SiteId site = 2; site <= 4; ++site) federation.end_ranks(site);
  federation.run_for(60 * kSecond);
  std::vector<ChunkArrival> held;
  std::set<std::uint32_t> all;
  puppet.came = [&](Link&, const ChunkArrival& arrival) {
    held.push_back(arrival);
    all.insert(arrival.index);
  };
  auto& link = puppet.link(2);
  link.send(encode(StateRequest{federation.step(2), true}));
  for (int i = 0; i < 10; ++i) {
    federation.run_for(180 * kSecond);
    for (const auto& arrival : std::exchange(held, {})) link.settle(arrival, true);
  }
  EXPECT_EQ(all.size(), kChunks);
}

// A listed site without a vote says that its vote file has the number of another one's. That one
// starts again all the same.
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

}  // namespace
}  // namespace isthmus::inter
