// Of the bytes of one wire: which were of link tests.
#include "inter/tested_bytes.h"

#include <gtest/gtest.h>

namespace isthmus::inter {
namespace {

void add(TestedBytes& bytes, Nanoseconds now, const TestedBytes::Count& message,
         const TestedBytes::Count& all) {
  bytes.add(now, message);
  bytes.goes_on(now, all);
}

TEST(TestedBytes, WhatTheWireCountsEarlierOrLaterIsNobodyElses) {
  TestedBytes bytes;
  EXPECT_EQ(bytes.others(kSecond, {1000, 2000}).received, 2000U);
  // Handed over and not sent yet; a part of one that comes is counted before the whole.
  add(bytes, 2 * kSecond, {.sent = 600, .received = 0}, {1100, 2100});
  EXPECT_EQ(bytes.others(3 * kSecond, {1200, 9000}).received, 2100U);
  EXPECT_EQ(bytes.others(3 * kSecond, {1200, 9000}).sent, 1000U);
  add(bytes, 4 * kSecond, {.sent = 0, .received = 7000}, {1700, 9100});
  EXPECT_EQ(bytes.others(4 * kSecond, {1750, 9150}).sent, 1000U);
  // At rest.
  const auto others = bytes.others(4 * kSecond + TestedBytes::kSettles, {1750, 9150});
  EXPECT_EQ(others.sent, 1150U);
  EXPECT_EQ(others.received, 2150U);
  EXPECT_EQ(bytes.tests().received, 7000U);
}

TEST(TestedBytes, WhatIsLostWithItsConnectionIsNotTakenFromTheOthersForGood) {
  TestedBytes bytes;
  EXPECT_EQ(bytes.others(kSecond, {1000, 0}).sent, 1000U);
  add(bytes, 2 * kSecond, {.sent = 5000, .received = 0}, {1000, 0});
  EXPECT_EQ(bytes.others(30 * kSecond, {2000, 0}).sent, 1000U) << "it may still leave";
  const auto lost = 2 * kSecond + TestedBytes::kLost;
  EXPECT_EQ(bytes.others(lost, {2000, 0}).sent, 1000U);
  EXPECT_EQ(bytes.others(lost, {2300, 0}).sent, 1300U);
  EXPECT_EQ(bytes.tests().sent, 5000U);
  // Another test's count is not touched by it.
  add(bytes, lost, {.sent = 400, .received = 0}, {2300, 0});
  EXPECT_EQ(bytes.others(lost + 9 * kSecond, {2750, 0}).sent, 1350U);
}

TEST(TestedBytes, WithoutARestItIsSettledAllTheSame) {
  TestedBytes bytes;
  TestedBytes::Count all;
  for (auto now = kSecond; now < 600 * kSecond; now += kSecond) {
    all.sent += 1000;  // half of it a test's
    add(bytes, now, {.sent = 500, .received = 0}, all);
    const auto others = bytes.others(now, all).sent;
    EXPECT_LE(others, all.sent / 2);
    EXPECT_GE(others + 500 * (kLinkTestLongest / kSecond + 1), all.sent / 2) << seconds_of(now);
  }
}

}  // namespace
}  // namespace isthmus::inter
