// What a gateway says of itself.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/inter/scripted_federation.h"

namespace isthmus::inter {
namespace {

class GatewayStatusTest : public testing::Test {
 protected:
  bool until(const std::function<bool()>& condition) {
    return federation_.run_until(condition, 120 * kSecond);
  }
  GatewayStatus status(SiteId site) { return federation_.gateway(site).status(); }

  ScriptedFederation federation_{options_of({2 * kSecond, 2 * kSecond})};
};

TEST_F(GatewayStatusTest, TokensAreOfTheRunAndNotOfTheProcess) {
  ASSERT_TRUE(until([&] { return federation_.step(1) >= 3 && federation_.step(2) >= 3; }));
  const auto step = federation_.step(2);
  const auto before = status(2).tokens_named;
  EXPECT_GT(before, 0U);
  federation_.kill(2);
  federation_.ranks(2).restart();
  federation_.start(2);
  ASSERT_TRUE(until([&] { return federation_.step(2) >= step; }));
  EXPECT_EQ(status(2).tokens_named, before);
  ASSERT_TRUE(until([&] { return federation_.step(2) > step; }));
  EXPECT_GT(status(2).tokens_named, before);
}

// What a step waits for without an end has no deadline.
TEST_F(GatewayStatusTest, WithoutAMajorityThereIsNoDeadline) {
  bool had_one = false;
  ASSERT_TRUE(until([&] {
    had_one |= !status(2).deadline.empty();
    EXPECT_EQ(status(2).deadline.empty(), !status(2).deadline_s);
    return federation_.step(2) >= 2 && had_one;
  }));
  federation_.cut(1, 2, true);
  ASSERT_TRUE(until([&] { return !status(2).attention.empty(); }));
  federation_.run_for(10 * kSecond);
  EXPECT_THAT(status(2).attention, testing::Contains(testing::HasSubstr("majority")));
  EXPECT_EQ(status(2).deadline, "");
  EXPECT_EQ(status(2).links.at(0).state, "no address") << "of simulated sites none has one";
}

}  // namespace
}  // namespace isthmus::inter
