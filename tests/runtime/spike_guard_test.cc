#include "runtime/spike_guard.h"

#include <gtest/gtest.h>

#include <cmath>

namespace isthmus::runtime {
namespace {

void add(SpikeGuard& guard, double norm) {
  EXPECT_EQ(guard.note({.gradient_norm = norm, .finite = true, .applied = true}), "");
}

TEST(SpikeGuard, TakesMultiplesOfTheMedian) {
  SpikeGuard guard(3);
  for (int i = 0; i < 15; ++i) add(guard, i + 1);
  EXPECT_EQ(guard.limit(), 0);  // too few to know what is usual
  add(guard, 1000);
  EXPECT_EQ(guard.limit(), 3 * 9);  // of 1 to 15 and 1000, the upper one of the two in the middle
  EXPECT_EQ(guard.note({.gradient_norm = 30, .finite = true, .applied = false}),
            "the gradient norm 30 is above 27, 3 times the usual one");
  EXPECT_EQ(guard.norms().back(), 30);
}

TEST(SpikeGuard, WhatIsNotFiniteIsNeverUsual) {
  SpikeGuard guard(3);
  for (int i = 0; i < 16; ++i) add(guard, 1);
  EXPECT_EQ(guard.note({.gradient_norm = INFINITY, .finite = false, .applied = false}),
            "a gradient is NaN or infinite");
  EXPECT_EQ(guard.norms().size(), 16U);
  EXPECT_EQ(guard.limit(), 3);
}

TEST(SpikeGuard, WithoutAMultipleNothingIsOne) {
  SpikeGuard guard(0);
  for (int i = 0; i < 100; ++i) add(guard, 1);
  EXPECT_EQ(guard.limit(), 0);
  EXPECT_TRUE(guard.norms().empty());
}

TEST(SpikeGuard, WhatStaysLongBecomesUsual) {
  SpikeGuard guard(2);
  for (int i = 0; i < 1000; ++i) add(guard, 1);
  EXPECT_EQ(guard.norms().size(), SpikeGuard::kNorms);
  for (std::size_t i = 0; i < SpikeGuard::kNorms / 2 - 1; ++i) add(guard, 50);
  EXPECT_EQ(guard.limit(), 2);
  add(guard, 50);
  EXPECT_EQ(guard.limit(), 100);
}

TEST(SpikeGuard, GoesOnWhereAnotherEnded) {
  SpikeGuard one(2);
  for (int i = 0; i < 100; ++i) add(one, std::cos(i) + 2);
  SpikeGuard other(2, one.norms());
  EXPECT_EQ(other.limit(), one.limit());
  for (auto* guard : {&one, &other}) add(*guard, 7);
  EXPECT_EQ(other.norms(), one.norms());
  const SpikeGuard from_too_many(2, std::vector<double>(1000, 3));
  EXPECT_EQ(from_too_many.norms().size(), SpikeGuard::kNorms);
}

}  // namespace
}  // namespace isthmus::runtime
