// What a listed peer costs the others that asks for much, again and again.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <optional>
#include <set>

#include "inter/contribution.h"
#include "tests/inter/hostile_peer.h"

namespace isthmus::inter {
namespace {

// Records are the largest answer to the smallest question. A rate limit counts them.
TEST_F(HostilePeerTest, RecordsThatItAsksForHoldNobodyUp) {
  ScriptedFederation federation(limited_with_puppet());
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

// Where there is no rate limit either. What it lacks comes as fast as it takes it.
TEST_F(HostilePeerTest, TheSameRecordsComeSeldomAgainAndTheNextOnesAtOnce) {
  auto options = endless_with_puppet();
  options.compute.assign(4, 100 * kMillisecond);
  ScriptedFederation federation(std::move(options));
  auto& puppet = federation.puppet(1);
  std::uint64_t answers = 0, next = 0;
  bool goes_on = false;
  puppet.heard = [&](Link& from, MessageType type, ByteReader& in) {
    if (type == MessageType::records) {
      ++answers;
      next = decode_records(in)->certificates.back().record.step + 1;
      if (goes_on) from.send(encode(RecordRequest{next}));
    }
    Puppet::follow(from, type, in);
  };
  ASSERT_TRUE(federation.run_until([&] { return federation.step(2) >= 250; }, 6000 * kSecond));
  const auto ask_often = [&](Nanoseconds time) {
    answers = 0;
    const auto end = federation.now() + time;
    while (federation.now() < end) {
      puppet.link(2).send(encode(RecordRequest{1}));
      federation.run_for(5 * kMillisecond);
    }
    return answers;
  };
  const auto often = ask_often(20 * kSecond);
  EXPECT_GE(often, 10U);
  EXPECT_LE(often, 26U) << "once a second, and four at once";
  federation.run_for(10 * kSecond);
  answers = 0;
  goes_on = true;
  puppet.link(2).send(encode(RecordRequest{1}));
  federation.run_for(kSecond);
  EXPECT_GE(answers, 4U);
  EXPECT_GE(next, 250U);
  goes_on = false;
  federation.run_for(10 * kSecond);
  federation.set_access(1, 8000);
  EXPECT_LE(ask_often(20 * kSecond), 4U) << "each takes six seconds, and none is queued behind it";
}

// A line of 64 kbit/s: what else is said to it would wait for as long as it takes to be given up.
TEST_F(HostilePeerTest, RecordsAreAsManyAtOnceAsItsLineTakesSoon) {
  auto options = endless_with_puppet();
  options.compute.assign(4, 100 * kMillisecond);
  ScriptedFederation federation(std::move(options));
  auto& puppet = federation.puppet(1);
  std::uint64_t next = 0;
  std::size_t largest = 0;
  puppet.heard = [&](Link& from, MessageType type, ByteReader& in) {
    if (type == MessageType::records) {
      largest = std::max(largest, in.rest().size());
      next = decode_records(in)->certificates.back().record.step + 1;
      from.send(encode(RecordRequest{next}));
    }
    Puppet::follow(from, type, in);
  };
  ASSERT_TRUE(federation.run_until([&] { return federation.step(2) >= 250; }, 6000 * kSecond));
  federation.set_access(1, 8000);
  federation.run_for(10 * kSecond);
  const auto session = puppet.link(2).session();
  ASSERT_NE(session, 0U);
  largest = 0;
  puppet.link(2).send(encode(RecordRequest{1}));
  EXPECT_TRUE(federation.run_until([&] { return next >= 250; }, 600 * kSecond));
  EXPECT_EQ(puppet.link(2).session(), session);
  EXPECT_LE(largest, 16U << 10) << "two seconds of its line";
}

// Of one that is no member: each might be a reason to open a ballot.
TEST_F(HostilePeerTest, OfAFloodOfStatusesEachIsNoReasonToLookAtTheBallot) {
  ScriptedFederation federation(endless_with_puppet());
  auto& puppet = federation.puppet(1);
  puppet.heard = [](Link& from, MessageType type, ByteReader& in) {
    Puppet::follow(from, type, in);
  };
  ASSERT_TRUE(federation.run_until([&] { return federation.step(2) >= 4; }, 120 * kSecond));
  const auto considered = [&] { return federation.gateway(2).counters().ballots_considered; };
  const auto before = considered();
  for (int i = 0; i < 10'000; ++i) {
    Status status;
    status.step = federation.step(2) + 1;
    status.first_record = 1;
    puppet.link(2).send(encode(status));
    federation.run_for(kMillisecond);
  }
  EXPECT_GE(considered() - before, 40U) << "on each tick";
  EXPECT_LE(considered() - before, 600U) << "in ten seconds";
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

// Contributions to old steps are read and hashed again each time that they are asked for: after the
// work of the step at hand.
TEST_F(HostilePeerTest, OldContributionsThatAreAskedForHoldNobodyUp) {
  auto options = endless_with_puppet();
  options.elements = 250'000;
  options.gateway.sync.chunk_elements = 1 << 16;
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
    for (int i = 0; i < 200; ++i) {
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

// A short question whose answer is longer: control goes at once, and bulk pays for it.
TEST_F(HostilePeerTest, AnswersAboutAStateDoNotTakeTheRateLimit) {
  ScriptedFederation federation(limited_with_puppet());
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

// Each is well signed and another one, of some kinds. Of each kind no more are looked at than a
// step may need, the operator hears of it now and then, and steps go on.
TEST_F(HostilePeerTest, OfAFloodOfWhatItSignsLittleIsLookedAt) {
  ScriptedFederation federation(endless_with_puppet());
  auto& puppet = federation.puppet(1);
  puppet.heard = [](Link& from, MessageType type, ByteReader& in) {
    Puppet::follow(from, type, in);
  };
  auto& second = federation.gateway(2);
  ASSERT_TRUE(federation.run_until([&] { return federation.step(2) >= 8; }, 120 * kSecond));
  std::uint64_t number = 0, sent = 0;
  const auto steps_of = [&](int each_100_ms) {
    const auto before = federation.step(2);
    for (int i = 0; i < 300; ++i) {
      const auto id = federation.step_at_hand(2);
      Saved saved{.id = id, .state_root = {}, .strong_root = {}, .spot_root = {}};
      for (int k = 0; k < each_100_ms; ++k) {
        saved.revision = static_cast<std::uint32_t>(++number);
        puppet.link(2).send(sign(puppet.signer, 1, id, Prepare{number}).encode());
        puppet.link(2).send(sign(puppet.signer, 1, MessageType::saved, encode(saved)).encode());
        sent += 2;
      }
      federation.run_for(100 * kMillisecond);
    }
    return federation.step(2) - before;
  };
  const auto quiet = steps_of(0);
  const auto looked_at = [&] { return second.counters().signatures_checked; };
  const auto before = looked_at();
  const auto steps = steps_of(50);
  EXPECT_EQ(sent, 30'000U);
  EXPECT_GE(steps, quiet * 3 / 4);
  EXPECT_LE(looked_at() - before, (steps + 1) * 200 + 30 * 20U);
  EXPECT_EQ(federation.events(2, "message_flood"), 1U);
  for (const SiteId site : {3, 4}) EXPECT_EQ(federation.events(site, "message_flood"), 0U);
  steps_of(50);
  EXPECT_LE(federation.events(2, "message_flood"), 2U) << "once a minute";
}

// Announcements are files on the disk of who takes them.
TEST_F(HostilePeerTest, OfAFloodOfAttemptsLittleIsTaken) {
  auto options = endless_with_puppet();
  ScriptedFederation federation(options);
  const auto plan = std::make_shared<ChunkPlan>(
      federation.layout(), 0, options.gateway.sync.chunk_elements, options.gateway.sync.codec);
  auto& puppet = federation.puppet(1);
  puppet.heard = [](Link& from, MessageType type, ByteReader& in) {
    Puppet::follow(from, type, in, [](const Status&, Status& mine) {
      mine.vote_file = 77;
      mine.contributes = mine.wants_in = true;
    });
  };
  auto& second = federation.gateway(2);
  ASSERT_TRUE(federation.run_until([&] { return second.state() && second.view().is_member(1); },
                                   120 * kSecond));
  const auto before = second.counters();
  std::uint64_t attempt = 0;
  for (int i = 0; i < 20; ++i) {
    const auto& parent = second.chain().empty() ? *second.genesis() : second.chain().back();
    const auto open = [&] {
      return plan->announce(federation.step_at_hand(2), 100, parent.record.hash(), ++attempt);
    };
    for (int k = 0; k < 200; ++k)
      puppet.link(2).send(sign(puppet.signer, 1, MessageType::open, encode(open())).encode());
    federation.run_for(20 * kMillisecond);
  }
  federation.run_for(kSecond);
  EXPECT_LE(second.counters().signatures_checked - before.signatures_checked, 500U);
  EXPECT_GE(second.counters().signed_dropped, 100U);
  const auto step = federation.step(2);
  EXPECT_TRUE(federation.run_until([&] { return federation.step(2) >= step + 3; }, 300 * kSecond));
}

}  // namespace
}  // namespace isthmus::inter
