// A site that was away while the steps of the others take much less time than its return: a state
// to fetch, and the steps that followed it to replay.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <set>
#include <tuple>

#include "inter/returning_sites.h"
#include "tests/inter/scripted_federation.h"

namespace isthmus::inter {
namespace {

// ---- What is kept, and for how long

constexpr SiteId kSite = 3;
constexpr Nanoseconds kPatience = 2 * kSecond;

TEST(KeptForReturn, AboutTwoStatesAndAllThatIsSmall) {
  const std::uint64_t gigabyte = 1'000'000'000;
  EXPECT_EQ(steps_kept_for_return(8 * gigabyte, 4 * gigabyte), 4U);
  EXPECT_EQ(steps_kept_for_return(8 * gigabyte, 64 * gigabyte), 0U);
  EXPECT_EQ(steps_kept_for_return(16'000, 6'000), 256U);
  EXPECT_EQ(steps_kept_for_return(0, 0), 256U);
}

TEST(ReturningSites, WhatFollowsAStateIsKeptUntilItIsReplayed) {
  ReturningSites sites(100);
  EXPECT_EQ(sites.keep_from(10, 0), 10U);
  sites.asks_for_state(kSite, 10, false, 9);
  sites.asks_for_state(kSite, 12, false, 9);
  EXPECT_EQ(sites.keep_from(20, 0), 11U) << "the first one may still be chosen";
  sites.asks_for_state(kSite, 12, true, 11);
  sites.works_on(kSite, 3, 21, 11, 0);  // as long as it fetches
  EXPECT_EQ(sites.keep_from(20, 0), 13U);
  sites.works_on(kSite, 13, 22, 13, 0);
  sites.works_on(kSite, 17, 23, 13, 0);
  EXPECT_EQ(sites.keep_from(22, 0), 17U);
  sites.works_on(kSite, 23, 23, 17, 0);
  EXPECT_EQ(sites.keep_from(22, 0), 22U);
}

TEST(ReturningSites, WhatIsGoneIsNotPromised) {
  ReturningSites sites(100);
  sites.asks_for_state(kSite, 7, true, 9);
  sites.works_on(kSite, 8, 12, 9, 0);
  EXPECT_EQ(sites.keep_from(10, 0), 10U);
}

TEST(ReturningSites, NothingIsKeptBeyondTheBoundNorForWhoIsGone) {
  ReturningSites sites(5);
  sites.asks_for_state(kSite, 10, true, 9);
  EXPECT_EQ(sites.keep_from(16, 0), 11U);
  EXPECT_EQ(sites.keep_from(17, 0), 17U) << "too late for it";
  sites.asks_for_state(kSite, 17, true, 17);
  sites.went_away(kSite, kSecond);
  EXPECT_EQ(sites.keep_from(19, 60 * kSecond), 18U);
  EXPECT_EQ(sites.keep_from(19, 62 * kSecond), 19U);
}

// ---- Who is waited for

class AwaitedTest : public testing::Test {
 protected:
  // It replays step 11, ten behind.
  AwaitedTest() { works_on(11); }
  void works_on(std::uint64_t step) { sites.works_on(kSite, step, newest, 5, now); }
  bool awaited() const { return sites.awaited(kSite, newest, 5, now, kPatience); }
  void next_step() {
    ++newest;
    sites.begin_step();
  }

  ReturningSites sites{100};
  std::uint64_t newest = 21;
  Nanoseconds now = 100 * kSecond;
};

TEST_F(AwaitedTest, UntilItHasReplayedTwoSteps) {
  EXPECT_TRUE(awaited());
  now += kSecond;
  works_on(12);
  EXPECT_TRUE(awaited());
  now += kSecond;
  works_on(13);
  EXPECT_FALSE(awaited());
  next_step();
  EXPECT_TRUE(awaited());
}

TEST_F(AwaitedTest, NotWhenItStandsStill) {
  now += kPatience;
  EXPECT_FALSE(awaited());
  works_on(11);
  EXPECT_FALSE(awaited());
  works_on(12);
  EXPECT_TRUE(awaited());
}

TEST_F(AwaitedTest, LongerIfItsStepsTakeLonger) {
  for (std::uint64_t step = 12; step < 16; ++step) {
    now += 8 * kSecond;
    works_on(step);
    next_step();
  }
  now += 15 * kSecond;
  EXPECT_TRUE(awaited());
  now += 60 * kSecond;
  EXPECT_FALSE(awaited());
}

// Ten behind: twenty times its patience, of which an eighth of the time is forgiven.
TEST_F(AwaitedTest, AsLongAsTwiceTheStepsThatItWasBehindMayTake) {
  Nanoseconds held = 0;
  const auto hold = [&] {
    sites.holds_up(kSite, now);
    now += kSecond;
    held += kSecond;
    sites.holds_up(kSite, now);
    next_step();
    works_on(newest - 10);
  };
  while (awaited()) hold();
  EXPECT_GT(held, 30 * kSecond);
  EXPECT_LE(held, 40 * kSecond);
  sites.is_member(kSite);
  works_on(newest - 10);
  EXPECT_FALSE(awaited()) << "what it says of itself forgives nothing";
  held = 0;
  for (int minute = 0; minute < 60; ++minute) {
    for (int second = 0; second < 60; ++second) {
      works_on(newest - 10);
      if (awaited()) {
        hold();
      } else {
        now += kSecond;
        next_step();
      }
    }
  }
  EXPECT_GT(held, 3600 * kSecond / 12);
  EXPECT_LE(held, 3600 * kSecond / 8);
}

// It goes to and fro, which is no replay, and says that it is far behind.
TEST_F(AwaitedTest, WhateverItSaysNoMoreThanAMinuteInOneStep) {
  newest = 211;
  const auto held_up = [&] {
    Nanoseconds held = 0;
    for (int i = 0; awaited() && held < 300 * kSecond; ++i) {
      if (i % 4 == 0)
        for (const std::uint64_t step : {12, 11}) {
          sites.asks_for_state(kSite, 8, false, 5);
          works_on(step);
        }
      sites.holds_up(kSite, now);
      now += kSecond / 4;
      held += kSecond / 4;
    }
    return held;
  };
  EXPECT_NEAR(seconds_of(held_up()), 60, 1);
  next_step();
  EXPECT_NEAR(seconds_of(held_up()), 60, 1);
}

// It replays as slowly as it is waited for, over a long way, and is 200 steps behind.
TEST_F(AwaitedTest, HoweverFarBehindNoMoreThanFiveMinutesBesideAnEighth) {
  newest = 211;
  const auto patience = 10 * kSecond, began = now;
  Nanoseconds held = 0;
  for (std::uint64_t step = 12; held < 3600 * kSecond; ++step) {
    const auto before = held;
    while (sites.awaited(kSite, newest, 5, now, patience) && held - before < 9 * kSecond) {
      sites.holds_up(kSite, now);
      now += kSecond / 4;
      held += kSecond / 4;
    }
    if (held == before) break;
    works_on(step);
    if (step % 2 == 1) next_step();
  }
  EXPECT_GT(held, 240 * kSecond);
  EXPECT_LE(held, 300 * kSecond + (now - began) / 8 + kSecond);
}

TEST_F(AwaitedTest, ToGoBackIsNoProgress) {
  now += kPatience - kSecond / 2;
  works_on(10);
  EXPECT_TRUE(awaited());
  now += kSecond / 2;
  EXPECT_FALSE(awaited());
}

// Other things were waited for meanwhile.
TEST_F(AwaitedTest, WhatItDidNotHoldUpIsNotCharged) {
  sites.holds_up(kSite, now);
  now += 100 * kSecond;
  sites.holds_up(kSite, now);
  EXPECT_TRUE(sites.may_hold_up(kSite, 2 * kSecond, now));
  EXPECT_FALSE(sites.may_hold_up(kSite, kSecond, now));
}

TEST_F(AwaitedTest, HoweverLongItSaysThatItsStepsTakeNoMoreThanAMinute) {
  for (std::uint64_t step = 12; step < 16; ++step) {
    now += 3600 * kSecond;
    works_on(step);
    next_step();
  }
  now += 59 * kSecond;
  EXPECT_TRUE(awaited());
  now += 2 * kSecond;
  EXPECT_FALSE(awaited());
}

TEST_F(AwaitedTest, NotWhileItFetchesNorWhenItIsCurrentNorAway) {
  EXPECT_FALSE(sites.awaited(kSite, newest, 12, now, kPatience));
  works_on(newest);
  EXPECT_FALSE(awaited());
  next_step();
  EXPECT_TRUE(awaited());
  sites.went_away(kSite, now);
  EXPECT_FALSE(awaited());
}

// ---- Whole gateways

class ReturnTest : public testing::Test {
 protected:
  explicit ReturnTest(ScriptedFederation::Options options) : federation_(std::move(options)) {}

  std::uint64_t step(SiteId site) { return federation_.step(site); }
  bool reaches(SiteId site, std::uint64_t wanted) {
    return federation_.run_until([&] { return step(site) >= wanted; }, 600 * kSecond);
  }
  bool member() { return federation_.gateway(1).view().is_member(kSite); }
  bool sees() { return federation_.gateway(1).session_with(kSite) != 0; }
  std::size_t files(SiteId site) {
    return federation_.disk(site)
        .list("outer/contributions")
        .value_or(std::vector<std::string>())
        .size();
  }
  // Away until it is dropped, and the others have made many steps more.
  void be_away() {
    ASSERT_TRUE(reaches(1, 4));
    federation_.cut_off(kSite, true);
    ASSERT_TRUE(federation_.run_until([&] { return !member(); }, 60 * kSecond));
    ASSERT_TRUE(reaches(1, step(1) + 20));
    federation_.cut_off(kSite, false);
    ASSERT_TRUE(federation_.run_until([&] { return sees(); }, 60 * kSecond));
  }
  // In how many steps it is a member again.
  std::optional<std::uint64_t> comes_back(Nanoseconds limit) {
    const auto came = step(1);
    if (!federation_.run_until([&] { return member(); }, limit)) return std::nullopt;
    return step(1) - came;
  }

  ScriptedFederation federation_;
};

// Steps of less than a second, and a state that takes three to be fetched.
ScriptedFederation::Options short_steps() {
  auto options = options_of({400 * kMillisecond, 400 * kMillisecond, 400 * kMillisecond});
  options.elements = 200'000;
  options.network.bytes_per_second = 600'000;
  options.gateway.sync.outer = {OuterRuleKind::nesterov, 0.7f, 0.9f};
  options.gateway.sync.chunk_elements = 1 << 14;
  options.gateway.sync.outer_steps = 100'000;
  return options;
}

class ShortStepsReturnTest : public ReturnTest {
 protected:
  ShortStepsReturnTest() : ReturnTest(short_steps()) {}
};

TEST_F(ShortStepsReturnTest, TakesOneFetch) {
  be_away();
  const auto steps = comes_back(60 * kSecond);
  ASSERT_TRUE(steps);
  EXPECT_LE(*steps, 20U);
  EXPECT_EQ(federation_.gateway(kSite).counters().state_fetches, 1U);
  // Nothing more is kept for it.
  ASSERT_TRUE(reaches(1, step(1) + 5));
  for (SiteId site = 1; site <= 3; ++site) EXPECT_LE(files(site), 15U) << "site " << site;
}

// To replay a step takes two round trips, to make one takes less.
ScriptedFederation::Options far_away(std::uint64_t seed) {
  auto options = options_of({50 * kMillisecond, 50 * kMillisecond, 50 * kMillisecond});
  options.network.delay = 250 * kMillisecond;
  options.network_seed = seed;
  options.gateway.sync.outer_steps = 100'000;
  return options;
}

class FarAwayReturnTest : public ReturnTest, public testing::WithParamInterface<std::uint64_t> {
 protected:
  FarAwayReturnTest() : ReturnTest(far_away(GetParam())) {}
};

// Whether it fetches a state first or the others still have all that it lacks.
TEST_P(FarAwayReturnTest, IsWaitedForAlthoughReplayIsNoFasterThanSteps) {
  be_away();
  const auto behind = step(1) - step(kSite);
  const auto steps = comes_back(120 * kSecond);
  ASSERT_TRUE(steps);
  EXPECT_LE(*steps, behind + behind / 4);
  EXPECT_LE(federation_.gateway(kSite).counters().state_fetches, 1U);
}

// What is shown of it meanwhile is where it stands, not what its ranks did before.
TEST_P(FarAwayReturnTest, SaysThatItCatchesUp) {
  EXPECT_EQ(federation_.gateway(kSite).status().catching_up_to, 0U);
  be_away();
  std::set<std::uint64_t> replayed;
  ASSERT_TRUE(federation_.run_until(
      [&] {
        const auto status = federation_.gateway(kSite).status();
        if (status.phase == "catching up" && status.catching_up_to > 0) {
          replayed.insert(status.outer_step);
          EXPECT_GT(status.catching_up_to, status.outer_step);
          for (const auto& rank : status.ranks) EXPECT_EQ(rank.loss, 0);
        }
        return member() && step(kSite) + 1 >= step(1);
      },
      120 * kSecond));
  EXPECT_GE(replayed.size(), 2U);
  const auto status = federation_.gateway(kSite).status();
  EXPECT_NE(status.phase, "catching up");
  EXPECT_EQ(status.catching_up_to, 0U);
  ASSERT_EQ(status.ranks.size(), 1U);
  EXPECT_GT(status.ranks.front().loss, 0);
}

INSTANTIATE_TEST_SUITE_P(Networks, FarAwayReturnTest, testing::Range<std::uint64_t>(1, 13));

// To replay a step takes longer on its line than the others take for three.
ScriptedFederation::Options thin_line() {
  auto options = options_of({100 * kMillisecond, 100 * kMillisecond, 100 * kMillisecond});
  options.elements = 20'000;
  options.gateway.sync.chunk_elements = 1 << 12;
  options.gateway.sync.outer_steps = 100'000;
  return options;
}

class ThinLineReturnTest : public ReturnTest {
 protected:
  ThinLineReturnTest() : ReturnTest(thin_line()) {}
};

TEST_F(ThinLineReturnTest, IsWaitedFor) {
  federation_.set_access(kSite, 40'000);
  be_away();
  const auto steps = comes_back(300 * kSecond);
  ASSERT_TRUE(steps);
  EXPECT_LE(*steps, 60U);
  EXPECT_EQ(federation_.gateway(kSite).counters().state_fetches, 1U);
}

// Who asks for states and goes on from none costs a bounded room on the disk, and only while it is
// there; and holds nobody up.
TEST(StateAskerTest, CostsBoundedRoom) {
  auto options = options_of({5 * kMillisecond, 5 * kMillisecond, kSecond});
  options.puppets = {kSite};
  options.without_vote = {kSite};
  options.gateway.sync.outer_steps = 100'000;
  ScriptedFederation federation(std::move(options));
  auto& puppet = federation.puppet(kSite);
  puppet.heard = [&](Link& from, MessageType type, ByteReader&) {
    if (type != MessageType::status) return;
    Status mine;
    mine.step = 1;
    mine.contributes = true;
    mine.vote_file = 77;
    from.send(encode(mine));
    from.send(encode(StateRequest{0, false}));
  };
  const auto step = [&] { return federation.step(1); };
  const auto files = [&] { return federation.disk(1).list("outer/contributions")->size(); };
  std::size_t most = 0;
  ASSERT_TRUE(federation.run_until(
      [&] {
        if (step() > 0) most = std::max(most, files());
        return step() >= 700;
      },
      600 * kSecond));
  EXPECT_GT(most, 2 * 200U);
  EXPECT_LT(most, 2 * 270U);
  EXPECT_LT(federation.gateway(1).memory_bytes(), 100'000U);
  federation.cut_off(kSite, true);
  federation.run_for(90 * kSecond);
  EXPECT_LT(files(), 20U);
}

// Whoever says to have what a site missed, and never sends it, keeps it out no longer than its
// patience, also where its link goes and comes: the site fetches a state.
class SilentSourceTest : public testing::TestWithParam<bool> {};

TEST_P(SilentSourceTest, KeepsNobodyOut) {
  auto options = options_of({kSecond, kSecond, kSecond, kSecond});
  options.puppets = {4};
  options.without_vote = {3, 4};
  options.gateway.sync.outer_steps = 100'000;
  ScriptedFederation federation(std::move(options));
  federation.puppet(4).heard = [](Link& from, MessageType type, ByteReader& in) {
    Puppet::follow(from, type, in, [](const Status& theirs, Status& mine) {
      mine.step = theirs.step + 1000;
      mine.vote_file = 77;
    });
  };
  const auto step = [&](SiteId site) { return federation.step(site); };
  ASSERT_TRUE(federation.run_until([&] { return step(1) >= 6 && step(3) >= 5; }, 300 * kSecond));
  federation.cut_off(3, true);
  ASSERT_TRUE(federation.run_until([&] { return step(1) >= 200; }, 3000 * kSecond));
  federation.cut_off(3, false);
  for (int i = 0; i < 100; ++i) {
    federation.run_for(3 * kSecond);  // less than the patience
    if (!GetParam()) continue;
    federation.puppet(4).link(3).end("it flaps");
  }
  EXPECT_GE(step(3) + 10, step(1));
  EXPECT_GE(federation.gateway(3).counters().state_fetches, 1U);
}

INSTANTIATE_TEST_SUITE_P(Link, SilentSourceTest, testing::Bool(),
                         [](const auto& test) { return test.param ? "Flaps" : "Stands"; });

// Two sites that ask one gateway for what it must read from its disk first.
class ReadFromDiskTest : public testing::Test {
 protected:
  ReadFromDiskTest() : federation_(options()) {
    for (const SiteId site : {kAsker, kOther}) {
      federation_.puppet(site).heard = [this, site](Link& from, MessageType type, ByteReader& in) {
        if (type == MessageType::status)
          from.send(encode(status()));
        else if (type == MessageType::open && from.peer().site == kServer)
          note(site, decode_signed(type, in));
      };
    }
  }
  void SetUp() override {
    ASSERT_TRUE(
        federation_.run_until([this] { return federation_.step(kServer) >= 9; }, 300 * kSecond));
    for (SiteId site = 1; site <= 3; ++site) federation_.end_ranks(site);
    federation_.run_for(30 * kSecond);
    came_.clear();
  }

  static constexpr SiteId kServer = 1, kAsker = 4, kOther = 5;
  static constexpr std::uint64_t kMissed = 2;  // from this step on all is kept for them

  static ScriptedFederation::Options options() {
    auto options = options_of({kSecond, kSecond, kSecond, kSecond, kSecond});
    options.elements = 1'000'000;
    options.gateway.sync.chunk_elements = 1 << 17;
    options.gateway.sync.outer_steps = 100'000;
    options.network.jitter = 0;
    options.network.delay = kMillisecond;
    options.puppets = options.without_vote = {kAsker, kOther};
    return options;
  }
  static Status status() {
    Status mine;
    mine.step = kMissed;
    mine.vote_file = 77;
    return mine;
  }
  void note(SiteId site, const std::optional<Signed>& message) {
    const auto open = message ? decode_open(message->body) : std::nullopt;
    if (open && open->id.step < 9) came_.insert({site, open->id.step, message->signer});
  }
  Link& link(SiteId site) { return federation_.puppet(site).link(kServer); }
  bool comes(SiteId site, std::uint64_t step, SiteId of) {
    return federation_.run_until([&] { return came_.contains({site, step, of}); }, kSecond);
  }

  ScriptedFederation federation_;
  std::set<std::tuple<SiteId, std::uint64_t, SiteId>> came_;
};

TEST_F(ReadFromDiskTest, ComesToBoth) {
  for (const SiteId site : {kAsker, kOther}) link(site).send(encode(Fetch{kMissed, 2}));
  EXPECT_TRUE(comes(kAsker, kMissed, 2));
  EXPECT_TRUE(comes(kOther, kMissed, 2));
}

// Who asks again in a new session, while it is read for the one before, gets it.
TEST_F(ReadFromDiskTest, ComesInTheNextSession) {
  const auto ask = [this] {
    for (std::uint64_t step = kMissed; step < kMissed + 5; ++step)
      for (SiteId site = 1; site <= 3; ++site) link(kAsker).send(encode(Fetch{step, site}));
  };
  ask();
  federation_.run_for(2 * kMillisecond);
  const auto session = link(kAsker).session();
  link(kAsker).end("it flaps");
  ASSERT_TRUE(federation_.run_until(
      [&] { return link(kAsker).up() && link(kAsker).session() != session; }, kSecond));
  EXPECT_TRUE(came_.empty()) << "they are yet to be read";
  ask();
  for (std::uint64_t step = kMissed; step < kMissed + 5; ++step)
    for (SiteId site = 1; site <= 3; ++site)
      EXPECT_TRUE(comes(kAsker, step, site)) << step << " of " << site;
}

// The contributions of many sites to a missed step come one after another from whoever is there
// first.
TEST(ManySitesTest, AMissedStepIsReplayedWithoutWaiting) {
  constexpr SiteId kSites = 24;
  auto options = options_of(std::vector<Nanoseconds>(kSites, 6 * kSecond));
  for (SiteId site = 4; site <= kSites; ++site) options.without_vote.insert(site);
  options.gateway.sync.outer_steps = 100'000;
  ScriptedFederation federation(std::move(options));
  const auto step = [&](SiteId site) { return federation.step(site); };
  ASSERT_TRUE(
      federation.run_until([&] { return step(1) >= 4 && step(kSites) >= 4; }, 300 * kSecond));
  federation.cut_off(kSites, true);
  const auto missed = step(1) + 1;
  ASSERT_TRUE(federation.run_until([&] { return step(1) >= missed; }, 3000 * kSecond));
  for (SiteId site = 1; site <= kSites; ++site) federation.end_ranks(site);
  federation.run_for(kSecond);
  const auto last = step(1);
  ASSERT_LT(step(kSites), last);
  federation.cut_off(kSites, false);
  ASSERT_TRUE(federation.run_until([&] { return federation.gateway(1).session_with(kSites) != 0; },
                                   60 * kSecond));
  EXPECT_TRUE(federation.run_until([&] { return step(kSites) >= last; }, 3 * kSecond));
  EXPECT_EQ(federation.gateway(kSites).counters().state_fetches, 0U);
}

// The third site begins when the run is under way, and fetches its state from one of two servers.
class SlowServerTest : public testing::Test {
 protected:
  void run_until_step(std::uint64_t step, std::int64_t elements, std::uint32_t chunk_elements) {
    auto options = options_of({10 * kSecond, 10 * kSecond, 10 * kSecond});
    options.elements = elements;
    options.gateway.sync.chunk_elements = chunk_elements;
    options.gateway.sync.outer_steps = 100'000;
    options.late = {3};
    options.without_vote = {3};
    federation_.emplace(std::move(options));
    ASSERT_TRUE(
        federation_->run_until([&] { return federation_->step(1) >= step; }, 600 * kSecond));
  }
  bool fetched_within(Nanoseconds limit) {
    return federation_->run_until(
        [&] {
          return federation_->gateway(3).counters().state_fetches > 0 && federation_->step(3) > 0;
        },
        limit);
  }

  std::optional<ScriptedFederation> federation_;
};

// The first one's line is thin, the other one's wide.
TEST_F(SlowServerTest, IsLeftForAFasterOne) {
  run_until_step(8, 1'000'000, 1 << 14);
  federation_->gateway(1).set_rate_limit(100'000);
  federation_->start(3);
  EXPECT_TRUE(fetched_within(20 * kSecond));
  EXPECT_GT(federation_->events(3, "state_fetch_goes_on"), 0U);
}

// Also when it was the fastest before, and its line is thin by now.
TEST_F(SlowServerTest, IsLeftForAFasterOneAtAnyTime) {
  run_until_step(4, 8'000'000, 1 << 18);
  for (const SiteId site : {1, 2}) federation_->end_ranks(site);
  federation_->run_for(30 * kSecond);
  federation_->gateway(1).set_rate_limit(750'000);
  federation_->gateway(2).set_rate_limit(300'000);
  federation_->start(3);
  ASSERT_TRUE(federation_->run_until(
      [&] { return federation_->events(3, "state_fetch_goes_on") == 2; }, 600 * kSecond))
      << "to the second, and back to the first";
  federation_->gateway(1).set_rate_limit(50'000);
  federation_->gateway(2).set_rate_limit(0);
  EXPECT_TRUE(fetched_within(60 * kSecond));
}

// The only source sends two contributions one after the other over a thin line: it is not silent
// for the second while the first comes, and no state is fetched.
TEST(ThinSourceTest, IsNotTakenForASilentOne) {
  auto options = options_of({kSecond, kSecond, kSecond});
  options.elements = 1'000'000;
  options.gateway.sync.chunk_elements = 1 << 13;
  options.gateway.sync.outer_steps = 100'000;
  options.without_vote = {3};
  ScriptedFederation federation(std::move(options));
  ASSERT_TRUE(federation.run_until(
      [&] { return federation.step(1) >= 4 && federation.step(3) >= 4; }, 600 * kSecond));
  federation.cut_off(3, true);
  ASSERT_TRUE(
      federation.run_until([&] { return federation.step(1) > federation.step(3); }, 600 * kSecond));
  for (SiteId site = 1; site <= 3; ++site) federation.end_ranks(site);
  federation.run_for(30 * kSecond);
  federation.set_access(3, 20'000);
  federation.cut(1, 3, false);
  EXPECT_TRUE(federation.run_until([&] { return federation.step(3) >= federation.step(1); },
                                   300 * kSecond));
  EXPECT_EQ(federation.events(3, "state_fetch_began"), 0U);
}

}  // namespace
}  // namespace isthmus::inter
