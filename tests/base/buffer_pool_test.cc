#include "base/buffer_pool.h"

#include <gtest/gtest.h>

#include <cstring>
#include <thread>

namespace isthmus {
namespace {

constexpr std::size_t kSize = 256 << 10;

TEST(BufferPool, GivesOutWhatCameBack) {
  const auto pool = std::make_shared<BufferPool>(4 * kSize);
  auto first = pool->take(kSize);
  auto* const bytes = first.get();
  const auto second = pool->take(kSize);
  EXPECT_NE(second.get(), bytes);  // two at once are two
  first.reset();
  EXPECT_EQ(pool->take(kSize - 100).get(), bytes);  // a little smaller fits too
}

TEST(BufferPool, WhatIsMuchSmallerTakesNoLargeOne) {
  const auto pool = std::make_shared<BufferPool>(4 * kSize);
  auto* const bytes = pool->take(kSize).get();
  const auto small = pool->take(kSize / 2);
  const auto large = pool->take(kSize + 1);
  EXPECT_EQ(pool->take(kSize).get(), bytes);
  std::memset(small.get(), 1, kSize / 2);  // all of it is there
  std::memset(large.get(), 1, kSize + 1);
}

TEST(BufferPool, OutlivesItsOwner) {
  auto pool = std::make_shared<BufferPool>(kSize);
  const std::weak_ptr<BufferPool> watched = pool;
  auto buffer = pool->take(kSize);
  pool.reset();
  std::memset(buffer.get(), 1, kSize);
  EXPECT_FALSE(watched.expired());
  buffer.reset();
  EXPECT_TRUE(watched.expired());
}

TEST(BufferPool, KeepsTheNewestWhereAnotherSizeHadFilledIt) {
  const auto pool = std::make_shared<BufferPool>(4 * kSize);
  {
    const auto first = pool->take(2 * kSize);
    const auto second = pool->take(2 * kSize);
  }
  auto* const bytes = pool->take(kSize).get();
  EXPECT_EQ(pool->take(kSize).get(), bytes);
  auto* const whole = pool->take(4 * kSize).get();
  EXPECT_EQ(pool->take(4 * kSize).get(), whole);
  const auto too_large = pool->take(5 * kSize);
  std::memset(too_large.get(), 1, 5 * kSize);
}

TEST(BufferPool, AnyThreadGivesBack) {
  const auto pool = std::make_shared<BufferPool>(8 * kSize);
  const auto use = [&] {
    for (int i = 0; i < 1000; ++i) {
      const auto buffer = pool->take(kSize);
      buffer[0] = buffer[kSize - 1] = std::byte{1};
    }
  };
  std::thread other(use);
  use();
  other.join();
}

}  // namespace
}  // namespace isthmus
