// Several ranks that hold a model's values together, at one gateway.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

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
  // All have the first state.
  std::vector<std::unique_ptr<AttachClient>> start_with_slices() {
    start_server();
    auto clients = attach_slices();
    for (std::uint32_t rank = 0; rank < 4; ++rank)
      EXPECT_TRUE(clients[rank]->initial(slice_of(values(kSliced, 0), rank)));
    for (auto& client : clients) {
      state_of(*client);
      EXPECT_TRUE(client->took());
    }
    return clients;
  }
};

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
  auto clients = start_with_slices();
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

TEST_F(SlicedAttachTest, EachRankFindsItsPartOfADraft) {
  auto clients = start_with_slices();
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

// Of which the second has no part of the model.
class TwoRanksTest : public AttachTest {
 protected:
  TwoRanksTest() {
    first_.world = 2;
    second_ = first_;
    second_.rank = 1;
    second_.boxes = {};
  }
  using Clients = std::pair<std::unique_ptr<AttachClient>, std::unique_ptr<AttachClient>>;
  // Each is answered when the other is there.
  Clients attach_both() {
    auto waiting = std::async(std::launch::async, [&] { return attach(first_); });
    auto second = attach(second_);
    return {waiting.get(), std::move(second)};
  }

  AttachRequest first_ = whole(), second_;
};

TEST_F(TwoRanksTest, ARunMayBeginWithRanksThatCameAtDifferentTimes) {
  start_server();
  auto [early, late] = attach_both();
  ASSERT_TRUE(late->initial({}));
  late.reset();  // dies having offered
  ASSERT_TRUE(eventually([&] { return server->status()[1].state == "not attached"; }));
  ASSERT_TRUE(early->initial(values(kWhole, 3)));
  late = attach(second_);
  ASSERT_TRUE(late->initial({}));
  EXPECT_EQ(copy(state_of(*early).parameters), values(kWhole, 3));
  EXPECT_EQ(state_of(*late).step, 0u);
}

TEST_F(TwoRanksTest, ARankThatComesBackBeforeTheRunBeginsIsAnsweredToo) {
  gateway.holds_start = true;
  start_server();
  auto [first, second] = attach_both();
  ASSERT_TRUE(second->initial({}));
  ASSERT_TRUE(first->initial(values(kWhole, 3)));
  ASSERT_TRUE(eventually([&] { return gateway.initial_count == 1; }));
  second.reset();
  second = attach(second_);
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

}  // namespace
}  // namespace isthmus::inter
