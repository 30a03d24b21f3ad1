// One rank at a gateway, and what it may be told.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "tests/inter/attach_site.h"

namespace isthmus::inter {
namespace {

using testing::HasSubstr;

TEST_F(AttachTest, ARankStartsTheRunAndTakesPartInOuterSteps) {
  start_server();
  auto client = attach(whole());
  ASSERT_TRUE(client);
  EXPECT_EQ(client->elements(), kWhole);
  EXPECT_FALSE(*client->wait_state(0));
  ASSERT_TRUE(client->initial(values(kWhole, 0)));
  AgreedState state = state_of(*client);
  EXPECT_EQ(state.step, 0u);
  EXPECT_EQ(state.from, MergeFrom::nothing);
  EXPECT_EQ(state.record.bytes[0], std::byte{1});
  EXPECT_EQ(copy(state.parameters), values(kWhole, 0));
  ASSERT_TRUE(client->took());

  for (std::uint64_t step = 1; step <= 3; ++step) {
    if (step == 3) on_loop([&] { gateway.final_step = 3; });
    ASSERT_TRUE(client->contribute(step, values(kWhole, static_cast<float>(step)), 100 * step));
    EXPECT_EQ(copy(client->contributed()), values(kWhole, static_cast<float>(step)));
    // Computes on: no state comes before there is one.
    ASSERT_TRUE(eventually([&] { return gateway.contributions.size() == step; }));
    expect_no_state(*client);
    on_loop([&] { gateway.decide(values(kWhole, 1000)); });
    state = state_of(*client);
    EXPECT_EQ(state.step, step);
    EXPECT_EQ(state.from, MergeFrom::contribution);
    EXPECT_EQ(state.final_step, step == 3);
    EXPECT_EQ(copy(state.parameters), values(kWhole, 1000));
    ASSERT_TRUE(client->took());
  }
  on_loop([&] {
    EXPECT_EQ(gateway.attached_count, 1);
    EXPECT_EQ(gateway.settings, "a model of one tensor");
    EXPECT_EQ(gateway.contributions[1].step, 2u);
    EXPECT_EQ(gateway.contributions[1].tokens, 200u);
    EXPECT_EQ(gateway.contributions[1].parameters, values(kWhole, 2));
  });
}

TEST_F(AttachTest, AStateDecidedWithinTheCallDoesNotOvertakeItsAnswer) {
  gateway.decides = true;
  start_server();
  auto client = computing_rank();
  for (std::uint64_t step = 1; step <= 20; ++step) {
    ASSERT_TRUE(client->contribute(step, values(kWhole, 2), 1));
    const AgreedState state = state_of(*client);
    ASSERT_EQ(state.step, step);
    ASSERT_EQ(state.from, MergeFrom::contribution);
    ASSERT_EQ(state.parameters[1], 1.5f);
    ASSERT_TRUE(client->took());
  }
}

TEST_F(AttachTest, ALateContributionIsNotTakenAndTheRankKnows) {
  start_server();
  auto client = computing_rank();
  on_loop([&] { gateway.decide(values(kWhole, 50)); });  // without us
  ASSERT_TRUE(client->contribute(1, values(kWhole, 1), 10));
  const AgreedState state = state_of(*client);
  EXPECT_EQ(state.step, 1u);
  EXPECT_EQ(state.from, MergeFrom::base);
  ASSERT_TRUE(client->took());
  ASSERT_TRUE(client->contribute(2, values(kWhole, 2), 10));
  ASSERT_TRUE(eventually([&] { return gateway.contributions.size() == 1; }));
  on_loop([&] { EXPECT_EQ(gateway.contributions[0].step, 2u); });
}

// 64 MB: several slices.
AttachRequest large() {
  AttachRequest request = whole();
  request.tensors = {{"weight", {4096, 4096}, 0}};
  request.boxes = {{0, {0, 0}, {4096, 4096}}};
  return request;
}
constexpr std::size_t kLargeModel = 4096 * 4096;

TEST_F(AttachTest, ALargeStateIsHandedOverInTurnsWithOthers) {
  start_server();
  auto client = attach(large());
  ASSERT_TRUE(client);
  ASSERT_TRUE(client->initial(std::vector<float>(kLargeModel, 1)));
  state_of(*client);
  ASSERT_TRUE(client->took());
  int turns = 0;
  std::function<void()> count = [&] {
    if (!server->reading()) return;
    ++turns;
    loop.call_after(kMillisecond / 2, count);
  };
  on_loop([&] {
    gateway.decide(std::vector<float>(kLargeModel, 2));
    EXPECT_TRUE(server->reading());
    count();
  });
  const AgreedState state = state_of(*client);
  EXPECT_EQ(state.step, 1u);
  EXPECT_EQ(std::ranges::count(state.parameters, 2.0f), static_cast<std::ptrdiff_t>(kLargeModel));
  ASSERT_TRUE(eventually([&] { return !server->reading(); }));
  on_loop([&] { EXPECT_GE(turns, 3); });
}

TEST_F(AttachTest, ARankMayDieWhileItIsToldAState) {
  start_server();
  for (int life = 0; life < 4; ++life) {
    auto client = attach(large());
    ASSERT_TRUE(client);
    if (life == 0) {
      ASSERT_TRUE(client->initial(std::vector<float>(kLargeModel, 1)));
    }
    EXPECT_EQ(std::ranges::count(state_of(*client).parameters, static_cast<float>(life + 1)),
              static_cast<std::ptrdiff_t>(kLargeModel));
    ASSERT_TRUE(client->took());
    // Another state overtakes the one that is being told.
    on_loop([&] { gateway.decide(std::vector<float>(kLargeModel, -1)); });
    on_loop([&] { gateway.decide(std::vector<float>(kLargeModel, static_cast<float>(life + 2))); });
    client.reset();
    ASSERT_TRUE(eventually([&] { return gateway.detached_count == life + 1; }));
    on_loop([&] { EXPECT_FALSE(server->reading()); });
  }
}

TEST_F(AttachTest, ANewStateWaitsUntilTheLastOneIsTaken) {
  start_server();
  auto client = attach(whole());
  ASSERT_TRUE(client->initial(values(kWhole, 0)));
  AgreedState state = state_of(*client);
  on_loop([&] {
    gateway.decide(values(kWhole, 100));
    gateway.decide(values(kWhole, 200));
  });
  std::this_thread::sleep_for(std::chrono::nanoseconds(kMoment));
  EXPECT_EQ(copy(state.parameters), values(kWhole, 0));  // not written under the reader
  ASSERT_TRUE(client->took());
  state = state_of(*client);
  EXPECT_EQ(state.step, 2u);
  EXPECT_EQ(state.from, MergeFrom::base);
  EXPECT_EQ(copy(state.parameters), values(kWhole, 200));
  ASSERT_TRUE(client->took());
  expect_no_state(*client);
}

// A gateway ends when it is through, and a rank may still write a checkpoint before it takes the
// last state.
TEST_F(AttachTest, TheGatewayKnowsWhetherTheRanksHaveTheState) {
  start_server();
  auto client = computing_rank();
  EXPECT_TRUE(eventually([&] { return server->all_took(); }));
  ASSERT_TRUE(client->contribute(1, values(kWhole, 0), 1));
  ASSERT_TRUE(eventually([&] { return gateway.contributions.size() == 1; }));
  on_loop([&] {
    gateway.final_step = 1;
    gateway.decide(values(kWhole, 1));
  });
  EXPECT_EQ(state_of(*client).step, 1u);
  EXPECT_FALSE(on_loop([&] { return server->all_took(); }));
  ASSERT_TRUE(client->took());
  EXPECT_TRUE(eventually([&] { return server->all_took(); }));
  client.reset();
  EXPECT_TRUE(eventually([&] { return !server->all_took(); }));
}

TEST_F(AttachTest, WhatIsCopiedIsWhatCountsWhateverTheRankWritesLater) {
  start_server();
  auto client = computing_rank();
  ASSERT_TRUE(client->contribute(1, values(kWhole, 1), 10));
  ASSERT_TRUE(eventually([&] { return gateway.contributions.size() == 1; }));
  auto contributed = client->contributed();
  std::fill_n(const_cast<float*>(contributed.data()), contributed.size(), -1.0f);
  on_loop([&] { EXPECT_EQ(gateway.contributions[0].parameters, values(kWhole, 1)); });
}

TEST_F(AttachTest, ProgressAndLeavingReachTheGatewayAndItsStatus) {
  start_server();
  auto client = attach(whole());
  ASSERT_TRUE(client->progress({70, 2.75, 9000, "computing"}));
  ASSERT_TRUE(eventually([&] { return gateway.progress_count == 1; }));
  const auto status = fetch_status(path, kPatience);
  ASSERT_TRUE(status) << status.error().text();
  ASSERT_EQ(status->ranks.size(), 1u);
  EXPECT_EQ(status->ranks[0].inner_step, 70u);
  EXPECT_EQ(status->ranks[0].loss, 2.75);
  EXPECT_EQ(status->ranks[0].pid, getpid());
  EXPECT_EQ(status->ranks[0].state, "computing");
  ASSERT_TRUE(client->leaving());
  ASSERT_TRUE(eventually([&] { return gateway.leaving_count == 1; }));
  client.reset();
  ASSERT_TRUE(eventually([&] { return server->status()[0].state == "not attached"; }));
}

TEST_F(AttachTest, ManyValuesAreCopiedInSlices) {
  start_server();
  AttachRequest request = whole();
  request.tensors = {{"weight", {3, 1'500'000}, 0}};
  request.boxes = {{0, {0, 1'000'000}, {3, 500'000}}, {0, {0, 0}, {3, 1'000'000}}};
  auto client = attach(request);
  std::vector<float> mine = values(4'500'000, 0);
  ASSERT_TRUE(client->initial(mine));
  const AgreedState state = state_of(*client);
  EXPECT_EQ(copy(state.parameters), mine);
  on_loop([&] {
    for (std::size_t row = 0; row < 3; ++row) {
      EXPECT_EQ((*gateway.state)[row * 1'500'000 + 1'000'000 + 7], mine[row * 500'000 + 7]);
      EXPECT_EQ((*gateway.state)[row * 1'500'000 + 7], mine[1'500'000 + row * 1'000'000 + 7]);
    }
  });
}

// ---- Drafts: what is published is here another state than the draft, to tell the two apart

TEST_F(AttachTest, WhatWasDraftedIsNotCopiedAgain) {
  start_server();
  auto client = computing_rank();
  for (std::uint64_t step = 1; step <= 2; ++step) {
    ASSERT_TRUE(eventually([&] { return server->all_took(); }));
    ASSERT_TRUE(client->contribute(step, values(kWhole, 1), 1));
    ASSERT_TRUE(eventually([&] { return gateway.contributions.size() == step; }));
    on_loop([&] {
      const auto draft = server->draft();
      ASSERT_TRUE(draft);
      draft->write(20, values(4, 520));
      draft->write(0, values(20, 500));
      gateway.decide(values(kWhole, 1000), draft);
    });
    EXPECT_EQ(copy(state_of(*client).parameters), values(kWhole, 500));
    ASSERT_TRUE(client->took());
  }
}

TEST_F(AttachTest, AStateIsCopiedOverADraftOfAnother) {
  start_server();
  auto client = computing_rank();
  ASSERT_TRUE(eventually([&] { return server->all_took(); }));
  on_loop([&] {
    const auto first = server->draft(), second = server->draft();
    ASSERT_TRUE(second);
    second->write(0, values(kWhole, 500));
    first->write(0, values(kWhole, 700));  // given up: nothing
    gateway.decide(values(kWhole, 1000), first);
    second->write(0, values(kWhole, 500));
  });
  EXPECT_EQ(copy(state_of(*client).parameters), values(kWhole, 1000));
}

TEST_F(AttachTest, AGivenUpDraftWritesNothing) {
  start_server();
  auto client = computing_rank();
  ASSERT_TRUE(eventually([&] { return server->all_took(); }));
  on_loop([&] {
    const auto first = server->draft(), second = server->draft();
    ASSERT_TRUE(second);
    second->write(0, values(kWhole, 500));
    first->write(0, values(kWhole, 700));
    gateway.decide(values(kWhole, 1000), second);
    second->write(0, values(kWhole, 700));
  });
  EXPECT_EQ(copy(state_of(*client).parameters), values(kWhole, 500));
}

TEST_F(AttachTest, ThereIsNoDraftWhileTheRankReadsTheLastState) {
  start_server();
  EXPECT_FALSE(on_loop([&] { return server->draft(); }));
  auto client = attach(whole());
  ASSERT_TRUE(client->initial(values(kWhole, 0)));
  state_of(*client);
  EXPECT_FALSE(on_loop([&] { return server->draft(); }));
  ASSERT_TRUE(client->took());
  EXPECT_TRUE(eventually([&] { return server->draft() != nullptr; }));
  // What it computes with is another process' from now on.
  client.reset();
  ASSERT_TRUE(eventually([&] { return server->status()[0].state == "not attached"; }));
  EXPECT_FALSE(on_loop([&] { return server->draft(); }));
  client = attach(whole());
  EXPECT_EQ(copy(state_of(*client).parameters), values(kWhole, 0));
}

// ---- Refusals

TEST_F(AttachTest, TheGatewaysRefusalReachesTheRankAndStays) {
  start_server();
  auto client = attach(whole());
  on_loop([&] { server->refuse(Error{ErrorCode::mismatch, "beta has another codec"}); });
  const auto state = client->wait_state(kPatience);
  ASSERT_FALSE(state);
  EXPECT_EQ(state.error().code, ErrorCode::mismatch);
  EXPECT_THAT(state.error().text(), HasSubstr("beta has another codec"));
  EXPECT_EQ(client->leaving().error().code, ErrorCode::mismatch);
  EXPECT_EQ(client->reattach(kPatience).error().code, ErrorCode::mismatch);
  // And whoever comes later.
  EXPECT_EQ(AttachClient::attach(path, whole(), kPatience).error().code, ErrorCode::mismatch);
  expect_healthy();
}

TEST_F(AttachTest, AModelThatTheGatewayDoesNotWantIsRefused) {
  gateway.attach_error = Error{ErrorCode::mismatch, "this gateway's state is of another model"};
  start_server();
  const auto client = AttachClient::attach(path, whole(), kPatience);
  // The memory may come first; then the first wait learns it.
  const auto error = client ? (*client)->wait_state(kPatience).error() : client.error();
  EXPECT_EQ(error.code, ErrorCode::mismatch);
  on_loop([&] { gateway.attach_error.reset(); });
  ASSERT_TRUE(attach(whole())->initial(values(kWhole, 0)));
}

TEST_F(AttachTest, AContributionThatIsNotFiniteEndsTheRank) {
  start_server();
  auto client = computing_rank();
  on_loop([&] { gateway.contribute_error = Error{ErrorCode::non_finite, "a NaN in weight"}; });
  ASSERT_TRUE(client->contribute(1, values(kWhole, 0), 1));
  const auto state = client->wait_state(kPatience);
  ASSERT_FALSE(state);
  EXPECT_EQ(state.error().code, ErrorCode::non_finite);
  on_loop([&] { gateway.contribute_error.reset(); });
  EXPECT_EQ(state_of(*attach(whole())).step, 0u);
}

TEST_F(AttachTest, MoreMemoryThanAllowedIsRefusedBeforeItIsMade) {
  AttachOptions options;
  options.memory_bytes_max = 1 << 20;
  start_server(options);
  AttachRequest request = whole();
  request.tensors = {{"weight", {1024, 1024}, 0}};
  request.boxes = {{0, {0, 0}, {1024, 1024}}};
  const auto client = AttachClient::attach(path, request, kPatience);
  ASSERT_FALSE(client);
  EXPECT_EQ(client.error().code, ErrorCode::too_large);
}

TEST_F(AttachTest, ALinkTestIsStoppedWhenTheLastOfItsAskersHasGone) {
  std::vector<std::uint64_t> stopped;
  start_server();
  on_loop([&] {
    server->serve_link_tests(
        [](const attach::LinkTest& wish) -> Result<std::string> {
          if (wish.number == 9) return Error{ErrorCode::busy, "another test is going on"};
          return fmt::format("{{\"number\":{}}}", wish.number);
        },
        [&](std::uint64_t number) { stopped.push_back(number); });
  });
  const auto connect = [&] { return *LinkTestClient::connect(path); };
  std::optional<LinkTestClient> first(connect()), second(connect()), refused(connect());
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(*first->ask({.number = 7, .peer = "beta"}, kPatience), "{\"number\":7}");
  EXPECT_TRUE(second->ask({.number = 7, .peer = "beta"}, kPatience));
  const auto busy = refused->ask({.number = 9, .peer = "beta"}, kPatience);
  ASSERT_FALSE(busy);
  EXPECT_EQ(busy.error().code, ErrorCode::busy);
  EXPECT_EQ(busy.error().message, "another test is going on");
  EXPECT_FALSE(logged("attach_refused")) << "no rank was refused";
  refused.reset();
  first.reset();
  std::this_thread::sleep_for(std::chrono::nanoseconds(kMoment));
  EXPECT_TRUE(on_loop([&] { return stopped.empty(); }));
  second.reset();
  EXPECT_TRUE(eventually([&] { return stopped == std::vector<std::uint64_t>{7}; }));
  stop_server();  // `stopped` is ours
}

TEST_F(AttachTest, WithoutAGatewayThereIsAClearError) {
  const auto status = fetch_status(path, kSecond);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::unavailable);
  const auto client = AttachClient::attach(path, whole(), 200 * kMillisecond);
  ASSERT_FALSE(client);
  EXPECT_EQ(client.error().code, ErrorCode::timeout);
  EXPECT_THAT(client.error().text(), HasSubstr("is the site running?"));
}

}  // namespace
}  // namespace isthmus::inter
