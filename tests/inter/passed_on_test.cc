// A contribution of which others tell as well: a ballot that names it, and sites that pass it on.
#include <map>

#include "tests/inter/exchange_fixture.h"

namespace isthmus::inter {
namespace {

// With two votes more: of the origin, and of a third site.
class NamedByABallotTest : public ExchangeTest {
 protected:
  explicit NamedByABallotTest(const ScriptedFederation::Options& options = with_votes())
      : ExchangeTest(options) {}
  static ScriptedFederation::Options with_votes() {
    auto options = ExchangeTest::options();
    options.compute.push_back(100'000 * kSecond);
    options.without_vote = {};
    return options;
  }
  // A promise of the origin that it holds this.
  void name(const Contribution& made, std::uint64_t ballot) {
    const Part part{.site = kOrigin,
                    .root = made.root(),
                    .tokens = made.open().tokens,
                    .base = made.open().base};
    const Promise promise{ballot, std::nullopt, {part}};
    link().send(sign(origin().signer, kOrigin, made.open().id, promise).encode());
  }
};

// Its disk forgot those bytes since, before anybody had them: what it makes instead is held,
// whatever was named and is named again by those that still know of it.
TEST_F(NamedByABallotTest, WhatNobodyHasDoesNotStandInTheWay) {
  const auto lost = made_from(1, 7), anew = made_from(2, 8);
  name(*lost, 3);
  federation_.run_for(kSecond);
  ASSERT_TRUE(send(anew));
  close(*anew);
  ASSERT_TRUE(run_until([this] { return held(); }));
  name(*lost, 6);
  federation_.run_for(kSecond);
  ASSERT_TRUE(held());
  EXPECT_EQ(receiver().held().at(kOrigin).root, anew->root());
  EXPECT_EQ(federation_.events(kReceiver, "two_contributions"), 0U);
}

// Beside a third site that has no gateway either, and passes on what it once heard of the origin.
class PassedOnTest : public NamedByABallotTest {
 protected:
  explicit PassedOnTest(ScriptedFederation::Options options = with_a_relay())
      : NamedByABallotTest(std::move(options)) {}
  static ScriptedFederation::Options with_a_relay() {
    auto options = with_votes();
    options.elements = 70'000;
    options.puppets.insert(kRelay);
    return options;
  }
  // Chunks as far as they are coded.
  struct UpTo final : ChunkSource {
    explicit UpTo(std::shared_ptr<Contribution> made) : all(std::move(made)) {}
    ChunkBytes chunk(std::uint32_t index) override {
      return index < coded ? all->chunk(index) : ChunkBytes();
    }
    std::shared_ptr<Contribution> all;
    std::uint32_t coded = 1;
  };
  static constexpr SiteId kRelay = 3;
};

// What the origin announced before it was started again, and never closed, does not take the place
// of what it offers now, however slowly: the chunks of that would be acknowledged and not there.
TEST_F(PassedOnTest, AnEarlierAttemptDoesNotDisplaceWhatTheOriginOffers) {
  const auto earlier = made_from(1, 7), now = made_from(2, 8);
  ASSERT_GT(plan_->chunks(), 1U);
  name(*now, 3);
  federation_.run_for(kSecond);
  const auto source = std::make_shared<UpTo>(now);
  link().send(now->announcement().encode());
  link().offer(now->transfer(), 1, plan_->chunks(), source, false);
  ASSERT_TRUE(run_until([&] { return !link().acknowledged_chunks().empty(); }));
  federation_.run_for(60 * kSecond);  // longer than anybody's patience
  federation_.puppet(kRelay).link(kReceiver).send(earlier->announcement().encode());
  federation_.run_for(kSecond);
  source->coded = plan_->chunks();
  link().poke();
  close(*now);
  EXPECT_TRUE(run_until([this] { return held(); }));
}

// Nor does it when the origin's own words come late: others passed the newer one on, of which its
// chunks are here already.
TEST_F(PassedOnTest, AnEarlierAttemptAnnouncedLateDisplacesNoChunks) {
  const auto earlier = made_from(1, 7), now = made_from(2, 8);
  const auto source = std::make_shared<UpTo>(now);
  federation_.puppet(kRelay).link(kReceiver).send(now->announcement().encode());
  federation_.run_for(kSecond);
  link().offer(now->transfer(), 1, plan_->chunks(), source, false);
  ASSERT_TRUE(run_until([&] { return !link().acknowledged_chunks().empty(); }));
  for (const auto& attempt : {earlier, now}) {
    link().send(attempt->announcement().encode());
    federation_.run_for(kSecond);
  }
  EXPECT_EQ(link().acknowledged_chunks().size(), 1U) << "the receiver says that it is gone";
  source->coded = plan_->chunks();
  link().poke();
  close(*now);
  EXPECT_TRUE(run_until([this] { return held(); }));
}

// Nor does it when whoever passes the newer one on, slowly, then passes on what it heard of the
// earlier one.
TEST_F(PassedOnTest, AnEarlierAttemptPassedOnLaterDisplacesNoChunks) {
  const auto earlier = made_from(1, 7), now = made_from(2, 8);
  federation_.cut(kReceiver, kOrigin, true);
  auto& relay = federation_.puppet(kRelay).link(kReceiver);
  const auto source = std::make_shared<UpTo>(now);
  passes_on_ = now;
  slowly_ = source;
  ASSERT_TRUE(run_until([&] { return !relay.acknowledged_chunks().empty(); }));
  federation_.run_for(60 * kSecond);  // longer than anybody's patience
  relay.send(earlier->announcement().encode());
  EXPECT_FALSE(run_until([&] { return relay.acknowledged_chunks().empty(); }))
      << "the receiver says that it is gone";
  source->coded = plan_->chunks();
  relay.poke();
  EXPECT_TRUE(run_until([this] { return held(); }));
}

// The origin gives the third site another contribution than the receiver, which hears of it when
// that promises what it holds: an alarm, whichever comes first. Nothing else changes.
TEST_F(PassedOnTest, AnotherContributionThatAVoterPromisesToHoldIsTold) {
  const auto mine = made_from(1, 7), others = made_from(2, 8);
  const auto promises = [&](SiteId by, const Contribution& made, std::uint64_t ballot) {
    auto& puppet = federation_.puppet(by);
    const Part part{.site = kOrigin,
                    .root = made.root(),
                    .tokens = made.open().tokens,
                    .base = made.open().base};
    puppet.link(kReceiver).send(
        sign(puppet.signer, by, made.open().id, Promise{ballot, std::nullopt, {part}}).encode());
    federation_.run_for(2 * kSecond);
  };
  const auto told = [this] { return federation_.events(kReceiver, "two_contributions"); };
  promises(kRelay, *others, 2);
  EXPECT_EQ(told(), 0U);
  ASSERT_TRUE(send(mine));
  close(*mine);
  ASSERT_TRUE(run_until([this] { return held(); }));
  EXPECT_EQ(told(), 1U);
  promises(kRelay, *mine, 5);
  EXPECT_EQ(told(), 1U);
  promises(kRelay, *others, 8);
  EXPECT_EQ(told(), 2U);
  EXPECT_EQ(receiver().held().at(kOrigin).root, mine->root());
}

// The origin closed it with a state that turned out wrong, and then with the right one. That it is
// told the first close again, by whoever kept it, undoes nothing, here or at who fetches it.
TEST_F(PassedOnTest, AnOlderCloseThatComesAgainUndoesNothing) {
  const auto made = made_from(1);
  auto close_before = *decode_close(close_of(*made).body);
  close_before.state_root.bytes[0] ^= std::byte{1};
  const auto older =
      sign(origin().signer, kOrigin, MessageType::close, encode(close_before)).encode();
  auto& relay = federation_.puppet(kRelay);
  std::optional<Close> passed_on;
  relay.heard = [&, heard = relay.heard](Link& from, MessageType type, ByteReader& in) {
    auto copy = in;
    heard(from, type, in);
    const auto message =
        type == MessageType::close ? decode_signed(type, copy) : std::optional<Signed>();
    if (message) passed_on = decode_close(message->body);
  };
  link().send(made->announcement().encode());
  link().send(older);
  close(*made);
  federation_.run_for(kSecond);
  relay.link(kReceiver).send(older);
  federation_.run_for(kSecond);
  ASSERT_TRUE(send(made));
  ASSERT_TRUE(run_until([this] { return held(); }));
  relay.link(kReceiver).send(older);
  federation_.run_for(kSecond);
  passed_on.reset();
  relay.link(kReceiver).send(encode(Fetch{1, kOrigin}));
  ASSERT_TRUE(run_until([&] { return passed_on.has_value(); }));
  EXPECT_EQ(passed_on->state_root, receiver().root());
  EXPECT_EQ(federation_.events(kReceiver, "two_closes"), 0U);
}

// So few chunks that none overtakes others.
class FewPassedOnTest : public PassedOnTest {
 protected:
  FewPassedOnTest() : PassedOnTest(of_few_chunks()) {}
  static ScriptedFederation::Options of_few_chunks() {
    auto options = with_a_relay();
    options.gateway.sync.chunk_elements = 10'000;
    return options;
  }
};

// A bad copy of a chunk that comes a moment earlier costs the good one nothing.
TEST_F(FewPassedOnTest, BadCopiesOfChunksDelayNothing) {
  struct Spoilt final : ChunkSource {
    explicit Spoilt(std::shared_ptr<Contribution> made) : all(std::move(made)) {}
    ChunkBytes chunk(std::uint32_t index) override {
      auto chunk = all->chunk(index);
      Bytes bytes(chunk.bytes.begin(), chunk.bytes.end());
      bytes.back() ^= std::byte{1};
      chunk.bytes = std::move(bytes);
      return chunk;
    }
    std::shared_ptr<Contribution> all;
  };
  const auto made = made_from(1);
  auto& relay = federation_.puppet(kRelay).link(kReceiver);
  relay.send(made->announcement().encode());
  relay.offer(made->transfer(), 1, plan_->chunks(), std::make_shared<Spoilt>(made), false);
  begin_sending(made);
  ASSERT_TRUE(run_until([&] { return !link().sends(made->transfer()); }));
  EXPECT_GT(federation_.events(kReceiver, "chunk_refused"), 0U);
  EXPECT_EQ(link().bulk_counters().chunks_resent, 0U);
  close(*made);
  EXPECT_TRUE(run_until([this] { return held(); }));
}

// But where nobody sees the origin any more, what others have whole does: of the earlier attempt
// nothing comes.
TEST_F(PassedOnTest, WhatOthersHaveDisplacesAnEarlierAttemptOfWhoIsOutOfSight) {
  const auto earlier = made_from(1, 7), now = made_from(2, 8);
  link().send(earlier->announcement().encode());
  federation_.run_for(kSecond);
  federation_.cut(kReceiver, kOrigin, true);
  passes_on_ = now;
  EXPECT_TRUE(run_until([this] { return held(); }));
}

// Nor does it while the newest one waits for room on the disk.
TEST_F(PassedOnTest, AnEarlierAttemptPassedOnMeanwhileDoesNotLoseTheNewest) {
  const auto earlier = made_from(1, 7), now = made_from(2, 8);
  auto& disk = federation_.disk(kReceiver);
  disk.set_faults({.full_for = "-2"});
  begin_sending(now);
  close(*now);
  federation_.run_for(kSecond);
  ASSERT_GT(federation_.events(kReceiver, "disk_failed"), 0U);
  disk.set_faults({});
  federation_.puppet(kRelay).link(kReceiver).send(earlier->announcement().encode());
  EXPECT_TRUE(federation_.run_until([this] { return held(); }, 600 * kSecond));
}

// The origin has it and is in sight, and its bulk finds no way; the relay has it too, and sends
// nothing for a while. Each is asked now and then: the origin, which announces it anew each time,
// not over and over because it is the only one that was not silent, and the relay again.
TEST_F(PassedOnTest, OfASilentSourceAndASiteWithoutAWayEachIsAskedNowAndThen) {
  const auto made = made_from(1);
  std::map<SiteId, int> asked_of;
  for (const auto site : {kOrigin, kRelay}) {
    auto& puppet = federation_.puppet(site);
    puppet.heard = [&, site, heard = puppet.heard](Link& from, MessageType type, ByteReader& in) {
      if (type == MessageType::status) {
        const auto theirs = decode_status(in);
        if (!theirs) return;
        Status mine;
        mine.step = theirs->step;
        mine.contributes = true;
        mine.vote_file = 77;
        mine.sees = {kReceiver};
        mine.holds = {kOrigin};
        from.send(encode(mine));
        return;
      }
      if (type == MessageType::fetch) {
        ++asked_of[site];
        if (site == kOrigin) from.send(made->announcement().encode());
      }
      heard(from, type, in);
    };
  }
  link().send(made->announcement().encode());
  ASSERT_TRUE(run_until([&] { return asked_of[kOrigin] > 0; }));
  asked_of.clear();
  federation_.run_for(60 * kSecond);
  for (const auto site : {kOrigin, kRelay}) {
    EXPECT_GE(asked_of[site], 4) << site;
    EXPECT_LE(asked_of[site], 13) << site;
  }
  EXPECT_EQ(receiver().counters().signed_dropped, 0U);
  federation_.cut_bulk(kReceiver, kOrigin, true);
  passes_on_ = made;
  EXPECT_TRUE(run_until([this] { return held(); }));
}

}  // namespace
}  // namespace isthmus::inter
