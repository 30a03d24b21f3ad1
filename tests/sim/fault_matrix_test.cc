// Each kind of fault alone, from many seeds: the invariants hold, the run ends, and where nobody
// can go on without the other the last state is, bit for bit, that of the run without the fault.
// Real gateways suffer the same in tests/wan/fault_matrix_test.py; docs/reliability.md has the
// table.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <functional>
#include <ostream>
#include <string>
#include <string_view>

#include "inter/sim/federation.h"

namespace isthmus::inter::sim {
namespace {

struct Case {
  std::string name;
  bool same_bits = true;  // two sites that need each other; else three, of which two suffice
  std::string counter;    // of the fault; "": counted by nothing
  std::function<void(Scenario&)> suffer;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

Scenario calm(bool same_bits) {
  Scenario s;
  s.name = "calm";
  s.sites = same_bits ? 2 : 3;
  s.min_sites = 2;
  s.outer_steps = 5;
  s.network.silent_deaths = 0;
  s.network.late_downs = 0;
  return s;
}

// The root of the last state, from the event of the last step that was applied.
std::string last_root(const Outcome& outcome) {
  for (auto line = outcome.log.rbegin(); line != outcome.log.rend(); ++line) {
    constexpr std::string_view kRoot = "\"root\":\"";
    if (line->find("\"step_applied\"") == std::string::npos) continue;
    const auto at = line->find(kRoot);
    if (at != std::string::npos) return line->substr(at + kRoot.size(), 64);
  }
  return {};
}

std::uint64_t seeds() {
  const char* wanted = std::getenv("ISTHMUS_SIM_SEEDS");
  return wanted == nullptr ? 20 : std::max<std::uint64_t>(1, std::strtoull(wanted, nullptr, 10));
}

class FaultMatrix : public testing::TestWithParam<Case> {};

TEST_P(FaultMatrix, OfManySeeds) {
  const auto& row = GetParam();
  auto scenario = calm(row.same_bits);
  row.suffer(scenario);
  std::uint64_t happened = 0;
  for (std::uint64_t seed = 1; seed <= seeds(); ++seed) {
    scenario.network.tcp =
        std::array{SimulatedTcp::unseen, SimulatedTcp::reno, SimulatedTcp::bbr}[seed % 3];
    const auto outcome = run_federation(scenario, seed, /*keep_log=*/true);
    ASSERT_THAT(outcome.violations, testing::IsEmpty()) << "seed " << seed;
    ASSERT_TRUE(outcome.finished) << "seed " << seed;
    if (const auto found = outcome.counters.find(row.counter); found != outcome.counters.end())
      happened += found->second;
    if (!row.same_bits) continue;
    const auto in_peace = run_federation(calm(true), seed, /*keep_log=*/true);
    ASSERT_EQ(last_root(in_peace).size(), 64U);
    ASSERT_EQ(last_root(outcome), last_root(in_peace)) << "seed " << seed;
  }
  if (!row.counter.empty()) {
    EXPECT_GE(happened, seeds() / 2) << row.counter;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Rows, FaultMatrix,
    testing::Values(
        // A flipped bit ends the connection: nothing else comes through a seal.
        Case{"R1_R2_cut_connections", true, "broken connections",
             [](Scenario& s) { s.broken_connections = 10; }},
        Case{"R2_connections_that_die_unnoticed", true, "broken connections",
             [](Scenario& s) {
               s.broken_connections = 6;
               s.network.silent_deaths = 0.5;
               s.network.late_downs = 0.5;
             }},
        Case{"R2_R7_killed_and_started_again", false, "crashes",
             [](Scenario& s) { s.crashes = 3; }},
        Case{"R3_partitions", true, "partitions",
             [](Scenario& s) {
               s.partitions = 4;
               s.one_way = 0;
             }},
        Case{"R4_one_way_partitions", true, "one-way partitions",
             [](Scenario& s) {
               s.partitions = 4;
               s.one_way = 1;
             }},
        Case{"R5_loss_reordering_repetition", true, "messages lost or repeated",
             [](Scenario& s) {
               s.network.loss = s.network.duplicate = s.network.reorder = 0.01;
               s.network.packet_loss = 0.01;
             }},
        Case{"R6_hundredth_of_the_rate", true, "slow access links",
             [](Scenario& s) { s.slow_access = 4; }},
        Case{"R8_stands_still", false, "pauses", [](Scenario& s) { s.pauses = 3; }},
        Case{"R9_restarted_in_mid_round", false, "crashes",
             [](Scenario& s) {
               s.crashes = 3;
               s.killed_again = 0.5;
             }},
        Case{"R20_slow_reader", true, "slow disks",
             [](Scenario& s) {
               s.slow_disks = 6;
               s.disk.bytes_per_second = 1e6;
             }},
        // What a site contributes while its own disk is full may be later, and more, work.
        Case{"R28_full_disk", false, "full disks", [](Scenario& s) { s.disk_full = 4; }},
        Case{"R28_torn_writes", false, "torn files",
             [](Scenario& s) {
               s.crashes = 3;
               s.disk_full = 2;
             }},
        Case{"R31_no_descriptors", true, "times without descriptors",
             [](Scenario& s) { s.no_descriptors = 4; }},
        // New connections are needed, too.
        Case{"R31_no_descriptors_when_connections_end", false, "times without descriptors",
             [](Scenario& s) {
               s.no_descriptors = 4;
               s.broken_connections = 4;
               s.crashes = 1;
             }},
        Case{"R30_calendars_that_jump", true, "jumps of calendars",
             [](Scenario& s) { s.clock_jumps = 6; }}),
    [](const auto& chosen) { return chosen.param.name; });

}  // namespace
}  // namespace isthmus::inter::sim
