// Each kind of fault alone, from many seeds: the invariants hold, the run ends, the row's own
// promise is kept with its bound, and where nobody can go on without the other the last state is,
// bit for bit, that of the run without the fault. A row counts only if its fault hit something.
// Real gateways suffer the same in tests/wan/fault_matrix_test.py; docs/reliability.md has the
// table.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <functional>
#include <iterator>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "inter/sim/federation.h"

namespace isthmus::inter::sim {
namespace {

using Struck = History::Struck;
using Span = std::pair<Nanoseconds, Nanoseconds>;

constexpr Nanoseconds kLaneBack = 10 * kSecond;
constexpr Nanoseconds kNoticed = 8 * kSecond;
constexpr Nanoseconds kFlowing = 1500 * kMillisecond;
// Silence is noticed; the others' ranks compute and their bytes and votes go meanwhile.
constexpr Nanoseconds kGoneOnWithout = 15 * kSecond;
constexpr std::ptrdiff_t kNamedAgain = 6;  // of the records after its return

// One run, and what its history says.
struct Run {
  const Scenario& scenario;
  const Outcome& outcome;

  std::vector<Struck> struck(FaultKind kind) const {
    std::vector<Struck> those;
    std::ranges::copy_if(outcome.history.struck, std::back_inserter(those),
                         [&](const Struck& s) { return s.kind == kind; });
    return those;
  }
  std::uint64_t count(std::string_view counter) const {
    const auto found = outcome.counters.find(std::string(counter));
    return found == outcome.counters.end() ? 0 : found->second;
  }
  // Who is done serves nobody but who needs it.
  Nanoseconds end() const { return logged("run_finished").front().when; }
  std::vector<History::Logged> logged(std::string_view event) const {
    std::vector<History::Logged> those;
    std::ranges::copy_if(outcome.history.log, std::back_inserter(those),
                         [&](const auto& e) { return e.event == event; });
    return those;
  }
  bool logged(std::string_view event, std::uint32_t site, std::uint64_t step) const {
    return std::ranges::any_of(outcome.history.log, [&](const auto& e) {
      return e.event == event && e.site == name(site) &&
             e.outer_step == static_cast<std::int64_t>(step);
    });
  }
  bool has_session(std::uint32_t site, std::uint32_t peer, Nanoseconds when) const {
    bool up = false;
    for (const auto& e : outcome.history.log) {
      if (e.when > when) break;
      if (e.site != name(site) || e.peer != name(peer)) continue;
      if (e.event == "session_began") up = true;
      if (e.event == "session_ended") up = false;
    }
    return up;
  }
  static std::string name(std::uint32_t place) { return "s" + std::to_string(place + 1); }
  static bool names(const Record& record, std::uint32_t place) {
    return record.part_of(place + 1) != nullptr;
  }
};

struct Case {
  std::string name;
  bool same_bits = true;  // as in peace
  std::uint32_t sites = 2;
  std::function<void(Scenario&)> suffer;
  // What the row promises of a run; how often the run put that to the test: most runs must.
  std::function<std::uint64_t(const Run&)> promise;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

// Two sites need each other, of three two suffice.
Scenario calm(std::uint32_t sites) {
  Scenario s;
  s.name = "calm";
  s.sites = sites;
  s.min_sites = 2;
  s.outer_steps = 5;
  s.network.silent_deaths = 0;
  s.network.late_downs = 0;
  return s;
}

// --- Promises

void no_session_ends(const Run& run) {
  for (const auto& ended : run.logged("session_ended"))
    EXPECT_GT(ended.when, run.end()) << ended.line;
}

// When what broke with this connection was cut last, before the lanes had to be back.
Nanoseconds last_cut(const Run& run, const Struck& cut) {
  auto last = cut.from;
  for (const auto& other : run.struck(FaultKind::broken_connection))
    if (other.from > last && other.from < std::min(cut.until, last + kLaneBack)) last = other.from;
  return last;
}

// 1: both lanes are back within 10 s, both ways, of when the end is noticed. Of cuts in
// mid-transfer.
std::uint64_t lanes_back(const Run& run, Nanoseconds noticed_after) {
  for (const auto& cut : run.struck(FaultKind::broken_connection))
    EXPECT_LE(std::min(cut.until, run.end()), last_cut(run, cut) + noticed_after + kLaneBack)
        << seconds_of(cut.from);
  return run.count("chunks sent again");
}

// 2: what was on its way goes again, at most the credit window of each direction.
std::uint64_t cut_connections(const Run& run) {
  const auto cuts = run.struck(FaultKind::broken_connection).size();
  EXPECT_LE(run.count("chunks sent again"), 2 * run.scenario.window_chunks * cuts);
  no_session_ends(run);
  return lanes_back(run, 0);
}

std::uint64_t late_ends(const Run& run) { return lanes_back(run, 3 * kSecond); }

std::vector<Span> merged(std::vector<Span> spans) {
  std::ranges::sort(spans);
  std::vector<Span> all;
  for (const auto& span : spans)
    if (!all.empty() && span.first <= all.back().second)
      all.back().second = std::max(all.back().second, span.second);
    else
      all.push_back(span);
  return all;
}

std::vector<Span> deaf(const Run& run, std::uint32_t site) {
  std::vector<Span> spans;
  for (const auto& cut : run.struck(FaultKind::partition))
    if (!cut.one_way || cut.other == site) spans.emplace_back(cut.from, cut.until);
  return merged(std::move(spans));
}

// 3 and 4: who hears nothing notices within 8 s; 1.5 s after the repair both have a session.
std::uint64_t silence(const Run& run) {
  std::uint64_t noticed = 0;
  std::vector<Span> any;
  for (const std::uint32_t site : {0U, 1U}) {
    for (const auto& [from, until] : deaf(run, site)) {
      any.emplace_back(from, until);
      if (std::min(until, run.end()) - from < kNoticed || !run.has_session(site, 1 - site, from))
        continue;
      EXPECT_FALSE(run.has_session(site, 1 - site, from + kNoticed))
          << Run::name(site) << " hears nothing from " << seconds_of(from) << " s on";
      ++noticed;
    }
  }
  any = merged(std::move(any));
  for (std::size_t i = 0; i < any.size(); ++i) {
    const auto soon = any[i].second + kFlowing;
    if (any[i].second >= run.end() - kFlowing || (i + 1 < any.size() && any[i + 1].first < soon))
      continue;
    for (const std::uint32_t site : {0U, 1U})
      EXPECT_TRUE(run.has_session(site, 1 - site, soon))
          << Run::name(site) << ", repaired at " << seconds_of(any[i].second) << " s";
  }
  return noticed;
}

// 5
std::uint64_t bad_lines(const Run& run) {
  no_session_ends(run);
  return run.count("messages lost or repeated");
}

// 6: no session ends, and nobody is dropped, also where bytes take longer than the silence that
// would end one.
std::uint64_t slow_lines(const Run& run) {
  no_session_ends(run);
  std::uint64_t slow = 0;
  for (const auto& [step, decided] : run.outcome.history.decided) {
    EXPECT_EQ(decided.record.next_view.members.size(), run.scenario.sites) << "step " << step;
    Nanoseconds first = decided.when;
    for (const auto& contributed : run.logged("contributed"))
      if (contributed.outer_step == static_cast<std::int64_t>(step))
        first = std::min(first, contributed.when);
    for (const auto& line : run.struck(FaultKind::slow_access))
      if (line.from < decided.when && line.until > first && decided.when - first > 6 * kSecond) {
        ++slow;
        break;
      }
  }
  return slow;
}

// Nobody else was down or stood still then, or has come back just now, which may be waited for.
bool alone(const Run& run, const Struck& victim) {
  return std::ranges::none_of(run.outcome.history.struck, [&](const Struck& other) {
    return other.site != victim.site && other.from < victim.from + kGoneOnWithout &&
           (other.until == kForGood || other.until + 10 * kSecond > victim.from);
  });
}

// 7 and 8: the others decide a step without one that is gone, or stands still. Which one.
std::optional<std::uint64_t> goes_on_without(const Run& run, const Struck& victim) {
  const auto& decided = run.outcome.history.decided;
  if (decided.empty() || decided.begin()->second.when >= victim.from ||
      std::min(victim.until, run.end()) < victim.from + kGoneOnWithout || !alone(run, victim))
    return std::nullopt;
  for (const auto& [step, each] : decided) {
    if (each.when <= victim.from) continue;
    if (each.record.final_step && Run::names(each.record, victim.site)) return std::nullopt;
    if (Run::names(each.record, victim.site)) continue;
    EXPECT_LE(each.when, victim.from + kGoneOnWithout) << seconds_of(victim.from);
    return step;
  }
  ADD_FAILURE() << "nothing is decided without " << Run::name(victim.site);
  return std::nullopt;
}

// Who is back takes part again, in one of the next records.
bool takes_part_again(const Run& run, const Struck& victim) {
  std::ptrdiff_t records = 0;
  for (const auto& [step, each] : run.outcome.history.decided) {
    if (each.when <= victim.until) continue;
    if (Run::names(each.record, victim.site)) return true;
    for (const auto& again : run.outcome.history.struck)
      if (again.site == victim.site && again.from >= victim.until && again.from < each.when)
        return false;  // not for long
    if (++records < kNamedAgain) continue;
    ADD_FAILURE() << Run::name(victim.site) << " was back at " << seconds_of(victim.until)
                  << " s, and no record names it up to step " << step;
    return false;
  }
  return false;
}

std::uint64_t killed(const Run& run) {
  std::uint64_t without = 0;
  for (const auto& victim : run.struck(FaultKind::crash))
    if (goes_on_without(run, victim)) ++without;
  return without;
}

// What it contributed to that step rides in its next contribution, which check_work() weighs.
std::uint64_t stands_still(const Run& run) {
  std::uint64_t carried = 0;
  for (const auto& victim : run.struck(FaultKind::pause)) {
    const auto step = goes_on_without(run, victim);
    if (!step) continue;
    takes_part_again(run, victim);
    if (!run.logged("contributed", victim.site, *step)) continue;
    EXPECT_TRUE(run.logged("contribution_carried", victim.site, *step))
        << Run::name(victim.site) << ", step " << *step;
    ++carried;
  }
  return carried;
}

// 28: a start finds at least what had been said to be saved. Of how many with torn files.
std::uint64_t verified_state(const Run& run) {
  std::uint64_t torn = 0;
  for (const auto& crash : run.struck(FaultKind::crash)) {
    const auto loaded = std::ranges::find_if(run.outcome.history.log, [&](const auto& e) {
      return e.when >= crash.until && e.site == Run::name(crash.site) && e.event == "state_loaded";
    });
    if (loaded == run.outcome.history.log.end()) continue;
    if (crash.saved > 0) {
      EXPECT_GE(loaded->outer_step, static_cast<std::int64_t>(crash.saved)) << loaded->line;
    }
    torn += crash.torn > 0;
  }
  return torn;
}

// 9
std::uint64_t returns(const Run& run) {
  verified_state(run);
  std::uint64_t back = 0;
  for (const auto& victim : run.struck(FaultKind::crash))
    if (takes_part_again(run, victim)) ++back;
  return back;
}

// 20
std::uint64_t slow_reader(const Run& run) {
  // What was sent again, since nothing was heard of it for long, has no credit of its own.
  EXPECT_LE(run.count("most chunks of a peer not yet checked"), 2 * run.scenario.window_chunks);
  no_session_ends(run);
  return std::min(run.count("events at which chunks waited for credit"), run.count("slow disks"));
}

std::uint64_t full_disks(const Run& run) {
  verified_state(run);
  return run.count("full disks");
}

bool expired(const Run& run, std::uint32_t site, Nanoseconds when) {
  Nanoseconds calendar = when;
  if (when < run.scenario.trouble_ends)
    for (const auto& fault : run.outcome.faults)
      if (fault.kind == FaultKind::clock_jump && fault.site == site && fault.when <= when)
        calendar += fault.length;
  return calendar >= run.scenario.roster_expires;
}

bool has_peers_session(const Run& run, const History::Logged& ended) {
  const std::uint32_t site = ended.site == Run::name(0) ? 0 : 1;
  return run.has_session(1 - site, site, ended.when);
}

// 30: sessions that are up go on, over new connections too, whatever calendars say.
std::uint64_t expiry_ends_nothing(const Run& run) {
  // One that only one end has is none yet.
  for (const auto& ended : run.logged("session_ended"))
    EXPECT_FALSE(ended.when <= run.end() && has_peers_session(run, ended)) << ended.line;
  return static_cast<std::uint64_t>(
      std::ranges::count_if(run.struck(FaultKind::broken_connection), [&](const Struck& cut) {
        return cut.until < run.end() && (expired(run, 0, cut.until) || expired(run, 1, cut.until));
      }));
}

// And none begins, for no other reason, where it is later than the roster's end.
std::uint64_t expiry_refuses_sessions(const Run& run) {
  for (const auto& began : run.logged("session_began"))
    for (std::uint32_t site = 0; site < run.scenario.sites; ++site) {
      if (began.site == Run::name(site)) {
        EXPECT_FALSE(expired(run, site, began.when)) << began.line;
      }
    }
  const auto refused = run.logged("session_refused");
  for (const auto& each : refused)
    EXPECT_THAT(each.line, testing::HasSubstr("the roster has expired"));
  return refused.size();
}

// 31: new files and connections are refused; what is up and under way stays.
std::uint64_t no_descriptors(const Run& run) {
  // A gateway that can write neither votes nor records ends, and is started again.
  for (const auto& ended : run.logged("session_ended"))
    EXPECT_TRUE(std::ranges::any_of(run.struck(FaultKind::crash), [&](const Struck& crash) {
      return crash.from <= ended.when && ended.when <= crash.until + kNoticed;
    })) << ended.line;
  if (!run.struck(FaultKind::crash).empty()) return 0;
  return run.logged("disk_failed").size();
}

std::uint64_t connections_without_descriptors(const Run& run) {
  std::uint64_t waited = 0;
  for (const auto& cut : run.struck(FaultKind::broken_connection)) {
    auto since = last_cut(run, cut);
    for (const auto& lack : run.struck(FaultKind::no_descriptors))
      if ((lack.site == cut.site || lack.site == cut.other) && lack.from <= since + kLaneBack)
        since = std::max(since, lack.until);
    EXPECT_LE(std::min(cut.until, run.end()), std::min(since, run.end()) + kLaneBack)
        << seconds_of(cut.from);
    waited += since > cut.from;
  }
  return waited;
}

// --- The rows

// The root of the last state, from the event of the last step that was applied.
std::string last_root(const Outcome& outcome) {
  const auto& log = outcome.history.log;
  for (auto event = log.rbegin(); event != log.rend(); ++event) {
    constexpr std::string_view kRoot = "\"root\":\"";
    if (event->event != "step_applied") continue;
    const auto at = event->line.find(kRoot);
    if (at != std::string::npos) return event->line.substr(at + kRoot.size(), 64);
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
  auto peace = calm(row.sites);
  auto scenario = peace;
  row.suffer(scenario);
  peace.outer_steps = scenario.outer_steps;
  peace.elements = scenario.elements;
  std::uint64_t tested = 0;
  for (std::uint64_t seed = 1; seed <= seeds(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    scenario.network.tcp =
        std::array{SimulatedTcp::unseen, SimulatedTcp::reno, SimulatedTcp::bbr}[seed % 3];
    const auto outcome = run_federation(scenario, seed, /*keep_history=*/true);
    ASSERT_THAT(outcome.violations, testing::IsEmpty());
    ASSERT_TRUE(outcome.finished);
    if (row.promise({scenario, outcome}) > 0) ++tested;
    if (!row.same_bits) continue;
    const auto in_peace = run_federation(peace, seed, /*keep_history=*/true);
    ASSERT_EQ(last_root(in_peace).size(), 64U);
    ASSERT_EQ(last_root(outcome), last_root(in_peace));
  }
  RecordProperty("tested", static_cast<int>(tested));
  constexpr std::uint64_t kEnoughToTell = 10;
  if (seeds() < kEnoughToTell) return;
  EXPECT_GE(2 * tested, seeds()) << "runs that put the promise to the test";
}

INSTANTIATE_TEST_SUITE_P(
    Rows, FaultMatrix,
    testing::Values(
        // A flipped bit ends the connection: nothing else comes through a seal.
        Case{"R1_R2_cut_connections", true, 2,
             [](Scenario& s) {
               s.broken_connections = 5;
               s.elements = 8'000;
               s.window_chunks = 8;
               s.network.bytes_per_second = 15e3;
             },
             cut_connections},
        Case{"R2_connections_whose_end_is_noticed_late", true, 2,
             [](Scenario& s) {
               s.broken_connections = 4;
               s.elements = 8'000;
               s.window_chunks = 8;
               s.network.bytes_per_second = 15e3;
               s.network.late_downs = 0.5;
             },
             late_ends},
        Case{"R3_partitions", true, 2,
             [](Scenario& s) {
               s.partitions = 2;
               s.one_way = 0;
             },
             silence},
        Case{"R4_one_way_partitions", true, 2,
             [](Scenario& s) {
               s.partitions = 2;
               s.one_way = 1;
             },
             silence},
        Case{"R5_loss_reordering_repetition", true, 2,
             [](Scenario& s) {
               s.network.loss = s.network.duplicate = s.network.reorder = 0.01;
               s.network.packet_loss = 0.01;
             },
             bad_lines},
        Case{"R6_hundredth_of_the_rate", true, 2,
             [](Scenario& s) {
               s.slow_access = 4;
               s.outer_steps = 4;
               s.elements = 20'000;
               s.network.bytes_per_second = 500e3;
             },
             slow_lines},
        Case{"R6_hundredth_of_the_rate_of_three", false, 3,
             [](Scenario& s) {
               s.slow_access = 3;
               s.absent_steps = SyncOptions().absent_steps;
               s.outer_steps = 5;
               s.elements = 20'000;
               s.network.bytes_per_second = 1e6;
               // In a long one what each says waits behind what the others send.
               s.network.queue_bytes = 1 << 14;
             },
             slow_lines},
        Case{"R7_killed", false, 3,
             [](Scenario& s) {
               s.crashes = 0.8;
               s.gone_for = 18 * kSecond;
               s.outer_steps = 20;
             },
             killed},
        Case{"R8_stands_still", false, 3,
             [](Scenario& s) {
               s.pauses = 0.7;
               s.gone_for = 18 * kSecond;
               s.outer_steps = 40;
               s.trouble_ends = 150 * kSecond;
             },
             stands_still},
        Case{"R2_R9_killed_and_started_again", false, 3,
             [](Scenario& s) {
               s.crashes = 2;
               s.killed_again = 0.5;
               s.outer_steps = 14;
             },
             returns},
        Case{"R20_slow_reader", true, 2,
             [](Scenario& s) {
               s.slow_disks = 6;
               s.elements = 8'000;
               s.window_chunks = 4;
               s.disk.bytes_per_second = 1e6;
             },
             slow_reader},
        // What a site contributes while its own disk is full may be later, and more, work.
        Case{"R28_full_disk", false, 3, [](Scenario& s) { s.disk_full = 4; }, full_disks},
        Case{"R28_torn_writes", false, 3,
             [](Scenario& s) {
               s.crashes = 3;
               s.disk_full = 2;
             },
             verified_state},
        Case{"R30_calendars_that_jump", true, 2,
             [](Scenario& s) {
               s.clock_jumps = 6;
               s.roster_expires = 900 * kSecond;
               s.broken_connections = 6;
               s.outer_steps = 8;
             },
             expiry_ends_nothing},
        Case{"R30_calendars_that_jump_while_sites_are_killed", false, 3,
             [](Scenario& s) {
               s.clock_jumps = 6;
               s.roster_expires = 900 * kSecond;
               s.crashes = 2;
             },
             expiry_refuses_sessions},
        Case{"R31_no_descriptors", true, 2,
             [](Scenario& s) {
               s.no_descriptors = 4;
               s.outer_steps = 8;
             },
             no_descriptors},
        // New connections are needed, too.
        Case{"R31_no_descriptors_when_connections_end", true, 2,
             [](Scenario& s) {
               s.no_descriptors = 4;
               s.broken_connections = 4;
               s.outer_steps = 8;
             },
             connections_without_descriptors}),
    [](const auto& chosen) { return chosen.param.name; });

}  // namespace
}  // namespace isthmus::inter::sim
