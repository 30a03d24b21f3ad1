// A site that was away while the steps of the others take much less time than its return: a state
// to fetch, and the steps that followed it to replay.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <set>
#include <tuple>

#include "tests/inter/scripted_federation.h"

namespace isthmus::inter {
namespace {

constexpr SiteId kReturning = 3;

class ReturnTest : public testing::Test {
 protected:
  explicit ReturnTest(ScriptedFederation::Options options) : federation_(std::move(options)) {}

  std::uint64_t step(SiteId site) { return federation_.step(site); }
  bool reaches(SiteId site, std::uint64_t wanted) {
    return federation_.run_until([&] { return step(site) >= wanted; }, 600 * kSecond);
  }
  bool member() { return federation_.gateway(1).view().is_member(kReturning); }
  bool sees() { return federation_.gateway(1).session_with(kReturning) != 0; }
  std::size_t files(SiteId site) {
    return federation_.disk(site)
        .list("outer/contributions")
        .value_or(std::vector<std::string>())
        .size();
  }
  // Until it is dropped, and the others have made many steps more.
  void go_away() {
    ASSERT_TRUE(reaches(1, 4));
    federation_.cut_off(kReturning, true);
    ASSERT_TRUE(federation_.run_until([&] { return !member(); }, 60 * kSecond));
    ASSERT_TRUE(reaches(1, step(1) + 20));
  }
  // And is seen again.
  void be_away() {
    go_away();
    federation_.cut_off(kReturning, false);
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
  EXPECT_EQ(federation_.gateway(kReturning).counters().state_fetches, 1U);
  // Nothing more is kept for it.
  ASSERT_TRUE(reaches(1, step(1) + 5));
  for (SiteId site = 1; site <= 3; ++site) EXPECT_LE(files(site), 15U) << "site " << site;
}

// Cut off again while it replays, so that the others keep all that it lacks from there on: to
// replay that takes many times the bytes of a state.
class NearerStateTest : public ShortStepsReturnTest {
 protected:
  std::uint64_t fetches() { return federation_.gateway(kReturning).counters().state_fetches; }
  void be_away_again() {
    be_away();
    ASSERT_TRUE(federation_.run_until([&] { return fetches() == 1; }, 60 * kSecond));
    federation_.run_for(300 * kMillisecond);
    ASSERT_LT(step(kReturning) + 1, step(1)) << "it replays";
    federation_.cut_off(kReturning, true);
    ASSERT_TRUE(reaches(1, step(1) + 40));
    const auto kept = std::max(files(1), files(2));  // at whom it asked for the state
    EXPECT_GE(kept, 2 * 30U) << "else it would have to fetch one";
  }
  void come() {
    federation_.cut_off(kReturning, false);
    ASSERT_TRUE(federation_.run_until([&] { return sees(); }, 60 * kSecond));
  }
};

TEST_F(NearerStateTest, IsFetchedThoughAllIsKept) {
  ASSERT_NO_FATAL_FAILURE(be_away_again());
  ASSERT_NO_FATAL_FAILURE(come());
  const auto steps = comes_back(60 * kSecond);
  ASSERT_TRUE(steps);
  EXPECT_LE(*steps, 12U) << "44 where it replays all of them";
  EXPECT_EQ(fetches(), 2U);
}

// The others' disks read no states: they offer none.
TEST_F(NearerStateTest, AllIsReplayedWhereNobodyGivesOne) {
  ASSERT_NO_FATAL_FAILURE(be_away_again());
  for (SiteId site = 1; site <= 2; ++site)
    federation_.disk(site).set_faults({.unreadable = "outer/state."});
  const auto wanted = [&] { return federation_.events(kReturning, "state_is_nearer"); };
  const auto before = wanted();
  ASSERT_NO_FATAL_FAILURE(come());
  EXPECT_TRUE(comes_back(120 * kSecond));
  EXPECT_EQ(wanted(), before + 1) << "and not again";
  EXPECT_EQ(federation_.events(kReturning, "state_not_fetched"), 1U);
  EXPECT_EQ(fetches(), 1U);
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
  const auto behind = step(1) - step(kReturning);
  const auto steps = comes_back(120 * kSecond);
  ASSERT_TRUE(steps);
  EXPECT_LE(*steps, behind + behind / 4);
  EXPECT_LE(federation_.gateway(kReturning).counters().state_fetches, 1U);
}

// What is shown of it meanwhile is where it stands, not what its ranks did before.
TEST_P(FarAwayReturnTest, SaysThatItCatchesUp) {
  EXPECT_EQ(federation_.gateway(kReturning).status().catching_up_to, 0U);
  go_away();
  federation_.cut_off(kReturning, false);
  std::set<std::uint64_t> replayed;
  ASSERT_TRUE(federation_.run_until(
      [&] {
        const auto status = federation_.gateway(kReturning).status();
        if (status.phase == "catching up" && status.catching_up_to > 0) {
          replayed.insert(status.outer_step);
          EXPECT_GT(status.catching_up_to, status.outer_step);
          for (const auto& rank : status.ranks) EXPECT_EQ(rank.loss, 0);
        }
        return member() && step(kReturning) + 1 >= step(1);
      },
      120 * kSecond));
  // One step alone where a state is fetched that is the one before the others' newest.
  const auto fetched = federation_.gateway(kReturning).counters().state_fetches > 0;
  EXPECT_GE(replayed.size(), fetched ? 1U : 2U);
  const auto status = federation_.gateway(kReturning).status();
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
  federation_.set_access(kReturning, 40'000);
  be_away();
  const auto steps = comes_back(300 * kSecond);
  ASSERT_TRUE(steps);
  EXPECT_LE(*steps, 60U);
  EXPECT_EQ(federation_.gateway(kReturning).counters().state_fetches, 1U);
}

// A leaf of the state takes more than three minutes, and as many as eight come at once, of which
// none is whole for half an hour; from one server, or from either of two, which are no faster.
struct SlowLine {
  SiteId servers;
  int leaves;
  sim::SimulatedTcp tcp;
  std::uint64_t seed;
};
std::ostream& operator<<(std::ostream& out, const SlowLine& line) {
  return out << line.servers << '_' << line.leaves
             << (line.tcp == sim::SimulatedTcp::bbr ? "_bbr_" : "_reno_") << line.seed;
}

class SlowLineReturnTest : public testing::TestWithParam<SlowLine> {};

TEST_P(SlowLineReturnTest, AStateIsFetchedInItsTime) {
  const SiteId comes = GetParam().servers + 1;
  auto options = options_of(std::vector<Nanoseconds>(comes, kSecond));
  options.network_seed = GetParam().seed;
  options.network.tcp = GetParam().tcp;
  options.late = {comes};
  options.without_vote = {comes};
  options.elements = std::int64_t{250'000} * GetParam().leaves;
  options.gateway.sync.min_sites = 1;
  options.gateway.sync.chunk_elements = 1 << 16;
  options.gateway.sync.outer_steps = 100'000;
  ScriptedFederation federation(std::move(options));
  ASSERT_TRUE(federation.run_until([&] { return federation.step(1) >= 3; }, 600 * kSecond));
  for (SiteId site = 1; site < comes; ++site) federation.end_ranks(site);
  federation.run_for(60 * kSecond);
  federation.set_access(comes, 5000);
  federation.start(comes);
  const auto came = federation.now();
  ASSERT_TRUE(federation.run_until([&] { return federation.step(comes) >= 2; },
                                   450 * GetParam().leaves * kSecond));
  EXPECT_GE(federation.now() - came, 200 * GetParam().leaves * kSecond);
  EXPECT_EQ(federation.gateway(comes).counters().state_fetches, 1U);
  EXPECT_EQ(federation.events(comes, "state_fetch_stopped"), 0U);
}

INSTANTIATE_TEST_SUITE_P(From, SlowLineReturnTest,
                         testing::Values(SlowLine{1, 4, sim::SimulatedTcp::reno, 1},
                                         SlowLine{1, 4, sim::SimulatedTcp::reno, 2},
                                         SlowLine{1, 4, sim::SimulatedTcp::bbr, 1},
                                         SlowLine{1, 4, sim::SimulatedTcp::bbr, 2},
                                         SlowLine{2, 4, sim::SimulatedTcp::reno, 1},
                                         SlowLine{2, 4, sim::SimulatedTcp::reno, 2},
                                         SlowLine{2, 4, sim::SimulatedTcp::bbr, 1},
                                         SlowLine{2, 4, sim::SimulatedTcp::bbr, 2},
                                         SlowLine{1, 10, sim::SimulatedTcp::reno, 2},
                                         SlowLine{1, 10, sim::SimulatedTcp::bbr, 2}),
                         testing::PrintToStringParamName());

// Who asks for states and goes on from none costs a bounded room on the disk, and only while it is
// there; and holds nobody up.
TEST(StateAskerTest, CostsBoundedRoom) {
  auto options = options_of({5 * kMillisecond, 5 * kMillisecond, kSecond});
  options.puppets = {kReturning};
  options.without_vote = {kReturning};
  options.gateway.sync.outer_steps = 100'000;
  ScriptedFederation federation(std::move(options));
  auto& puppet = federation.puppet(kReturning);
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
  federation.cut_off(kReturning, true);
  federation.run_for(90 * kSecond);
  EXPECT_LT(files(), 20U);
}

// Who is sent a state over a thin line, which is written over before all of it has come, is sent it
// to the end, however often others ask: one that wants nothing, or another one that is sent a state
// over a thin line.
class StateOnItsWayTest : public testing::TestWithParam<bool> {};

TEST_P(StateOnItsWayTest, IsNotDroppedForWhoAsks) {
  const bool other_returns = GetParam();
  constexpr SiteId kServer = 1, kSlow = 2, kOther = 3, kStranger = 4;
  auto options = options_of(std::vector<Nanoseconds>(4, 4 * kSecond));
  options.late = {kSlow, kOther};
  options.puppets = {kStranger};
  options.without_vote = {kSlow, kOther, kStranger};
  options.elements = 5'000'000;
  options.gateway.sync.min_sites = 1;
  options.gateway.sync.chunk_elements = 1 << 16;
  options.gateway.sync.outer_steps = 100'000;
  ScriptedFederation federation(std::move(options));
  federation.puppet(kStranger).heard = [](Link& from, MessageType type, ByteReader& in) {
    Puppet::follow(from, type, in);
    if (type == MessageType::status) from.send(encode(StateRequest{0, false}));
  };
  ASSERT_TRUE(federation.run_until([&] { return federation.step(kServer) >= 3; }, 600 * kSecond));
  for (const SiteId site : {kSlow, kOther}) federation.set_access(site, 125'000);
  const auto fetches = [&](SiteId site) {
    return federation.gateway(site).counters().state_fetches;
  };
  federation.start(kSlow);
  ASSERT_TRUE(federation.run_until(
      [&] { return federation.events(kSlow, "state_fetch_began") == 1; }, 60 * kSecond));
  const auto before = federation.step(kServer);
  if (other_returns) {
    federation.run_for(40 * kSecond);
    federation.start(kOther);
  }
  ASSERT_TRUE(federation.run_until(
      [&] { return fetches(kSlow) > 0 && (!other_returns || fetches(kOther) > 0); },
      900 * kSecond));
  EXPECT_EQ(federation.events(kSlow, "state_fetch_stopped"), 0U);
  if (other_returns) {
    EXPECT_EQ(federation.events(kOther, "state_fetch_stopped"), 0U);
  }
  EXPECT_GE(federation.step(kServer), before + 2) << "the disk has what was fetched no more";
}

INSTANTIATE_TEST_SUITE_P(Other, StateOnItsWayTest, testing::Bool(), [](const auto& test) {
  return test.param ? "FetchesOneToo" : "WantsNothing";
});

// Whoever says to have what a site missed, and never sends it, keeps it out no longer than its
// patience.
class SilentSource : public testing::Test {
 protected:
  SilentSource() : federation_(options()) {
    federation_.puppet(4).heard = [](Link& from, MessageType type, ByteReader& in) {
      Puppet::follow(from, type, in, [](const Status& theirs, Status& mine) {
        mine.step = theirs.step + 1000;
        mine.vote_file = 77;
      });
    };
  }
  static ScriptedFederation::Options options() {
    auto options = options_of({kSecond, kSecond, kSecond, kSecond});
    options.puppets = {4};
    options.without_vote = {3, 4};
    options.gateway.sync.outer_steps = 100'000;
    return options;
  }
  std::uint64_t step(SiteId site) { return federation_.step(site); }
  void be_away() {
    ASSERT_TRUE(federation_.run_until([&] { return step(1) >= 6 && step(3) >= 5; }, 300 * kSecond));
    federation_.cut_off(3, true);
    ASSERT_TRUE(federation_.run_until([&] { return step(1) >= 200; }, 3000 * kSecond));
    federation_.cut_off(3, false);
  }

  ScriptedFederation federation_;
};

// Who alone has the rest is asked next, and in the steps after that first.
TEST_F(SilentSource, CostsOnePatienceAndNotOneInEachStep) {
  be_away();
  federation_.cut(2, 3, true);  // comes later, and has kept nothing of its own for it
  federation_.run_for(3 * kSecond);
  federation_.cut(2, 3, false);
  EXPECT_TRUE(federation_.run_until([&] { return federation_.gateway(1).view().is_member(3); },
                                    60 * kSecond));
}

// Also where its link goes and comes: the site fetches a state.
class SilentSourceTest : public SilentSource, public testing::WithParamInterface<bool> {};

TEST_P(SilentSourceTest, KeepsNobodyOut) {
  be_away();
  for (int i = 0; i < 100; ++i) {
    federation_.run_for(3 * kSecond);  // less than the patience
    if (!GetParam()) continue;
    federation_.puppet(4).link(3).end("it flaps");
  }
  EXPECT_GE(step(3) + 10, step(1));
  EXPECT_GE(federation_.gateway(3).counters().state_fetches, 1U);
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
  void run_until_step(std::uint64_t step, std::int64_t elements, std::uint32_t chunk_elements,
                      sim::SimulatedTcp tcp = sim::SimulatedTcp::unseen) {
    auto options = options_of({10 * kSecond, 10 * kSecond, 10 * kSecond});
    options.network.tcp = tcp;
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

// So slow that its line may be what is slow, and would not be left for an unknown one within half
// an hour; but the one before has shown that it is faster. Its first leaf takes six minutes.
TEST_F(SlowServerTest, IsLeftSoonForOneThatIsKnownToBeFaster) {
  run_until_step(4, 4'000'000, 1 << 18, sim::SimulatedTcp::bbr);
  for (const SiteId site : {1, 2}) federation_->end_ranks(site);
  federation_->run_for(30 * kSecond);
  federation_->gateway(1).set_rate_limit(1'000'000);
  federation_->set_access(2, 12'000);
  federation_->start(3);
  EXPECT_TRUE(fetched_within(900 * kSecond));
  EXPECT_GE(federation_->events(3, "state_fetch_goes_on"), 2U) << "to the slow one and back";
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
