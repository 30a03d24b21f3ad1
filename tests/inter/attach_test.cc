#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <future>
#include <thread>

#include "tests/inter/attach_site.h"

namespace isthmus::inter {
namespace {

using testing::HasSubstr;

// Three ranks and one without values; slices across rows, across columns and within.
AttachRequest slice(std::uint32_t rank) {
  AttachRequest request;
  request.rank = rank;
  request.world = 4;
  request.model_settings = "sliced";
  request.tensors = {{"a", {4, 6}, 0}, {"b", {5}, 0}, {"c", {2, 3, 4}, 0}};
  if (rank == 0) request.boxes = {{0, {0, 0}, {4, 2}}, {1, {0}, {5}}};
  if (rank == 1) request.boxes = {{2, {0, 0, 0}, {2, 2, 4}}, {0, {0, 2}, {4, 4}}};
  if (rank == 2) request.boxes = {{2, {0, 2, 0}, {2, 1, 4}}};
  return request;
}
constexpr std::size_t kSliced = 24 + 5 + 24;
// Which canonical elements a rank of slice() holds, in the order of its memory.
std::vector<std::size_t> slice_elements(std::uint32_t rank) {
  std::vector<std::size_t> elements;
  const auto a = [&](std::size_t from, std::size_t to) {
    for (std::size_t row = 0; row < 4; ++row)
      for (std::size_t column = from; column < to; ++column) elements.push_back(row * 6 + column);
  };
  const auto c = [&](std::size_t from, std::size_t to) {
    for (std::size_t i = 0; i < 2; ++i)
      for (std::size_t j = from; j < to; ++j)
        for (std::size_t k = 0; k < 4; ++k) elements.push_back(29 + (i * 3 + j) * 4 + k);
  };
  if (rank == 0) {
    a(0, 2);
    for (std::size_t i = 0; i < 5; ++i) elements.push_back(24 + i);
  }
  if (rank == 1) {
    c(0, 2);
    a(2, 6);
  }
  if (rank == 2) c(2, 3);
  return elements;
}
std::vector<float> slice_of(const std::vector<float>& canonical, std::uint32_t rank) {
  std::vector<float> mine;
  for (const std::size_t e : slice_elements(rank)) mine.push_back(canonical[e]);
  return mine;
}

class SlicedAttachTest : public AttachTest {
 protected:
  // They come at the same time, because each waits for the others.
  std::vector<std::unique_ptr<AttachClient>> attach_slices() {
    std::vector<std::unique_ptr<AttachClient>> clients(4);
    std::vector<std::jthread> threads;
    for (std::uint32_t rank = 0; rank < 4; ++rank)
      threads.emplace_back([this, rank, &client = clients[rank]] { client = attach(slice(rank)); });
    for (auto& attaching : threads) attaching.join();
    return clients;
  }
};

// ---- One rank

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
constexpr std::size_t kLarge = 4096 * 4096;

TEST_F(AttachTest, ALargeStateIsHandedOverInTurnsWithOthers) {
  start_server();
  auto client = attach(large());
  ASSERT_TRUE(client);
  ASSERT_TRUE(client->initial(std::vector<float>(kLarge, 1)));
  state_of(*client);
  ASSERT_TRUE(client->took());
  int turns = 0;
  std::function<void()> count = [&] {
    if (!server->reading()) return;
    ++turns;
    loop.call_after(kMillisecond / 2, count);
  };
  on_loop([&] {
    gateway.decide(std::vector<float>(kLarge, 2));
    EXPECT_TRUE(server->reading());
    count();
  });
  const AgreedState state = state_of(*client);
  EXPECT_EQ(state.step, 1u);
  EXPECT_EQ(std::ranges::count(state.parameters, 2.0f), static_cast<std::ptrdiff_t>(kLarge));
  ASSERT_TRUE(eventually([&] { return !server->reading(); }));
  on_loop([&] { EXPECT_GE(turns, 3); });
}

TEST_F(AttachTest, ARankMayDieWhileItIsToldAState) {
  start_server();
  for (int life = 0; life < 4; ++life) {
    auto client = attach(large());
    ASSERT_TRUE(client);
    if (life == 0) {
      ASSERT_TRUE(client->initial(std::vector<float>(kLarge, 1)));
    }
    EXPECT_EQ(std::ranges::count(state_of(*client).parameters, static_cast<float>(life + 1)),
              static_cast<std::ptrdiff_t>(kLarge));
    ASSERT_TRUE(client->took());
    // Another state overtakes the one that is being told.
    on_loop([&] { gateway.decide(std::vector<float>(kLarge, -1)); });
    on_loop([&] { gateway.decide(std::vector<float>(kLarge, static_cast<float>(life + 2))); });
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

// ---- Several ranks

TEST_F(SlicedAttachTest, RanksContributeAndTakeTheirBoxes) {
  start_server();
  const auto clients = attach_slices();
  const std::vector<float> initial = values(kSliced, 0);
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    on_loop([&] { EXPECT_EQ(gateway.initial_count, 0); });
    ASSERT_TRUE(clients[rank]->initial(slice_of(initial, rank)));
  }
  for (auto& client : clients) {
    state_of(*client);
    ASSERT_TRUE(client->took());
  }
  on_loop([&] { EXPECT_EQ(*gateway.state, initial); });

  const std::vector<float> contributed = values(kSliced, 500);
  const std::vector<float> agreed = values(kSliced, 9000);
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    on_loop([&] { EXPECT_EQ(gateway.contributions.size(), 0u); });
    ASSERT_TRUE(clients[rank]->contribute(1, slice_of(contributed, rank), 10 + rank));
  }
  ASSERT_TRUE(eventually([&] { return gateway.contributions.size() == 1; }));
  on_loop([&] {
    EXPECT_EQ(gateway.contributions[0].parameters, contributed);
    EXPECT_EQ(gateway.contributions[0].tokens, 46u);
    gateway.decide(agreed);
  });
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    const AgreedState state = state_of(*clients[rank]);
    EXPECT_EQ(state.from, MergeFrom::contribution);
    EXPECT_EQ(copy(state.parameters), slice_of(agreed, rank));
    ASSERT_TRUE(clients[rank]->took());
  }
}

TEST_F(SlicedAttachTest, ARankThatComesBackFindsTheOthersWaiting) {
  start_server();
  auto clients = attach_slices();
  for (std::uint32_t rank = 0; rank < 4; ++rank)
    ASSERT_TRUE(clients[rank]->initial(slice_of(values(kSliced, 0), rank)));
  for (auto& client : clients) {
    state_of(*client);
    ASSERT_TRUE(client->took());
  }
  // Three contribute, the fourth dies before it does: nothing reaches the gateway.
  for (std::uint32_t rank = 0; rank < 3; ++rank)
    ASSERT_TRUE(clients[rank]->contribute(1, slice_of(values(kSliced, 7), rank), 1));
  clients[3].reset();
  ASSERT_TRUE(eventually([&] { return server->status()[3].state == "not attached"; }));
  on_loop([&] { EXPECT_EQ(gateway.detached_count, 1); });
  clients[3] = attach(slice(3));
  AgreedState state = state_of(*clients[3]);
  EXPECT_EQ(state.from, MergeFrom::nothing);
  ASSERT_TRUE(clients[3]->took());
  ASSERT_TRUE(clients[3]->contribute(1, {}, 5));
  // The others hear of the repeated state and hand over the same again, by themselves.
  for (std::uint32_t rank = 0; rank < 3; ++rank) expect_no_state(*clients[rank]);
  ASSERT_TRUE(eventually([&] { return gateway.contributions.size() == 1; }));
  on_loop([&] {
    EXPECT_EQ(gateway.attached_count, 2);
    EXPECT_EQ(gateway.contributions[0].parameters, values(kSliced, 7));
    EXPECT_EQ(gateway.contributions[0].tokens, 8u);
    gateway.decide(values(kSliced, 100));
  });
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    state = state_of(*clients[rank]);
    EXPECT_EQ(state.from, MergeFrom::contribution);
    EXPECT_EQ(copy(state.parameters), slice_of(values(kSliced, 100), rank));
  }
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

TEST_F(SlicedAttachTest, EachRankFindsItsPartOfADraft) {
  start_server();
  auto clients = attach_slices();
  for (std::uint32_t rank = 0; rank < 4; ++rank)
    ASSERT_TRUE(clients[rank]->initial(slice_of(values(kSliced, 0), rank)));
  for (auto& client : clients) {
    state_of(*client);
    ASSERT_TRUE(client->took());
  }
  ASSERT_TRUE(eventually([&] { return server->all_took(); }));
  on_loop([&] {
    const auto draft = server->draft();
    ASSERT_TRUE(draft);
    // Odd parts, in no order.
    draft->write(30, values(23, 530));
    draft->write(0, values(7, 500));
    draft->write(7, values(23, 507));
    gateway.decide(values(kSliced, 1000), draft);
  });
  for (std::uint32_t rank = 0; rank < 4; ++rank)
    EXPECT_EQ(copy(state_of(*clients[rank]).parameters), slice_of(values(kSliced, 500), rank));
}

TEST_F(AttachTest, ARunMayBeginWithRanksThatCameAtDifferentTimes) {
  start_server();
  std::unique_ptr<AttachClient> early, late;
  AttachRequest request = whole();
  request.world = 2;
  AttachRequest other = request;
  other.rank = 1;
  other.boxes = {};
  auto waiting = std::async(std::launch::async, [&] { return attach(request); });
  late = attach(other);
  early = waiting.get();
  ASSERT_TRUE(late->initial({}));
  late.reset();  // dies having offered
  ASSERT_TRUE(eventually([&] { return server->status()[1].state == "not attached"; }));
  ASSERT_TRUE(early->initial(values(kWhole, 3)));
  late = attach(other);
  ASSERT_TRUE(late->initial({}));
  EXPECT_EQ(copy(state_of(*early).parameters), values(kWhole, 3));
  EXPECT_EQ(state_of(*late).step, 0u);
}

TEST_F(AttachTest, ARankThatComesBackBeforeTheRunBeginsIsAnsweredToo) {
  gateway.holds_start = true;
  start_server();
  AttachRequest request = whole();
  request.world = 2;
  AttachRequest other = request;
  other.rank = 1;
  other.boxes = {};
  auto waiting = std::async(std::launch::async, [&] { return attach(request); });
  auto second = attach(other);
  auto first = waiting.get();
  ASSERT_TRUE(second->initial({}));
  ASSERT_TRUE(first->initial(values(kWhole, 3)));
  ASSERT_TRUE(eventually([&] { return gateway.initial_count == 1; }));
  second.reset();
  second = attach(other);
  ASSERT_TRUE(second->initial({}));
  expect_no_state(*second);
  on_loop([&] {
    EXPECT_EQ(gateway.initial_count, 1);
    gateway.state = values(kWhole, 3);
    gateway.publish();
  });
  EXPECT_EQ(copy(state_of(*first).parameters), values(kWhole, 3));
  EXPECT_EQ(state_of(*second).step, 0u);
}

TEST_F(AttachTest, BoxesThatDoNotCoverTheModelOnceAreRefusedToAll) {
  start_server();
  AttachRequest first = whole();
  first.world = 2;
  first.boxes = {{0, {0, 0}, {4, 4}}};
  for (const Box& box : {Box{0, {0, 3}, {4, 3}}, Box{0, {0, 5}, {4, 1}}}) {
    AttachRequest second = first;
    second.rank = 1;
    second.boxes = {box};
    auto one = std::async(std::launch::async,
                          [&] { return AttachClient::attach(path, first, kPatience); });
    auto two = AttachClient::attach(path, second, kPatience);
    ASSERT_FALSE(two);
    EXPECT_EQ(two.error().code, ErrorCode::invalid_argument);
    EXPECT_THAT(two.error().text(), HasSubstr("weight"));
    const auto other = one.get();
    ASSERT_FALSE(other);
    EXPECT_EQ(other.error().code, ErrorCode::invalid_argument);
  }
  on_loop([&] { EXPECT_EQ(gateway.attached_count, 0); });
}

TEST_F(AttachTest, RanksThatDisagreeAreRefused) {
  start_server();
  AttachRequest first = whole();
  first.world = 2;
  auto stop = std::async(std::launch::async, [&] {
    return AttachClient::attach(path, first, 2 * kSecond).error().code;
  });
  ASSERT_TRUE(eventually([&] { return server->status().size() == 2; }));
  AttachRequest second = first;
  second.rank = 1;
  second.world = 3;
  EXPECT_EQ(AttachClient::attach(path, second, kPatience).error().code, ErrorCode::mismatch);
  second.world = 2;
  second.tensors[0].shape = {5, 6};
  EXPECT_EQ(AttachClient::attach(path, second, kPatience).error().code, ErrorCode::mismatch);
  EXPECT_EQ(AttachClient::attach(path, first, kPatience).error().code, ErrorCode::already_exists);
  first.rank = 2;
  EXPECT_EQ(AttachClient::attach(path, first, kPatience).error().code, ErrorCode::invalid_argument);
  EXPECT_EQ(stop.get(), ErrorCode::timeout);
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

// The gateway may need longer for the memory of a large model, or for the other ranks, than one
// call waits.
TEST_F(SlicedAttachTest, AttachingGoesOnFromCallToCall) {
  start_server();
  std::vector<std::unique_ptr<AttachClient>> clients;
  for (std::uint32_t rank = 0; rank < 4; ++rank)
    clients.push_back(std::move(*AttachClient::create(path, slice(rank))));
  for (int calls = 0; calls < 50; ++calls)
    for (std::uint32_t rank = 0; rank < 3; ++rank)
      EXPECT_EQ(clients[rank]->reattach(0).error().code, ErrorCode::timeout);
  ASSERT_TRUE(eventually([&] { return logged("rank_attached"); }));
  std::vector<bool> attached(4);
  const auto all = [&] {
    for (std::uint32_t rank = 0; rank < 4; ++rank)
      if (!attached[rank]) attached[rank] = clients[rank]->reattach(0).has_value();
    return std::ranges::count(attached, true) == 4;
  };
  for (const Nanoseconds start = local_now(); !all() && local_now() - start < kPatience;)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(std::ranges::count(attached, true), 4);
  const std::lock_guard lock(events_mutex);
  EXPECT_EQ(std::ranges::count(events, "rank_attached"), 4);
  EXPECT_EQ(std::ranges::count(events, "rank_gone"), 0);
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
