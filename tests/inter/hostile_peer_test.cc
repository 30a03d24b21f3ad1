// What a listed peer can cost that does not keep to the protocol.
#include "tests/inter/hostile_peer.h"

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
