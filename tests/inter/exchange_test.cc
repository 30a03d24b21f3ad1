// What a site keeps of a contribution that goes wrong on its way: its disk refuses it, or whoever
// signed it signed what is not so.
#include "inter/exchange.h"

#include <gtest/gtest.h>

#include "tests/inter/exchange_fixture.h"

namespace isthmus::inter {
namespace {

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

}  // namespace
}  // namespace isthmus::inter
