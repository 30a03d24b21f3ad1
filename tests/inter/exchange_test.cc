// What a site keeps of a contribution that goes wrong on its way: its disk refuses it, or whoever
// signed it signed what is not so.
#include "inter/exchange.h"

#include <gtest/gtest.h>

#include "tests/inter/scripted_federation.h"
#include "tests/inter/sealed_chunks.h"

namespace isthmus::inter {
namespace {

constexpr SiteId kReceiver = 1, kOrigin = 2;

// The receiver has the only vote, and its ranks take so long that no step is decided meanwhile. The
// origin's contributions are made by hand.
class ExchangeTest : public testing::Test {
 protected:
  explicit ExchangeTest(const ScriptedFederation::Options& options = ExchangeTest::options())
      : federation_(options),
        plan_(std::make_shared<ChunkPlan>(federation_.layout(), 0,
                                          options.gateway.sync.chunk_elements,
                                          compress::CodecId::int8)) {
    for (const auto site : options.puppets) {
      auto& puppet = federation_.puppet(site);
      puppet.heard = [this, &puppet, site](Link& from, MessageType type, ByteReader& in) {
        if (type == MessageType::status) {
          if (const auto theirs = decode_status(in)) answer(site, from, *theirs);
        } else if (type == MessageType::fetch) {
          asked(from);
        } else if (type == MessageType::accept) {
          if (const auto message = decode_signed(type, in)) follow(puppet, site, from, *message);
        }
      };
    }
    founded_ = federation_.run_until(
        [this] { return receiver().state() && receiver().view().is_member(kOrigin); },
        60 * kSecond);
  }
  void SetUp() override { ASSERT_TRUE(founded_); }

  // Of so many elements, and so many in a chunk; the window of a link that may be as narrow as it
  // gets.
  enum class Window : bool { wide, narrow };
  static ScriptedFederation::Options of_chunks(std::int64_t elements, std::uint64_t chunk_elements,
                                               Window window) {
    auto options = ExchangeTest::options();
    options.elements = elements;
    options.gateway.sync.chunk_elements = chunk_elements;
    if (window == Window::narrow) options.gateway.link.window_bytes = 1;
    return options;
  }
  static ScriptedFederation::Options options() {
    auto options = options_of({100'000 * kSecond, kSecond});
    options.puppets = {kOrigin};
    options.without_vote = {kOrigin};
    options.gateway.sync.min_sites = 2;
    return options;
  }

  void answer(SiteId self, Link& from, const Status& theirs) {
    Status mine;
    if (self != kOrigin && passes_on_) mine.holds = {kOrigin};
    mine.step = theirs.step;
    mine.contributes = true;
    mine.vote_file = 77;
    mine.sees = {kReceiver};
    from.send(encode(mine));
  }
  // For what it says to hold.
  void asked(Link& from) {
    if (!passes_on_) return;
    from.send(passes_on_->announcement().encode());
    from.offer(passes_on_->transfer(), 1, plan_->chunks(),
               slowly_ ? slowly_ : std::static_pointer_cast<ChunkSource>(passes_on_), true);
    from.send(close_of(*passes_on_).encode());
  }
  // Where it has a vote: in the founding.
  static void follow(const Puppet& puppet, SiteId self, Link& from, const Signed& message) {
    const auto heard = decode_ballot(message.type, message.body);
    if (!heard || heard->id.step != 0 || message.signer != kReceiver) return;
    const auto& accept = std::get<Accept>(heard->ballot);
    from.send(sign(puppet.signer, self, heard->id, accept).encode());
  }

  Gateway& receiver() { return federation_.gateway(kReceiver); }
  Puppet& origin() { return federation_.puppet(kOrigin); }
  Link& link() { return origin().link(kReceiver); }
  bool held() { return receiver().held().count(kOrigin) > 0; }
  bool run_until(const std::function<bool()>& condition) {
    return federation_.run_until(condition, 60 * kSecond);
  }

  // A whole contribution to the first step. All of one attempt have one announcement.
  std::shared_ptr<Contribution> made_from(std::uint64_t seed, std::uint64_t attempt = 7) {
    const auto run = receiver().genesis()->record.hash();
    const auto open = plan_->announce({.run = run, .view = receiver().view().digest(), .step = 1},
                                      100, run, attempt);
    auto made = std::make_shared<Contribution>(
        plan_, sign(origin().signer, kOrigin, MessageType::open, encode(open)), open);
    Random random(seed);
    const auto& agreed = receiver().state()->agreed;
    std::vector<float> parameters(agreed.begin(), agreed.end()), residual(parameters.size());
    for (auto& value : parameters) value += static_cast<float>(random.uniform());
    const ValuesInVector values(std::move(parameters));
    add_all_chunks(*made, origin().signer, [&](std::uint32_t i) {
      return *code_chunk(*plan_, i, receiver().state()->agreed, {}, values, residual);
    });
    return made;
  }
  // The announcement and the chunks.
  void begin_sending(const std::shared_ptr<Contribution>& made) {
    link().send(made->announcement().encode());
    link().offer(made->transfer(), 1, plan_->chunks(), made, false);
  }
  // True when all of them are acknowledged.
  bool send(const std::shared_ptr<Contribution>& made) {
    link().withdraw(made->transfer());
    begin_sending(made);
    return run_until([&] { return !link().sends(made->transfer()); });
  }
  void close(const Contribution& made) { link().send(close_of(made).encode()); }
  Signed close_of(const Contribution& made) {
    const Close close{.id = made.open().id,
                      .transfer = made.transfer(),
                      .root = made.root(),
                      .bytes = made.bytes(),
                      .tokens = made.open().tokens,
                      .base = made.open().base,
                      .state_root = receiver().root()};
    return sign(origin().signer, kOrigin, MessageType::close, encode(close));
  }
  // What is held must be held by the disk.
  void expect_held_after_a_crash() {
    federation_.kill(kReceiver);
    federation_.start(kReceiver);
    EXPECT_TRUE(run_until([this] { return held(); }));
    EXPECT_EQ(federation_.events(kReceiver, "contribution_restored"), 1U);
  }

  ScriptedFederation federation_;
  const std::shared_ptr<const ChunkPlan> plan_;
  std::shared_ptr<Contribution> passes_on_;  // who is not its origin
  std::shared_ptr<ChunkSource> slowly_;      // if not at once
  bool founded_ = false;
};

TEST_F(ExchangeTest, WhatIsHeldOutlivesACrash) {
  const auto made = made_from(1);
  ASSERT_TRUE(send(made));
  close(*made);
  ASSERT_TRUE(run_until([this] { return held(); }));
  expect_held_after_a_crash();
}

// The announcement and the close still fit on the disk, the chunk does not.
class OneChunkTest : public ExchangeTest {
 protected:
  OneChunkTest() : ExchangeTest(of_chunks(20'000, 20'000, Window::wide)) {}
};

TEST_F(OneChunkTest, AContributionIsHeldOnlyWhenAllOfItIsOnDisk) {
  auto& disk = federation_.disk(kReceiver);
  const auto made = made_from(1);
  ASSERT_GT(made->bytes(), 5000U);
  ASSERT_TRUE(send(made));
  disk.set_faults({.failing = 1});
  close(*made);
  ASSERT_TRUE(run_until([this] { return federation_.events(kReceiver, "disk_failed") > 0; }));
  disk.set_faults({.fits = 5000});
  federation_.run_for(60 * kSecond);
  EXPECT_FALSE(held());
  disk.set_faults({});
  ASSERT_TRUE(run_until([this] { return held(); }));
  expect_held_after_a_crash();
}

// Single chunks still fit on the disk, several together do not.
class ManyChunksTest : public ExchangeTest {
 protected:
  ManyChunksTest() : ExchangeTest(of_chunks(600'000, 1 << 16, Window::wide)) {}
};

TEST_F(ManyChunksTest, WhatDidNotFitTogetherIsWrittenChunkByChunk) {
  auto& disk = federation_.disk(kReceiver);
  const auto made = made_from(1);
  ASSERT_GE(plan_->chunks(), 8U);
  disk.set_faults({.fits = 100'000});
  disk.set_speed({.bytes_per_second = 1e5});  // so that chunks wait for each other
  const auto began = federation_.now();
  ASSERT_TRUE(send(made));
  EXPECT_GT(federation_.events(kReceiver, "disk_failed"), 0U);
  EXPECT_LT(federation_.now() - began, 4 * kRetryDisk);
  close(*made);
  ASSERT_TRUE(run_until([this] { return held(); }));
  expect_held_after_a_crash();
}

class MoreThanTheCreditTest : public ExchangeTest {
 protected:
  MoreThanTheCreditTest() : ExchangeTest(of_chunks(40'000, 256, Window::narrow)) {}
};

// As when two sites share a disk that is full for a while: the attempt whose chunks wait here is
// withdrawn, and the next one's come only when those give their credit back.
TEST_F(MoreThanTheCreditTest, ChunksOfAWithdrawnAttemptDoNotKeepOutTheNextOnes) {
  ASSERT_GT(plan_->chunks(), 100U);
  auto& disk = federation_.disk(kReceiver);
  disk.set_faults({.full_for = "-2"});
  const auto first = made_from(1, 7), second = made_from(2, 8);
  begin_sending(first);
  federation_.run_for(20 * kSecond);
  ASSERT_GT(federation_.events(kReceiver, "disk_failed"), 0U);
  link().withdraw(first->transfer());
  begin_sending(second);
  federation_.run_for(kSecond);
  disk.set_faults({});
  ASSERT_TRUE(run_until([&] { return !link().sends(second->transfer()); }));
  close(*second);
  ASSERT_TRUE(run_until([this] { return held(); }));
}

// What is on its way to the disk when a session begins anew is sent once more, not again and again.
TEST_F(ManyChunksTest, OnASlowDiskIsSentOnceInASession) {
  federation_.disk(kReceiver).set_speed({.bytes_per_second = 1e5});
  const auto made = made_from(1);
  begin_sending(made);
  federation_.run_for(3 * kSecond);
  federation_.cut(kReceiver, kOrigin, true);
  federation_.run_for(8 * kSecond);
  federation_.cut(kReceiver, kOrigin, false);
  ASSERT_TRUE(run_until([&] { return link().up(); }));
  const auto sent = [&] { return link().bulk_counters().chunks_sent; };
  const auto before = sent();
  begin_sending(made);
  ASSERT_TRUE(run_until([&] { return !link().sends(made->transfer()); }));
  EXPECT_LE(sent() - before, plan_->chunks());
  close(*made);
  EXPECT_TRUE(run_until([this] { return held(); }));
}

// The same where its announcement was taken up, and its chunks found no room in the file.
class ChunksDoNotFitTest : public ExchangeTest {
 protected:
  ChunksDoNotFitTest() : ExchangeTest(of_chunks(600'000, 1 << 13, Window::narrow)) {}
};

TEST_F(ChunksDoNotFitTest, TheNextAttemptIsNotKeptOut) {
  ASSERT_GT(plan_->chunks(), 60U);
  federation_.disk(kReceiver).set_faults({.fits = 5000, .full_for = "-2"});
  const auto first = made_from(1, 7), second = made_from(2, 8);
  begin_sending(first);
  federation_.run_for(20 * kSecond);
  ASSERT_GT(federation_.events(kReceiver, "disk_failed"), 0U);
  link().withdraw(first->transfer());
  const auto sent = link().bulk_counters().chunks_sent;
  begin_sending(second);
  federation_.run_for(20 * kSecond);
  EXPECT_GT(link().bulk_counters().chunks_sent, sent);
}

// What the disk still has of another view, which the operator has given up.
class OfAnotherViewTest : public ExchangeTest {
 protected:
  explicit OfAnotherViewTest(Nanoseconds compute = 100'000 * kSecond)
      : ExchangeTest(computing(compute)) {}
  static ScriptedFederation::Options computing(Nanoseconds compute) {
    auto options = ExchangeTest::options();
    options.compute[0] = compute;
    return options;
  }
  void store_one(std::uint64_t step) {
    const auto run = receiver().genesis()->record.hash();
    const auto open = plan_->announce({.run = run, .view = {}, .step = step}, 100, run, 7);
    auto made = std::make_shared<Contribution>(
        plan_, sign(origin().signer, kOrigin, MessageType::open, encode(open)), open);
    std::vector<float> residual(receiver().state()->agreed.size());
    const ValuesInVector values(std::vector<float>(residual.size(), 1.0F));
    add_all_chunks(*made, origin().signer, [&](std::uint32_t i) {
      return *code_chunk(*plan_, i, receiver().state()->agreed, {}, values, residual);
    });
    const auto close = close_of(*made);
    EXPECT_TRUE(made->set_close(close, *decode_close(close.body)));
    ContributionStore store(federation_.disk(kReceiver), "outer/contributions");
    auto file = store.create(step, made->announcement());
    EXPECT_TRUE(file && (*file)->add_all(*made) && (*file)->add_close(close) && (*file)->sync());
  }
};

// After a restart, on request: of the step at hand only what fits it is held.
TEST_F(OfAnotherViewTest, WhatIsOfAnotherViewIsNotHeldBecauseSomebodyAsksForIt) {
  store_one(1);
  link().send(encode(Fetch{1, kOrigin}));
  federation_.run_for(10 * kSecond);
  EXPECT_FALSE(held());
  // And keeps nothing out.
  const auto right = made_from(3);
  ASSERT_TRUE(send(right));
  this->close(*right);
  EXPECT_TRUE(run_until([this] { return held(); }));
}

// Of chunks that are not those of the close nothing stays: the right ones come under the same name.
TEST_F(ExchangeTest, NothingOfARefusedContributionStays) {
  const auto wrong = made_from(1), right = made_from(2);
  ASSERT_EQ(wrong->transfer(), right->transfer());
  ASSERT_TRUE(send(wrong));
  close(*right);
  ASSERT_TRUE(
      run_until([this] { return federation_.events(kReceiver, "contribution_refused") > 0; }));
  EXPECT_FALSE(held());
  ASSERT_TRUE(send(right));
  close(*right);
  ASSERT_TRUE(run_until([this] { return held(); }));
  expect_held_after_a_crash();
}

// Nor of a later step, before that begins.
class OfALaterStepTest : public OfAnotherViewTest {
 protected:
  OfALaterStepTest() : OfAnotherViewTest(5 * kSecond) {}
};

TEST_F(OfALaterStepTest, WhatIsOfAnotherViewIsNotHeldBecauseSomebodyAskedForIt) {
  store_one(2);
  link().send(encode(Fetch{2, kOrigin}));
  federation_.run_for(2 * kSecond);
  const auto first = made_from(3);
  ASSERT_TRUE(send(first));
  close(*first);
  ASSERT_TRUE(run_until([&] { return receiver().state()->step == 1; }));
  federation_.run_for(2 * kSecond);
  ASSERT_EQ(receiver().state()->step, 1U);
  EXPECT_FALSE(held());
}

// Whoever fetched it with such a close would find that nothing fits it.
TEST_F(ExchangeTest, AnotherCloseDiffersInItsStateRootAlone) {
  const auto made = made_from(1);
  ASSERT_TRUE(send(made));
  close(*made);
  ASSERT_TRUE(run_until([this] { return held(); }));
  auto other = *decode_close(close_of(*made).body);
  ++other.bytes;
  link().send(sign(origin().signer, kOrigin, MessageType::close, encode(other)).encode());
  EXPECT_TRUE(run_until([this] { return federation_.events(kReceiver, "two_closes") > 0; }));
}

// What its site found damaged on its disk, and nobody has whole, is no second contribution beside
// the one that it makes anew; what is held is.
TEST_F(ExchangeTest, OnlyBesideOneThatIsHeldThereIsASecondContribution) {
  const auto lost = made_from(1, 7), anew = made_from(2, 8), second = made_from(3, 9);
  link().send(lost->announcement().encode());
  close(*lost);
  close(*anew);  // passed on by others, before its announcement
  federation_.run_for(kSecond);
  EXPECT_EQ(federation_.events(kReceiver, "two_contributions"), 0U);
  ASSERT_TRUE(send(anew));
  close(*anew);
  ASSERT_TRUE(run_until([this] { return held(); }));
  EXPECT_EQ(receiver().held().at(kOrigin).root, anew->root());
  close(*second);
  EXPECT_TRUE(run_until([this] { return federation_.events(kReceiver, "two_contributions") > 0; }));
  EXPECT_EQ(receiver().held().at(kOrigin).root, anew->root());
}

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

}  // namespace
}  // namespace isthmus::inter
