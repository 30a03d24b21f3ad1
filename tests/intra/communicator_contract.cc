#include "tests/intra/communicator_contract.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/random.h"

namespace isthmus::intra {
namespace {

// What rank r contributes at element i: values of very different size, so that the order of
// summation shows in the bits.
float value_of(int rank, std::size_t i) {
  const Random random = Random(7).split(static_cast<std::uint64_t>(rank));
  const int exponent = static_cast<int>(random.at(2 * i + 1) % 40) - 20;
  return static_cast<float>(std::ldexp(random.normal_at(2 * i), exponent));
}

std::vector<float> values_of(int rank, std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = value_of(rank, i);
  return values;
}

std::vector<float> sum_in_rank_order(int ranks, std::size_t count) {
  auto sum = values_of(0, count);
  for (int r = 1; r < ranks; ++r)
    for (std::size_t i = 0; i < count; ++i) sum[i] += value_of(r, i);
  return sum;
}

TEST(CommunicatorContract, RankIsInsideTheWorld) {
  auto& world = communicator_under_test();
  EXPECT_GE(world.rank(), 0);
  EXPECT_LT(world.rank(), world.world_size());
  EXPECT_EQ(world.local_world_size(), world.world_size());  // tests run on one machine
}

TEST(CommunicatorContract, AllReduceAddsInTheOrderOfRanksToTheBit) {
  auto& world = communicator_under_test();
  // Around the number of ranks (empty parts), and around the block that a backend may cut at.
  for (const std::size_t count : {0, 1, 2, 3, 5, 1000, (1 << 20) - 1, (1 << 20) + 1}) {
    auto values = values_of(world.rank(), count);
    ASSERT_TRUE(world.all_reduce(std::span(values)));
    const auto expected = sum_in_rank_order(world.world_size(), count);
    for (std::size_t i = 0; i < count; ++i)
      ASSERT_EQ(std::bit_cast<std::uint32_t>(values[i]), std::bit_cast<std::uint32_t>(expected[i]))
          << "element " << i << " of " << count;
  }
}

TEST(CommunicatorContract, AllReduceDoesNotDependOnTheCut) {
  auto& world = communicator_under_test();
  constexpr std::size_t kCount = 10'007;
  auto whole = values_of(world.rank(), kCount);
  auto cut = whole;
  ASSERT_TRUE(world.all_reduce(std::span(whole)));
  ASSERT_TRUE(world.all_reduce(std::span(cut).first(17)));
  ASSERT_TRUE(world.all_reduce(std::span(cut).subspan(17)));
  EXPECT_EQ(0, std::memcmp(whole.data(), cut.data(), kCount * sizeof(float)));
}

TEST(CommunicatorContract, AllReduceOfDoublesAndIntegers) {
  auto& world = communicator_under_test();
  const int n = world.world_size();
  std::vector<double> doubles{0.25 * (world.rank() + 1), -1.0};
  ASSERT_TRUE(world.all_reduce(std::span(doubles)));
  EXPECT_EQ(doubles[0], 0.25 * n * (n + 1) / 2);
  EXPECT_EQ(doubles[1], -n);
  std::vector<std::uint64_t> integers{(std::uint64_t{1} << 53) + 1,
                                      static_cast<std::uint64_t>(world.rank())};
  ASSERT_TRUE(world.all_reduce(std::span(integers)));
  EXPECT_EQ(integers[0], ((std::uint64_t{1} << 53) + 1) * static_cast<std::uint64_t>(n));
  EXPECT_EQ(integers[1], static_cast<std::uint64_t>(n * (n - 1) / 2));
}

TEST(CommunicatorContract, BroadcastGivesTheBytesOfTheRoot) {
  auto& world = communicator_under_test();
  for (int root = 0; root < world.world_size(); ++root)
    for (const std::size_t count : {0, 1, 100'003}) {
      std::vector<std::byte> bytes(count, static_cast<std::byte>(world.rank() + 10));
      ASSERT_TRUE(world.broadcast(bytes, root));
      EXPECT_TRUE(std::all_of(bytes.begin(), bytes.end(),
                              [&](std::byte b) { return b == static_cast<std::byte>(root + 10); }));
    }
}

TEST(CommunicatorContract, BarrierReturns) {
  auto& world = communicator_under_test();
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(world.barrier());
}

}  // namespace
}  // namespace isthmus::intra
