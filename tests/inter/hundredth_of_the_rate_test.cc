// A line on which a chunk takes many seconds, or does for a while: what comes on it is on its way,
// and asked of nobody else, who would send the same again over the same line.
#include <gtest/gtest.h>

#include <ostream>

#include "tests/inter/scripted_federation.h"

namespace isthmus::inter {
namespace {

constexpr SiteId kThin = 3;

struct ThinLine {
  sim::SimulatedTcp tcp;
  std::uint64_t seed;
};
std::ostream& operator<<(std::ostream& out, const ThinLine& line) {
  return out << (line.tcp == sim::SimulatedTcp::bbr ? "bbr_" : "reno_") << line.seed;
}

class HundredthOfTheRateTest : public testing::TestWithParam<ThinLine> {};

// A hundredth of the rate for half a minute, in which a chunk takes as long. Eight come from each
// of the others.
TEST_P(HundredthOfTheRateTest, WhatComesIsAskedOfNobodyElse) {
  auto options = options_of({kSecond, kSecond, kSecond});
  options.network.tcp = GetParam().tcp;
  options.network.bytes_per_second = 2e6;
  // In a long one what is said waits behind bulk.
  if (GetParam().tcp == sim::SimulatedTcp::reno) options.network.queue_bytes = 1 << 15;
  options.network_seed = GetParam().seed;
  options.elements = 8 << 18;
  options.gateway.sync.chunk_elements = 1 << 18;
  options.gateway.sync.outer_steps = 100'000;
  options.gateway.first_wait = 1200 * kSecond;
  options.gateway.straggler_wait = 1200 * kSecond;
  ScriptedFederation federation(std::move(options));
  ASSERT_TRUE(federation.run_until([&] { return federation.step(kThin) >= 3; }, 600 * kSecond));
  const auto asked = [&] { return federation.gateway(kThin).counters().asked_elsewhere; };
  const auto before = asked();
  federation.set_access(kThin, 2e4);
  federation.run_for(30 * kSecond);
  federation.set_access(kThin, 2e6);
  const auto step = federation.step(kThin);
  ASSERT_TRUE(
      federation.run_until([&] { return federation.step(kThin) >= step + 3; }, 120 * kSecond));
  EXPECT_EQ(asked(), before);
  EXPECT_EQ(federation.gateway(kThin).counters().state_fetches, 0U);
}

INSTANTIATE_TEST_SUITE_P(Lines, HundredthOfTheRateTest,
                         testing::Values(ThinLine{sim::SimulatedTcp::reno, 1},
                                         ThinLine{sim::SimulatedTcp::reno, 2},
                                         ThinLine{sim::SimulatedTcp::bbr, 1},
                                         ThinLine{sim::SimulatedTcp::bbr, 2},
                                         ThinLine{sim::SimulatedTcp::bbr, 3}),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace isthmus::inter
