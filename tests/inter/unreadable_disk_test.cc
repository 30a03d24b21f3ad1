// A disk that cannot read, for a while, what it has: that is not taken for lost.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>

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

// Site 2 has contributed to a step, no record named that, and it is down since it had a later
// state.
class CarriedContributionTest : public testing::Test {
 protected:
  void SetUp() override {
    auto& second = federation_.gateway(2);
    ASSERT_TRUE(until([&] { return federation_.step(2) >= 4 && !second.pending_step(); }));
    federation_.cut_off(2, true);
    ASSERT_TRUE(until([&] { return second.pending_step().has_value(); }));
    step_ = *second.pending_step();
    federation_.end_ranks(2);
    ASSERT_TRUE(until([&] { return federation_.step(1) > step_; }));
    federation_.cut_off(2, false);
    ASSERT_TRUE(
        until([&] { return second.saved_step() >= step_ && second.counters().unnamed == 1; }));
    federation_.kill(2);
    carried_ = federation_.events(2, "contribution_carried");
  }
  void expect_it_is_carried_once_more() {
    federation_.start(2);
    EXPECT_TRUE(
        until([&] { return federation_.events(2, "contribution_carried") == carried_ + 1; }));
    carried_ = federation_.events(2, "contribution_carried");
  }
  bool until(const std::function<bool()>& condition) {
    return federation_.run_until(condition, 600 * kSecond);
  }

  static ScriptedFederation::Options options() {
    auto options = options_of({kSecond, 4 * kSecond, kSecond});
    options.gateway.sync.outer_steps = 100'000;
    options.gateway.sync.absent_steps = 1000;
    return options;
  }
  ScriptedFederation federation_{options()};
  std::uint64_t step_ = 0;
  std::size_t carried_ = 0;
};

// It is read from the disk by who is started again. A disk that cannot read for a moment has not
// lost it.
TEST_F(CarriedContributionTest, ThatCannotBeReadNowIsNotLost) {
  federation_.start(2);
  ASSERT_EQ(federation_.events(2, "state_loaded"), 1U);
  federation_.disk(2).set_faults({.unreadable = "contributions"});
  ASSERT_TRUE(until([&] { return federation_.process(2).failure().has_value(); }));
  EXPECT_EQ(federation_.process(2).failure()->code, ErrorCode::io)
      << federation_.process(2).failure()->text();
  federation_.kill(2);
  federation_.disk(2).set_faults({});
  expect_it_is_carried_once_more();
}

// As when its process was killed before it had synced it, and a state was fetched then.
TEST_F(CarriedContributionTest, ThatOnlyTheCacheHadOutlivesAPowerFailure) {
  auto& disk = federation_.disk(2);
  const auto path = fmt::format("outer/contributions/{:08}-2", step_);
  const auto bytes = *read_file(disk, path, 1 << 20);
  ASSERT_TRUE(disk.remove(path));
  ASSERT_TRUE(disk.sync_folder(folder_of(path)));
  ASSERT_TRUE((*disk.open(path, Disk::Open::create))->write_at(0, bytes));
  expect_it_is_carried_once_more();
  const auto carried = federation_.gateway(2).feedback();
  federation_.run_for(kSecond);
  federation_.kill(2);
  expect_it_is_carried_once_more();
  EXPECT_EQ(federation_.gateway(2).feedback(), carried);
}

}  // namespace
}  // namespace isthmus::inter
