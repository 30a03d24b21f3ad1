// A disk that cannot read, for a while, what it has: that is not taken for lost.
#include <gtest/gtest.h>

#include "tests/inter/scripted_federation.h"

namespace isthmus::inter {
namespace {

// Site 2 has contributed to a step that is not decided, and is started again.
class UnreadableContributionTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    ASSERT_TRUE(until([&] {
      return federation_.gateway(1).state() && federation_.gateway(1).state()->step >= 3;
    }));
    federation_.cut(1, 2, true);
    ASSERT_TRUE(until([&] {
      const auto pending = federation_.gateway(2).pending_step();
      return pending && federation_.gateway(2).state()->step + 1 == *pending &&
             federation_.gateway(2).held().contains(2);
    }));
    step_ = *federation_.gateway(2).pending_step();
    root_ = federation_.gateway(2).held().at(2).root;
    federation_.kill(2);
  }
  void unreadable(const char* path) { federation_.disk(2).set_faults({.unreadable = path}); }
  void expect_it_ends_and_loses_nothing() {
    ASSERT_TRUE(until([&] { return federation_.process(2).failure().has_value(); }));
    EXPECT_EQ(federation_.process(2).failure()->code, ErrorCode::io);
    federation_.kill(2);
    unreadable("");
    federation_.start(2);
    ASSERT_TRUE(until([&] { return federation_.gateway(2).held().contains(2); }));
    EXPECT_EQ(federation_.gateway(2).pending_step(), step_);
    EXPECT_EQ(federation_.gateway(2).held().at(2).root, root_);
    federation_.cut(1, 2, false);
    EXPECT_TRUE(until([&] { return federation_.finished(); }));
    EXPECT_EQ(federation_.gateway(1).root(), federation_.gateway(2).root());
  }
  bool until(const std::function<bool()>& condition) {
    return federation_.run_until(condition, 300 * kSecond);
  }

  static ScriptedFederation::Options options() {
    auto options = options_of({kSecond, kSecond});
    options.gateway.sync.min_sites = 2;
    return options;
  }
  ScriptedFederation federation_{options()};

 private:
  std::uint64_t step_ = 0;
  security::Digest root_;
};

TEST_P(UnreadableContributionTest, FromTheStartOn) {
  unreadable(GetParam());
  federation_.start(2);
  expect_it_ends_and_loses_nothing();
}

TEST_P(UnreadableContributionTest, OnceTheStateIsLoaded) {
  federation_.start(2);
  ASSERT_TRUE(until([&] { return federation_.events(2, "state_loaded") > 0; }));
  unreadable(GetParam());
  expect_it_ends_and_loses_nothing();
}

INSTANTIATE_TEST_SUITE_P(Paths, UnreadableContributionTest, testing::Values("-2", "contributions"));

// What no record named is read from the disk by who is started again. A disk that cannot read for a
// moment has not lost it.
TEST(CarriedContributionTest, ThatCannotBeReadNowIsNotLost) {
  auto options = options_of({kSecond, 4 * kSecond, kSecond});
  options.gateway.sync.outer_steps = 100'000;
  options.gateway.sync.absent_steps = 1000;
  ScriptedFederation federation(std::move(options));
  auto& second = federation.gateway(2);
  ASSERT_TRUE(federation.run_until(
      [&] { return federation.step(2) >= 4 && !second.pending_step(); }, 600 * kSecond));
  federation.cut_off(2, true);
  ASSERT_TRUE(
      federation.run_until([&] { return second.pending_step().has_value(); }, 600 * kSecond));
  const auto step = *second.pending_step();
  federation.end_ranks(2);
  ASSERT_TRUE(federation.run_until([&] { return federation.step(1) > step; }, 600 * kSecond));
  federation.cut_off(2, false);
  ASSERT_TRUE(federation.run_until(
      [&] { return second.saved_step() >= step && second.counters().unnamed == 1; },
      600 * kSecond));
  federation.kill(2);
  federation.start(2);
  ASSERT_EQ(federation.events(2, "state_loaded"), 1U);
  federation.disk(2).set_faults({.unreadable = "contributions"});
  ASSERT_TRUE(federation.run_until([&] { return federation.process(2).failure().has_value(); },
                                   60 * kSecond));
  EXPECT_EQ(federation.process(2).failure()->code, ErrorCode::io)
      << federation.process(2).failure()->text();
  const auto carried = federation.events(2, "contribution_carried");
  federation.kill(2);
  federation.disk(2).set_faults({});
  federation.start(2);
  EXPECT_TRUE(federation.run_until(
      [&] { return federation.events(2, "contribution_carried") == carried + 1; }, 60 * kSecond));
}

}  // namespace
}  // namespace isthmus::inter
