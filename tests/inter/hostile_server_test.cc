// What a listed peer can cost that serves an outer state badly.
#include <gtest/gtest.h>

#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "tests/inter/hostile_peer.h"

namespace isthmus::inter {
namespace {

using HostileServerTest = HostilePeerTest;

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

// Of which less than half came.
class BarelyBegunListTest : public InventedListTest, public testing::WithParamInterface<bool> {};

TEST_P(BarelyBegunListTest, IsLeftAtOnce) {
  begin(GetParam(), 200, 0);
  start_late();
  EXPECT_TRUE(fetched_within(20 * kSecond));
  EXPECT_EQ(events("state_fetch_began"), 1U);
  EXPECT_EQ(events("state_fetch_goes_on"), 1U);
}

INSTANTIATE_TEST_SUITE_P(For, BarelyBegunListTest, testing::Bool(), [](const auto& test) {
  return test.param ? "WhatAMajorityHasSigned" : "WhatNobodyWithAVoteHasSigned";
});

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
TEST_F(HostileServerTest, WhatOthersOfferedLongAgoIsNotAskedFor) {
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
TEST_F(HostileServerTest, AListOfLeavesComesFromOneServer) {
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

}  // namespace
}  // namespace isthmus::inter
