// What gateways do in situations that a seed seldom makes.
#include "tests/inter/scripted_federation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace isthmus::inter {
namespace {

ScriptedFederation::Options options_of(std::vector<Nanoseconds> compute) {
  ScriptedFederation::Options options;
  options.compute = std::move(compute);
  options.gateway.sync.outer_steps = 6;
  options.gateway.sync.chunk_elements = 256;
  options.gateway.sync.absent_steps = 2;
  options.gateway.first_wait = 20 * kSecond;
  options.gateway.straggler_wait = 120 * kSecond;
  return options;
}

constexpr Nanoseconds kHour = 3600 * kSecond;

bool is_member(Gateway& gateway, const std::string& site) {
  const auto members = gateway.status().members;
  return std::ranges::find(members, site) != members.end();
}

// ---- Ranks that are gone, or hang

class DeadRanksTest : public testing::TestWithParam<bool> {};

TEST_P(DeadRanksTest, AreNoProgressAndTheirSiteIsOutUntilTheyCompute) {
  auto options = options_of({2 * kSecond, 2 * kSecond, 2 * kSecond});
  options.without_vote = {3};
  options.gateway.sync.outer_steps = 1000;
  ScriptedFederation federation(std::move(options));
  auto& first = federation.gateway(1);
  auto& third = federation.gateway(3);
  ASSERT_TRUE(federation.run_until(
      [&] { return first.state() && first.state()->step >= 8 && is_member(first, "s3"); },
      300 * kSecond));
  EXPECT_TRUE(third.computes());
  const bool hang = GetParam();
  if (hang)
    federation.ranks(3).detach();  // and the gateway is not told
  else
    federation.end_ranks(3);
  const auto before = first.counters().view_changes;
  const auto step = first.state()->step;
  ASSERT_TRUE(federation.run_until([&] { return !is_member(first, "s3"); }, 300 * kSecond));
  EXPECT_LE(first.state()->step, step + 4);
  federation.run_until([&] { return !third.computes(); }, 60 * kSecond);
  EXPECT_FALSE(third.computes());
  federation.run_for(120 * kSecond);
  EXPECT_EQ(first.counters().view_changes, before + 1);
  EXPECT_FALSE(is_member(first, "s3"));
  // The others do not wait for it any more: some three seconds a step.
  EXPECT_GT(first.state()->step, step + 30);

  federation.ranks(3).attach(third);
  EXPECT_TRUE(federation.run_until([&] { return is_member(first, "s3"); }, 60 * kSecond));
  EXPECT_TRUE(third.computes());
}

INSTANTIATE_TEST_SUITE_P(All, DeadRanksTest, testing::Bool(), [](const auto& chosen) {
  return std::string(chosen.param ? "hang" : "are_gone");
});

// ---- What is waited for

double sum_of(const WaitStatus& waits) {
  return waits.computing_s + waits.transfer_s + waits.straggler_s + waits.agreement_s +
         waits.applying_s;
}

TEST(WaitsTest, ASlowSiteIsWaitedForAsAnotherSite) {
  ScriptedFederation federation(options_of({2 * kSecond, 20 * kSecond}));
  ASSERT_TRUE(federation.run_until([&] { return federation.finished(); }, 1000 * kSecond));
  const auto quick = federation.gateway(1).status().waits;
  EXPECT_GT(quick.straggler_s, 0.7 * sum_of(quick));
  EXPECT_GT(quick.computing_s, 6 * 0.7 * 2);
  EXPECT_LT(quick.computing_s, 6 * 1.3 * 2 + 2);
  EXPECT_LT(quick.transfer_s, 0.1 * sum_of(quick));
  EXPECT_LT(quick.agreement_s, 0.1 * sum_of(quick));
  EXPECT_GT(quick.agreement_s, 0);
  EXPECT_GT(quick.applying_s, 0);
  const auto slow = federation.gateway(2).status().waits;
  EXPECT_GT(slow.computing_s, 0.8 * sum_of(slow));
  // Nothing is left out, and nothing counted twice.
  EXPECT_NEAR(sum_of(quick), seconds_of(federation.now()), 3);
  EXPECT_NEAR(sum_of(slow), seconds_of(federation.now()), 3);
}

TEST(WaitsTest, ASlowLinkIsWaitedForAsTransfer) {
  auto options = options_of({2 * kSecond, 2 * kSecond});
  options.elements = 100'000;
  options.gateway.sync.chunk_elements = 4096;
  options.network.bytes_per_second = 5000;
  ScriptedFederation federation(std::move(options));
  ASSERT_TRUE(federation.run_until([&] { return federation.finished(); }, 1000 * kSecond));
  for (const SiteId site : {1U, 2U}) {
    const auto waits = federation.gateway(site).status().waits;
    EXPECT_GT(waits.transfer_s, 0.6 * sum_of(waits)) << site;
    EXPECT_LT(waits.straggler_s, 0.2 * sum_of(waits)) << site;
    EXPECT_LT(waits.agreement_s, 0.2 * sum_of(waits)) << site;
  }
}

// A voter that cannot be reached is what agreement waits for, once all contributions are here.
TEST(WaitsTest, MissingVotesAreWaitedForAsAgreement) {
  auto options = options_of({2 * kSecond, 2 * kSecond, 2 * kSecond});
  options.without_vote = {3};
  options.gateway.sync.outer_steps = 1000;
  ScriptedFederation federation(std::move(options));
  auto& first = federation.gateway(1);
  // The other voter's ranks leave for good, then it is cut off: no majority without it.
  ASSERT_TRUE(federation.run_until(
      [&] { return first.state() && first.state()->step >= 4 && is_member(first, "s3"); },
      300 * kSecond));
  federation.end_ranks(2);
  ASSERT_TRUE(federation.run_until([&] { return !is_member(first, "s2"); }, 600 * kSecond));
  const auto before = first.status().waits.agreement_s;
  federation.cut_off(2, true);
  federation.run_for(60 * kSecond);
  EXPECT_GT(first.status().waits.agreement_s, before + 40);
}

// ---- States that differ

TEST(DivergenceTest, ASiteWithoutAVoteStopsNoVoter) {
  auto options = options_of({2 * kSecond, 2 * kSecond, 2 * kSecond});
  options.without_vote = {3};
  options.gateway.sync.outer_steps = 20;
  bool broken = false;
  options.adjust = [&broken](SiteId site, GatewayOptions& own) {
    if (site == 3)
      own.disturb = [&broken](std::uint64_t, std::span<float> agreed) {
        if (broken) agreed[0] += 1;
      };
  };
  ScriptedFederation federation(std::move(options));
  auto& first = federation.gateway(1);
  auto& third = federation.gateway(3);
  ASSERT_TRUE(federation.run_until(
      [&] { return first.state() && first.state()->step >= 3 && is_member(first, "s3"); },
      300 * kSecond));
  // The site without a vote computes the next step wrongly, and the other voter is cut off before
  // it can say what it has.
  broken = true;
  const auto step = first.state()->step + 1;
  ASSERT_TRUE(federation.run_until([&] { return first.chain().size() >= step; }, 60 * kSecond));
  federation.cut_off(2, true);
  ASSERT_TRUE(federation.run_until([&] { return third.state()->step >= step; }, 60 * kSecond));
  ASSERT_NE(third.root(), first.root());
  federation.run_for(180 * kSecond);
  EXPECT_FALSE(federation.process(1).failure()) << federation.process(1).failure()->text();
  EXPECT_EQ(federation.events(1, "state_disputed"), 0U);
  broken = false;
  federation.cut_off(2, false);
  EXPECT_TRUE(federation.run_until([&] { return federation.finished(); }, 600 * kSecond));
  EXPECT_EQ(third.root(), first.root());
}

// ---- A peer that sends garbage

class HostilePeerTest : public testing::Test {
 protected:
  // The first of four sites is the puppet, without a vote.
  static ScriptedFederation::Options endless_with_puppet() {
    auto options = options_of({kSecond, 2 * kSecond, 2 * kSecond, 2 * kSecond});
    options.puppets = {1};
    options.without_vote = {1};
    options.gateway.sync.outer_steps = 1000;
    return options;
  }
  // The puppet is on the step of the others, so that they tell it everything.
  static void follow(Puppet& puppet, Link& from, MessageType type, ByteReader& in) {
    if (type != MessageType::status) return;
    const auto theirs = decode_status(in);
    if (!theirs) return;
    Status mine;
    mine.step = theirs->step;
    mine.first_record = 1;
    mine.sees = {1, 2, 3, 4};
    from.send(encode(mine));
    (void)puppet;
  }
};

// Chunks of which nothing is true, as many as are asked for.
class Garbage final : public ChunkSource {
 public:
  explicit Garbage(std::size_t bytes) : bytes_(bytes) {}
  ChunkBytes chunk(std::uint32_t) override { return {std::make_shared<const Bytes>(bytes_), 1, 1}; }

 private:
  std::size_t bytes_;
};

// The list of a state's leaves is true, the leaves are not.
class FalseLeaves final : public ChunkSource {
 public:
  explicit FalseLeaves(const std::vector<security::Digest>& leaves) {
    ByteWriter out;
    for (const auto& leaf : leaves) out.raw(leaf.bytes);
    list_ = std::make_shared<const Bytes>(out.take());
  }
  ChunkBytes chunk(std::uint32_t index) override {
    return {index == 0 ? list_ : std::make_shared<const Bytes>(4 * ModelLayout::kLeafElements), 1,
            1};
  }

 private:
  std::shared_ptr<const Bytes> list_;
};

TEST_F(HostilePeerTest, AServerOfFalseLeavesIsLeftForAnother) {
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
                 std::make_shared<FalseLeaves>(leaves), false);
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
  EXPECT_GE(federation.events(4, "state_fetch_stopped"), 1U) << "the puppet was never asked";
  EXPECT_EQ(late.root(), server.root());
}

TEST_F(HostilePeerTest, FalseChunksHoldNoFetchUp) {
  auto options = endless_with_puppet();
  ScriptedFederation federation(std::move(options));
  auto& puppet = federation.puppet(1);
  auto& second = federation.gateway(2);
  auto& fourth = federation.gateway(4);
  puppet.heard = [&](Link& from, MessageType type, ByteReader& in) {
    follow(puppet, from, type, in);
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
    follow(puppet, from, type, in);
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

  // Both states that are kept stay in memory while they are asked for, and there is room for no
  // other.
  reads = federation.disk(2).counters().opened_to_read;
  for (int i = 0; i < 100; ++i) {
    for (const auto step : {last, last - 1, last - 2}) link.send(encode(StateRequest{step, false}));
    federation.run_for(kSecond / 2);
  }
  EXPECT_LE(federation.disk(2).counters().opened_to_read - reads, 10U);

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

// Whoever has no vote leads nothing, however often it says so.
TEST_F(HostilePeerTest, PreparesOfOneWithoutAVoteHoldNoBallotUp) {
  auto options = endless_with_puppet();
  ScriptedFederation federation(std::move(options));
  auto& puppet = federation.puppet(1);
  auto& second = federation.gateway(2);
  std::uint64_t ballot = 1, prepares = 0;
  puppet.heard = [&](Link& from, MessageType type, ByteReader& in) {
    follow(puppet, from, type, in);
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

// ---- A slow line

// A chunk takes longer than whoever lacks it waits before it asks again.
TEST(SlowLinkTest, ALowRateLimitIsSlowAndNoMore) {
  auto options = options_of({2 * kSecond, 2 * kSecond, 2 * kSecond});
  options.elements = 150'000;
  options.gateway.sync.outer_steps = 3;
  options.gateway.sync.chunk_elements = 1 << 16;
  options.gateway.rate_limit_bytes_per_second = 4000;
  ScriptedFederation federation(std::move(options));
  // 2 x 150 kB from each site: 75 s a step, and more than is waited for at first.
  ASSERT_TRUE(federation.run_until([&] { return federation.finished(); }, 300 * kSecond));
  for (const SiteId site : {1U, 2U, 3U}) {
    EXPECT_EQ(federation.gateway(site).counters().unnamed, 0U) << site;
    EXPECT_EQ(federation.events(site, "ballot_opened"), 0U) << site;
  }
}

// ---- The end

// One that is no member any more, and comes back when the others are through.
TEST(EndTest, WhoeverCanBeReachedIsServed) {
  auto options = options_of({kSecond, kSecond, kSecond});
  options.late = {3};
  options.without_vote = {3};
  options.elements = 200'000;
  options.gateway.sync.chunk_elements = 1 << 16;
  options.network.bytes_per_second = 20'000;
  ScriptedFederation federation(std::move(options));
  auto& first = federation.gateway(1);
  ASSERT_TRUE(federation.run_until([&] { return first.state() && first.state()->step == 6; },
                                   600 * kSecond));
  federation.start(3);
  EXPECT_TRUE(federation.run_until([&] { return federation.finished(); }, 600 * kSecond));
  EXPECT_EQ(federation.gateway(3).state()->step, 6U);
}

// ---- What ranks give

class RanksTest : public testing::Test {
 protected:
  RanksTest() : federation_(options_of({kSecond, kSecond})) {
    federation_.run_until([&] { return first().state().has_value(); }, 60 * kSecond);
  }
  Gateway& first() { return federation_.gateway(1); }
  ScriptedFederation federation_;
};

TEST_F(RanksTest, MoreTokensThanARecordCanNameAreRefused) {
  ASSERT_TRUE(first().state());
  const std::vector<float> parameters(federation_.layout().elements());
  const auto contribute = [&](std::uint64_t tokens) {
    return first().contribute(first().state()->step + 1, parameters, tokens);
  };
  for (const auto tokens : {kTokensMax + 1, ~std::uint64_t{0}}) {
    const auto refused = contribute(tokens);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::invalid_argument);
  }
  EXPECT_TRUE(
      federation_.run_until([&] { return contribute(kTokensMax).has_value(); }, 60 * kSecond));
  EXPECT_TRUE(federation_.run_until([&] { return federation_.finished(); }, 1000 * kSecond));
}

TEST_F(RanksTest, FragmentsThatNobodyExchangesAreRefused) {
  const auto layout = *ModelLayout::make({{"a", Shape{1000}, 0}, {"b", Shape{1000}, 1}});
  const auto refused = first().attached(layout, "in two fragments");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::unsupported);
  EXPECT_THAT(refused.error().text(), testing::HasSubstr("b is of fragment 1"));
}

// ---- Votes that outlive what they were cast under

// What a majority has saved is let go, also by who does not see that majority.
TEST(NarrowTest, WhatIsSavedIsLetGo) {
  auto options = options_of({2 * kSecond, 2 * kSecond, 2 * kSecond, 2 * kSecond});
  options.without_vote = {2, 4};
  options.gateway.sync.outer_steps = 1000;
  ScriptedFederation federation(std::move(options));
  federation.cut(1, 3, true);  // the voters
  federation.cut(1, 4, true);
  federation.cut(2, 4, true);
  const auto held_after = [&](std::uint64_t steps) {
    EXPECT_TRUE(federation.run_until(
        [&] {
          return federation.gateway(4).state() && federation.gateway(4).state()->step >= steps;
        },
        kHour));
    std::vector<std::uint64_t> bytes;
    for (SiteId site = 1; site <= 4; ++site)
      bytes.push_back(federation.gateway(site).memory_bytes());
    return bytes;
  };
  const auto early = held_after(20);
  const auto late = held_after(60);
  for (std::size_t i = 0; i < early.size(); ++i)
    EXPECT_LT(late[i], 2 * early[i]) << "site " << i + 1;
}

class AwayTest : public testing::TestWithParam<int> {};

// Each opened ballots by itself all the time: what the other said before does not drown what it
// says now.
TEST_P(AwayTest, VotersThatSeeEachOtherThroughAThirdAgreeAgain) {
  auto options = options_of({2 * kSecond, 2 * kSecond, 2 * kSecond});
  options.without_vote = {2};
  options.gateway.sync.outer_steps = 1000;
  ScriptedFederation federation(std::move(options));
  federation.cut(1, 3, true);
  auto& first = federation.gateway(1);
  ASSERT_TRUE(federation.run_until([&] { return first.state() && first.state()->step >= 4; },
                                   600 * kSecond));
  federation.cut_off(3, true);
  federation.run_for(GetParam() * 60 * kSecond);
  const auto step = first.state()->step;
  federation.cut(2, 3, false);
  EXPECT_TRUE(federation.run_until([&] { return first.state()->step > step + 3; }, 600 * kSecond));
}

INSTANTIATE_TEST_SUITE_P(Minutes, AwayTest, testing::Values(1, 30, 120));

ScriptedFederation::Options three_sites(std::uint32_t min_sites) {
  auto options = options_of({2 * kSecond, 2 * kSecond, 2 * kSecond});
  options.gateway.sync.outer_steps = 1000;
  options.gateway.sync.absent_steps = 3;
  options.gateway.sync.min_sites = min_sites;
  return options;
}

class ComebackTest : public testing::TestWithParam<std::uint32_t> {};

// A majority of the voters goes on, whoever was a member when the others were lost.
TEST_P(ComebackTest, WhoWasDroppedTakesThePlaceOfWhoIsLost) {
  ScriptedFederation federation(three_sites(GetParam()));
  auto& second = federation.gateway(2);
  auto& third = federation.gateway(3);
  ASSERT_TRUE(
      federation.run_until([&] { return third.state() && third.state()->step >= 4; }, kHour));
  federation.cut_off(2, true);
  ASSERT_TRUE(federation.run_until([&] { return !third.view().is_member(2); }, kHour));
  federation.kill(1);
  federation.cut_off(2, false);
  const auto step = third.state()->step;
  EXPECT_TRUE(federation.run_until([&] { return second.state()->step >= step + 5; }, kHour));
  EXPECT_TRUE(second.view().is_member(2));
  EXPECT_LE(federation.events(3, "ballot_opened"), 30U);
}

TEST(LastMemberTest, WhoWasDroppedGoesOnWithoutIt) {
  ScriptedFederation federation(three_sites(1));
  auto& first = federation.gateway(1);
  auto& third = federation.gateway(3);
  ASSERT_TRUE(
      federation.run_until([&] { return first.state() && first.state()->step >= 4; }, kHour));
  federation.end_ranks(2);
  federation.end_ranks(3);
  ASSERT_TRUE(
      federation.run_until([&] { return first.view().members == std::vector<SiteId>{1}; }, kHour));
  federation.run_for(20 * kSecond);
  federation.kill(1);
  federation.run_for(10 * kSecond);
  federation.ranks(2).attach(federation.gateway(2));
  federation.ranks(3).attach(third);
  const auto step = third.state()->step;
  EXPECT_TRUE(federation.run_until([&] { return third.state()->step >= step + 5; }, kHour));
}

INSTANTIATE_TEST_SUITE_P(MinSites, ComebackTest, testing::Values(1, 2));

class SettingsTest : public testing::TestWithParam<std::pair<int, int>> {};

// The number of steps may change when all sites are started again, also while one has voted.
TEST_P(SettingsTest, ChangeWhileAStepIsVotedOn) {
  const auto [before, after] = GetParam();
  auto options = options_of({2 * kSecond, 2 * kSecond});
  options.gateway.sync.outer_steps = static_cast<std::uint64_t>(before);
  bool voted = false;
  options.adjust = [&](SiteId site, GatewayOptions& of_site) {
    if (site == 1)
      of_site.at_point = [&](const char* point, std::uint64_t step) {
        voted |= step == 4 && point == std::string_view("between_vote_and_accept");
      };
  };
  ScriptedFederation federation(std::move(options));
  ASSERT_TRUE(federation.run_until([&] { return voted; }, 600 * kSecond));
  federation.kill(1);
  federation.kill(2);
  federation.change([&](GatewayOptions& all) {
    all.sync.outer_steps = static_cast<std::uint64_t>(after);
    all.sync.min_sites = 2;
  });
  federation.start(1);
  federation.start(2);
  const auto step = [&](SiteId site) {
    const auto& state = federation.gateway(site).state();
    return state ? state->step : 0;
  };
  EXPECT_TRUE(federation.run_until([&] { return step(1) >= 4 && step(2) >= 4; }, 300 * kSecond));
}

INSTANTIATE_TEST_SUITE_P(Steps, SettingsTest,
                         testing::Values(std::pair(20, 30), std::pair(20, 4), std::pair(4, 20)));

TEST(FoundingTest, WhoIsMissingIsNamedAndWaitedFor) {
  auto options = options_of({kSecond, kSecond, kSecond});
  options.late = {3};
  ScriptedFederation federation(std::move(options));
  federation.run_for(200 * kSecond);
  EXPECT_EQ(federation.gateway(1).genesis(), std::nullopt);
  EXPECT_EQ(federation.events(1, "sites_missed"), 2U);
  const auto waiting = federation.gateway(1).status();
  EXPECT_GT(waiting.waits.straggler_s, 0.9 * sum_of(waiting.waits));
  EXPECT_THAT(waiting.attention,
              testing::ElementsAre(testing::StartsWith(
                  "it waits for s3: a run begins when all its voters are here")));
  federation.start(3);
  EXPECT_TRUE(federation.run_until([&] { return federation.finished(); }, 600 * kSecond));
  EXPECT_TRUE(federation.gateway(1).status().attention.empty());
}

TEST(MissedSitesTest, AreNamedWhenNothingGoesOnWithoutThem) {
  auto options = options_of({2 * kSecond, 2 * kSecond, 2 * kSecond});
  options.gateway.sync.outer_steps = 1000;
  ScriptedFederation federation(std::move(options));
  auto& first = federation.gateway(1);
  ASSERT_TRUE(
      federation.run_until([&] { return first.state() && first.state()->step >= 3; }, kHour));
  federation.cut_off(2, true);
  federation.run_for(60 * kSecond);
  EXPECT_EQ(federation.events(1, "sites_missed"), 0U);  // two of three go on
  federation.cut_off(3, true);
  federation.run_for(60 * kSecond);
  EXPECT_EQ(federation.events(1, "sites_missed"), 1U);
  EXPECT_THAT(first.status().attention,
              testing::Contains(testing::StartsWith("it waits for s2, s3: no outer step")));
  federation.cut_off(2, false);
  federation.run_for(60 * kSecond);
  EXPECT_EQ(federation.events(1, "sites_are_back"), 1U);
  EXPECT_TRUE(first.status().attention.empty());
}

TEST(FoundingTest, NoRunBeginsWithParametersThatAreNotFinite) {
  ScriptedFederation federation(options_of({kSecond, kSecond}));
  auto& first = federation.gateway(1);
  std::vector<float> parameters(federation.layout().elements(), 1.0f);
  parameters[77] = std::numeric_limits<float>::quiet_NaN();
  ASSERT_TRUE(first.attached(federation.layout(), "of a training that diverged"));
  first.offer_initial(std::move(parameters));
  EXPECT_TRUE(federation.run_until([&] { return federation.ranks(1).refused(); }, 60 * kSecond));
  EXPECT_EQ(first.genesis(), std::nullopt);
}

}  // namespace
}  // namespace isthmus::inter
