#include <gtest/gtest.h>

#include <functional>

#include "tests/inter/attach_site.h"

namespace isthmus::inter {
namespace {

class AttachRestartTest : public AttachTest {
 protected:
  // At the state of step 0, with a contribution to step 1 made; taken when the gateway answers.
  std::unique_ptr<AttachClient> contributing_rank() {
    start_server();
    auto client = computing_rank();
    EXPECT_TRUE(client->contribute(1, values(kWhole, 7), 30));
    EXPECT_TRUE(eventually([&] { return gateway.contributions.size() == 1; }));
    return client;
  }
  // The gateway's process ends when the contribution is known to be taken; `then` is what the next
  // one begins with.
  void restart_gateway(AttachClient& client, const std::function<void()>& then) {
    expect_no_state(client);
    stop_server();
    on_loop(then);
    expect_closed(client);
    start_server();
    ASSERT_TRUE(client.reattach(kPatience));
  }
  void expect_closed(AttachClient& client) {
    const auto state = client.wait_state(kPatience);
    ASSERT_FALSE(state);
    EXPECT_EQ(state.error().code, ErrorCode::closed);
  }
};

TEST_F(AttachRestartTest, AContributionThatItHasIsWaitedFor) {
  auto client = contributing_rank();
  stop_server();
  expect_closed(*client);
  EXPECT_EQ(client->leaving().error().code, ErrorCode::closed);
  start_server();
  ASSERT_TRUE(client->reattach(kPatience));
  EXPECT_EQ(copy(client->contributed()), values(kWhole, 7));
  expect_no_state(*client);
  on_loop([&] {
    EXPECT_EQ(gateway.contributions.size(), 1u);
    gateway.decide_half();
  });
  const AgreedState state = state_of(*client);
  EXPECT_EQ(state.step, 1u);
  EXPECT_EQ(state.from, MergeFrom::contribution);
  EXPECT_EQ(state.parameters[1], 4.0f);
}

TEST_F(AttachRestartTest, AContributionThatItLostIsMadeAgainToTheByte) {
  auto client = contributing_rank();
  stop_server();
  on_loop([&] { gateway.is_open = false; });
  expect_closed(*client);
  start_server();
  ASSERT_TRUE(client->reattach(kPatience));
  expect_no_state(*client);
  ASSERT_TRUE(eventually([&] { return gateway.contributions.size() == 2; }));
  on_loop([&] {
    EXPECT_EQ(gateway.contributions[1].parameters, gateway.contributions[0].parameters);
    EXPECT_EQ(gateway.contributions[1].tokens, 30u);
    gateway.decide_half();
  });
  EXPECT_EQ(state_of(*client).from, MergeFrom::contribution);
}

TEST_F(AttachRestartTest, AStepDecidedMeanwhileIsMerged) {
  auto client = contributing_rank();
  restart_gateway(*client, [&] {
    gateway.step = 3;
    gateway.is_open = false;
    gateway.state = values(kWhole, 300);
  });
  const AgreedState state = state_of(*client);
  EXPECT_EQ(state.step, 3u);
  EXPECT_EQ(state.from, MergeFrom::contribution);
  EXPECT_EQ(copy(state.parameters), values(kWhole, 300));
}

TEST_F(AttachRestartTest, WhatItTookAndLostBeforeALaterStateIsStillTheRanks) {
  auto client = contributing_rank();
  restart_gateway(*client, [&] {
    gateway.step = 3;
    gateway.is_open = false;
    gateway.contributions.clear();
  });
  const AgreedState state = state_of(*client);
  EXPECT_EQ(state.step, 3u);
  EXPECT_EQ(state.from, MergeFrom::base);
}

TEST_F(AttachRestartTest, AContributionMadeWhileItIsAwayArrivesLater) {
  start_server();
  auto client = computing_rank();
  stop_server();
  const auto contributed = client->contribute(1, values(kWhole, 9), 3);
  ASSERT_FALSE(contributed);
  EXPECT_EQ(contributed.error().code, ErrorCode::closed);
  start_server();
  ASSERT_TRUE(client->reattach(kPatience));
  ASSERT_TRUE(client->contribute(1, values(kWhole, 10), 3));  // again: the first is what counts
  expect_no_state(*client);
  ASSERT_TRUE(eventually([&] { return gateway.contributions.size() == 1; }));
  on_loop([&] { EXPECT_EQ(gateway.contributions[0].parameters, values(kWhole, 9)); });
}

TEST_F(AttachRestartTest, AContributionMadeBeforeItTellsItsStateWaitsForThat) {
  start_server();
  auto client = computing_rank();
  stop_server();
  expect_closed(*client);
  start_server();
  ASSERT_TRUE(client->reattach(kPatience));
  // The numbers of publications begin anew: the old one must not be taken for the new.
  ASSERT_TRUE(client->contribute(1, values(kWhole, 9), 3));
  expect_no_state(*client);
  ASSERT_TRUE(eventually([&] { return gateway.contributions.size() == 1; }));
  on_loop([&] { gateway.decide_half(); });
  EXPECT_EQ(state_of(*client).from, MergeFrom::contribution);
}

TEST_F(AttachRestartTest, ARankThatIsStillComputingGoesOn) {
  start_server();
  auto client = computing_rank();
  stop_server();
  expect_closed(*client);
  start_server();
  ASSERT_TRUE(client->reattach(kPatience));
  expect_no_state(*client);
  ASSERT_TRUE(client->contribute(1, values(kWhole, 9), 3));
  ASSERT_TRUE(eventually([&] { return gateway.contributions.size() == 1; }));
}

TEST_F(AttachRestartTest, AStateMergedWhileItIsAwayIsNotMergedTwice) {
  for (const bool before_reattach : {true, false}) {
    SCOPED_TRACE(before_reattach);
    gateway = FakeGateway();
    auto client = contributing_rank();
    on_loop([&] { gateway.decide_half(); });
    EXPECT_EQ(state_of(*client).from, MergeFrom::contribution);
    stop_server();
    if (before_reattach) {
      const auto took = client->took();
      ASSERT_FALSE(took);
      EXPECT_EQ(took.error().code, ErrorCode::closed);
    }
    start_server();
    ASSERT_TRUE(client->reattach(kPatience));
    if (!before_reattach) {
      ASSERT_TRUE(client->took());
    }
    ASSERT_TRUE(client->contribute(2, values(kWhole, 9), 3));
    expect_no_state(*client);
    ASSERT_TRUE(eventually([&] { return gateway.contributions.size() == 2; }));
    stop_server();
  }
}

TEST_F(AttachRestartTest, AStateNotMergedWhenItWentAwayIsToldAgain) {
  auto client = contributing_rank();
  on_loop([&] { gateway.decide_half(); });
  EXPECT_EQ(state_of(*client).from, MergeFrom::contribution);
  stop_server();
  start_server();
  ASSERT_TRUE(client->reattach(kPatience));
  const AgreedState again = state_of(*client);
  EXPECT_EQ(again.step, 1u);
  EXPECT_EQ(again.from, MergeFrom::contribution);
  EXPECT_EQ(again.parameters[1], 4.0f);
  EXPECT_EQ(copy(client->contributed()), values(kWhole, 7));
}

TEST_F(AttachRestartTest, BeforeTheFirstStateTheInitialParametersAreOfferedAgain) {
  gateway.holds_start = true;
  start_server();
  auto client = attach(whole());
  ASSERT_TRUE(client->initial(values(kWhole, 5)));
  ASSERT_TRUE(eventually([&] { return gateway.initial_count == 1; }));
  stop_server();
  expect_closed(*client);
  on_loop([&] { gateway.holds_start = false; });
  start_server();
  ASSERT_TRUE(client->reattach(kPatience));
  EXPECT_EQ(copy(state_of(*client).parameters), values(kWhole, 5));
}

TEST_F(AttachRestartTest, AnOlderStateIsNotForTheRank) {
  auto client = contributing_rank();
  on_loop([&] { gateway.decide(values(kWhole, 100)); });
  state_of(*client);
  ASSERT_TRUE(client->took());
  stop_server();
  on_loop([&] {  // came back with the state before, as if the last one had not been saved
    gateway.step = 0;
    gateway.state = values(kWhole, 0);
  });
  expect_closed(*client);
  start_server();
  ASSERT_TRUE(client->reattach(kPatience));
  ASSERT_TRUE(client->contribute(2, values(kWhole, 9), 3));
  expect_no_state(*client);
  on_loop([&] {
    EXPECT_EQ(gateway.contributions.size(), 1u);
    gateway.decide(values(kWhole, 100));  // catches up
  });
  expect_no_state(*client);
  ASSERT_TRUE(eventually([&] { return gateway.contributions.size() == 2; }));
  on_loop([&] {
    EXPECT_EQ(gateway.contributions[1].step, 2u);
    gateway.decide_half();
  });
  EXPECT_EQ(state_of(*client).from, MergeFrom::contribution);
}

TEST_F(AttachRestartTest, AnotherRunIsNoticed) {
  auto client = contributing_rank();
  on_loop([&] { gateway.decide(values(kWhole, 100)); });
  state_of(*client);
  ASSERT_TRUE(client->took());
  on_loop([&] {
    Published other;
    other.step = 1;
    other.parameters = *gateway.state;
    server->publish(other);
  });
  const auto state = client->wait_state(kPatience);
  ASSERT_FALSE(state);
  EXPECT_EQ(state.error().code, ErrorCode::mismatch);
}

TEST_F(AttachRestartTest, ALaterStateOfAnotherRunIsRefusedToo) {
  auto client = contributing_rank();
  on_loop([&] {
    Published other;
    other.step = 7;
    other.run.bytes[0] = std::byte{9};
    other.parameters = *gateway.state;
    server->publish(other);
  });
  const auto state = client->wait_state(kPatience);
  ASSERT_FALSE(state);
  EXPECT_EQ(state.error().code, ErrorCode::mismatch);
}

TEST_F(AttachRestartTest, ANewRankProcessWaitsForTheOpenStep) {
  contributing_rank().reset();
  auto client = attach(whole());
  ASSERT_TRUE(client->initial(values(kWhole, 77)));  // not needed, not used
  AgreedState state = state_of(*client);
  EXPECT_EQ(state.step, 0u);
  EXPECT_TRUE(state.contribution_open);
  EXPECT_EQ(copy(state.parameters), values(kWhole, 0));
  ASSERT_TRUE(client->took());
  ASSERT_TRUE(client->contribute(1, values(kWhole, 9), 3));  // goes into the next
  expect_no_state(*client);
  on_loop([&] {
    EXPECT_EQ(gateway.contributions.size(), 1u);
    gateway.decide_half();
  });
  state = state_of(*client);
  EXPECT_EQ(state.step, 1u);
  EXPECT_EQ(state.from, MergeFrom::base);
}

}  // namespace
}  // namespace isthmus::inter
