#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "base/counted.h"
#include "inter/sim/fault.h"

namespace isthmus::inter::sim {
namespace {

constexpr std::string_view kPoints[] = {
    "before_close", "feedback_written", "between_vote_and_accept",
    "saving",       "merging",          "state_transfer",
    "final"};

// By OutagePoint; those that every voter reaches in every step.
constexpr std::string_view kOutagePoints[] = {
    "", "", "before_close", "feedback_written", "between_vote_and_accept", "saving", "merging"};

constexpr Nanoseconds kDiskFull = 15 * kSecond;
constexpr Nanoseconds kAwayMax = 60 * kSecond;

Nanoseconds nanoseconds(double seconds) { return static_cast<Nanoseconds>(seconds * 1e9); }

// One draw for each kind of fault and site, so that a rate changes the faults of its kind alone.
class Planner {
 public:
  Planner(const Scenario& scenario, const Random& random) : scenario_(scenario), random_(random) {}

  std::vector<Fault> plan() {
    for (std::uint32_t i = 0; i < scenario_.sites; ++i) {
      plan_site(i);
      plan_memory_errors(i);
    }
    auto outages = random_.split("outages");
    for (const auto when : times(outages, scenario_.outages)) outage(outages, when);
    auto bursts = random_.split("bad network");
    for (const auto when : times(bursts, scenario_.bad_network)) bad_network(bursts, when);
    plan_mixture();
    plan_once();
    std::stable_sort(all_.begin(), all_.end(), [](const Fault& a, const Fault& b) {
      return (a.when == kAtAThird ? kForGood : a.when) < (b.when == kAtAThird ? kForGood : b.when);
    });
    return std::move(all_);
  }

 private:
  std::vector<Nanoseconds> times(Random& draws, double rate_per_minute) const {
    const auto minutes = seconds_of(scenario_.trouble_ends) / 60;
    std::vector<Nanoseconds> when;
    double t = 0;
    while (rate_per_minute > 0) {
      t += -std::log(1 - draws.uniform()) / rate_per_minute;
      if (t >= minutes) break;
      when.push_back(nanoseconds(t * 60));
    }
    return when;
  }
  template <class Plan>
  void at_times(std::string_view name, std::uint32_t site, double rate_per_minute,
                const Plan& plan) {
    auto draws = random_.split(name).split(site);
    for (const auto when : times(draws, rate_per_minute)) plan(draws, when, site);
  }
  Fault& add(FaultKind kind, Nanoseconds when, std::uint32_t site = 0) {
    auto& fault = all_.emplace_back();
    fault.kind = kind;
    fault.when = when;
    fault.site = site;
    return fault;
  }
  std::uint32_t another(Random& draws, std::uint32_t site) const {
    return (site + 1 + static_cast<std::uint32_t>(draws.below(scenario_.sites - 1))) %
           scenario_.sites;
  }

  void plan_site(std::uint32_t site) {
    const auto& s = scenario_;
    auto start = random_.split("start").split(site);
    if (start.chance(s.slow_sites)) {
      auto& fault = add(FaultKind::slow_ranks, 0, site);
      fault.factor = 10;
      fault.length = kForGood;
    }
    if (site > 0 && site >= s.voters && start.chance(s.absent_start))
      add(FaultKind::late_start, nanoseconds(30 + 30 * start.uniform()), site);
    using D = Random&;
    at_times("crashes", site, s.crashes, [&](D d, auto when, auto i) { crash(d, when, i); });
    at_times("wipes", site, s.wipes, [&](D d, auto when, auto i) { wipe(d, when, i); });
    at_times("full", site, s.disk_full, [&](D, auto when, auto i) { disk_full(when, i); });
    at_times("descriptors", site, s.no_descriptors,
             [&](D d, auto when, auto i) { no_descriptors(d, when, i); });
    at_times("slow disk", site, s.slow_disks,
             [&](D d, auto when, auto i) { slow_disk(d, when, i); });
    at_times("pauses", site, s.pauses, [&](D d, auto when, auto i) { pause(d, when, i); });
    at_times("clocks", site, s.clock_jumps,
             [&](D d, auto when, auto i) { clock_jump(d, when, i); });
    at_times("access", site, s.slow_access,
             [&](D d, auto when, auto i) { slow_access(d, when, i); });
    at_times("leaves", site, s.leaves, [&](D d, auto when, auto i) { leave(d, when, i); });
    if (s.sites < 2) return;
    at_times("partitions", site, s.partitions,
             [&](D d, auto when, auto i) { partition(d, when, i); });
    at_times("broken", site, s.broken_connections,
             [&](D d, auto when, auto i) { broken_connection(d, when, i); });
  }

  // --- Each kind

  void crash(Random& draws, Nanoseconds when, std::uint32_t site) {
    auto& fault = add(FaultKind::crash, when, site);
    if (draws.chance(0.5)) {
      fault.point = kPoints[draws.below(std::size(kPoints))];
      fault.count = 1;
      while (draws.chance(scenario_.killed_again)) ++fault.count;
    }
    fault.vote_lost = draws.chance(scenario_.votes_lost);
  }
  void wipe(Random& draws, Nanoseconds when, std::uint32_t site) {
    add(FaultKind::wipe, when, site).wiped_again = draws.chance(scenario_.wiped_again);
  }
  void outage(Random& draws, Nanoseconds when) {
    auto& fault = add(FaultKind::outage, when);
    fault.count = scenario_.outage_sites == 0 ? scenario_.sites : scenario_.outage_sites;
    auto point = scenario_.outage_point;
    if (point == OutagePoint::drawn) point = static_cast<OutagePoint>(1 + draws.below(6));
    fault.point = kOutagePoints[static_cast<std::size_t>(point)];
    fault.how = scenario_.outage_return;
    if (fault.how == OutageReturn::drawn) fault.how = static_cast<OutageReturn>(1 + draws.below(3));
  }
  void disk_full(Nanoseconds when, std::uint32_t site) {
    add(FaultKind::disk_full, when, site).length = kDiskFull;
  }
  void no_descriptors(Random& draws, Nanoseconds when, std::uint32_t site) {
    add(FaultKind::no_descriptors, when, site).length = nanoseconds(1 + 14 * draws.uniform());
  }
  void slow_disk(Random& draws, Nanoseconds when, std::uint32_t site) {
    auto& fault = add(FaultKind::slow_disk, when, site);
    fault.length = nanoseconds(5 + 25 * draws.uniform());
    fault.factor = 10 * (1 + static_cast<double>(draws.below(10)));
  }
  void pause(Random& draws, Nanoseconds when, std::uint32_t site) {
    add(FaultKind::pause, when, site).length =
        std::max(scenario_.gone_for, nanoseconds(45 * draws.uniform() * draws.uniform()));
  }
  void clock_jump(Random& draws, Nanoseconds when, std::uint32_t site) {
    add(FaultKind::clock_jump, when, site).length = nanoseconds(7200 * draws.uniform() - 3600);
  }
  void slow_access(Random& draws, Nanoseconds when, std::uint32_t site) {
    auto& fault = add(FaultKind::slow_access, when, site);
    fault.length = nanoseconds(5 + 25 * draws.uniform());
    fault.factor = 100;
  }
  void leave(Random& draws, Nanoseconds when, std::uint32_t site) {
    add(FaultKind::leave, when, site).length =
        nanoseconds(1 + seconds_of(kAwayMax) * draws.uniform() * draws.uniform());
  }
  void partition(Random& draws, Nanoseconds when, std::uint32_t site) {
    auto& fault = add(FaultKind::partition, when, site);
    fault.other = another(draws, site);
    fault.one_way = draws.chance(scenario_.one_way);
    fault.length = nanoseconds(30 * draws.uniform());
  }
  void broken_connection(Random& draws, Nanoseconds when, std::uint32_t site) {
    add(FaultKind::broken_connection, when, site).other = another(draws, site);
  }
  void bad_network(Random& draws, Nanoseconds when) {
    auto& fault = add(FaultKind::bad_network, when);
    fault.length = nanoseconds(2 + 18 * draws.uniform());
    fault.factor = 0.05 + 0.45 * draws.uniform();
  }
  void slow_ranks(Random& draws, Nanoseconds when, std::uint32_t site) {
    auto& fault = add(FaultKind::slow_ranks, when, site);
    fault.length = nanoseconds(40 * draws.uniform());
    fault.factor = 10;
  }
  void dead_ranks(Random& draws, Nanoseconds when, std::uint32_t site) {
    auto& fault = add(FaultKind::dead_ranks, when, site);
    fault.length = nanoseconds(60 * draws.uniform());
    fault.hang = draws.chance(0.5);
  }
  // The same step may be computed wrongly again, in another way; not for ever.
  void plan_memory_errors(std::uint32_t site) {
    if (scenario_.memory_errors <= 0) return;
    auto draws = random_.split("memory").split(site);
    for (std::uint64_t step = 1; step <= scenario_.outer_steps; ++step) {
      std::uint32_t times = 0;
      while (times < scenario_.memory_errors_max &&
             draws.chance(times == 0 ? scenario_.memory_errors : scenario_.memory_errors / 2))
        ++times;
      if (times == 0) continue;
      auto& fault = add(FaultKind::memory_error, 0, site);
      fault.step = step;
      fault.count = times;
    }
  }

  // --- All kinds

  void plan_mixture() {
    if (scenario_.any_fault_every <= 0) return;
    auto draws = random_.split("mixture");
    const double rate = 60 / seconds_of(scenario_.any_fault_every);
    for (const auto when : times(draws, rate)) any(draws, when);
  }
  void any(Random& draws, Nanoseconds when) {
    const auto site = static_cast<std::uint32_t>(draws.below(scenario_.sites));
    const bool alone = scenario_.sites == 1;
    switch (draws.below(20)) {
      case 0:
      case 1:
      case 2:
      case 3:
        return crash(draws, when, site);
      case 4:
        return wipe(draws, when, site);
      case 5:
        outage(draws, when);
        all_.back().site = site;
        all_.back().count = 1 + static_cast<std::uint32_t>(draws.below(scenario_.sites));
        return;
      case 6:
        return leave(draws, when, site);
      case 7:
        return disk_full(when, site);
      case 8:
        return no_descriptors(draws, when, site);
      case 9:
        return slow_disk(draws, when, site);
      case 10:
      case 11:
      case 12:
        if (!alone) partition(draws, when, site);
        return;
      case 13:
        if (!alone) broken_connection(draws, when, site);
        return;
      case 14:
        return slow_access(draws, when, site);
      case 15:
        return bad_network(draws, when);
      case 16:
        return slow_ranks(draws, when, site);
      case 17:
        return dead_ranks(draws, when, site);
      case 18:
        return pause(draws, when, site);
      default:
        return clock_jump(draws, when, site);
    }
  }

  void plan_once() {
    const auto& s = scenario_;
    const auto last = s.sites - 1;
    if (s.roster_changes) add(FaultKind::newer_roster, kAtAThird).drops_a_site = s.roster_drops;
    if (s.majority_lost)
      add(FaultKind::lost_majority, kAtAThird).disks_alone =
          random_.split("lost majority").chance(0.5);
    if (s.other_settings) add(FaultKind::other_settings, kAtAThird);
    if (s.dead_ranks > 0) {
      auto& fault = add(FaultKind::dead_ranks, kAtAThird, last);
      fault.length = s.dead_ranks >= s.limit ? kForGood : s.dead_ranks;
      fault.hang = random_.split("dead ranks").chance(0.5);
    }
    for (std::uint32_t other = 0; s.away > 0 && other < last; ++other) {
      auto& fault = add(FaultKind::partition, kAtAThird, last);
      fault.other = other;
      fault.length = s.away;
    }
    if (s.narrow_vote_lost) add(FaultKind::lost_vote, kAtAThird, last);
    if (s.one_leaves_for_good) add(FaultKind::leave, kAtAThird, last).length = kForGood;
  }

  const Scenario& scenario_;
  const Random& random_;
  std::vector<Fault> all_;
};

std::string lasting(const Fault& fault) {
  return fault.length == kForGood ? std::string(" for good")
                                  : fmt::format(" for {:.1f} s", seconds_of(fault.length));
}

}  // namespace

std::vector<Fault> plan_faults(const Scenario& scenario, const Random& random) {
  return Planner(scenario, random).plan();
}

std::string time_text_of(const Fault& fault) {
  if (fault.when == kAtAThird) return "when a third of the run is done";
  return fmt::format("at {:.3f} s", seconds_of(fault.when));
}

std::string text_of(const Fault& fault) {
  const auto site = fmt::format("s{}", fault.site + 1);
  const auto for_so_long = lasting(fault);
  switch (fault.kind) {
    case FaultKind::crash: {
      auto text = site + " crashes";
      if (!fault.point.empty()) text += fmt::format(" at the point \"{}\"", fault.point);
      if (fault.count > 1) text += fmt::format(", {} times", fault.count);
      if (fault.vote_lost) text += ", and its vote file is lost";
      return text;
    }
    case FaultKind::wipe:
      return site + " crashes, and its disk is empty" +
             (fault.wiped_again ? "; once more when it has its vote back" : "");
    case FaultKind::outage: {
      constexpr std::string_view kReturns[] = {
          "", "they come back within seconds", "the last one comes back late",
          "the last one never comes back, if its vote can be spared"};
      return fmt::format("{} from {} on crash{}; {}", counted(fault.count, "site"), site,
                         fault.point.empty()
                             ? std::string(" at once")
                             : fmt::format(", each at the point \"{}\"", fault.point),
                         kReturns[static_cast<std::size_t>(fault.how)]);
    }
    case FaultKind::leave:
      return site + " leaves" + for_so_long;
    case FaultKind::disk_full:
      return "half of the writes of " + site + " fail" + for_so_long;
    case FaultKind::no_descriptors:
      return site + " has no descriptors left" + for_so_long;
    case FaultKind::slow_disk:
      return fmt::format("the disk of {} is {} times as slow{}", site, fault.factor, for_so_long);
    case FaultKind::partition:
      return fmt::format("the way {} {} {} s{} is cut{}", fault.one_way ? "from" : "between", site,
                         fault.one_way ? "to" : "and", fault.other + 1, for_so_long);
    case FaultKind::broken_connection:
      return fmt::format("the connections of {} and s{} break", site, fault.other + 1);
    case FaultKind::slow_access:
      return fmt::format("the rate of the access link of {} is divided by {}{}", site, fault.factor,
                         for_so_long);
    case FaultKind::bad_network:
      return fmt::format("{:.0f} % more messages are lost and reordered, half as many repeated{}",
                         100 * fault.factor, for_so_long);
    case FaultKind::slow_ranks:
      return fmt::format("the ranks of {} compute {} times as long{}", site, fault.factor,
                         for_so_long);
    case FaultKind::dead_ranks:
      return fmt::format("the ranks of {} {}{}", site, fault.hang ? "hang" : "are dead",
                         for_so_long);
    case FaultKind::pause:
      return site + " stands still" + for_so_long;
    case FaultKind::clock_jump:
      return fmt::format("the calendar of {} jumps by {:+.1f} s", site, seconds_of(fault.length));
    case FaultKind::memory_error:
      return fmt::format("{} computes step {} wrongly{}", site, fault.step,
                         fault.count > 1 ? fmt::format(", {} times", fault.count) : std::string());
    case FaultKind::late_start:
      return site + " starts";
    case FaultKind::lost_vote:
      return site + " crashes, and its vote file is lost";
    case FaultKind::newer_roster:
      return fault.drops_a_site ? "a newer roster has s1 no longer, and gives all others a vote"
                                : "a newer roster gives all but s1 a vote";
    case FaultKind::lost_majority:
      return fault.disks_alone
                 ? "most voters lose their disks, and the operator says where to go on"
                 : "most voters are lost for good, and the operator says where to go on";
    case FaultKind::other_settings:
      return "all sites are started with other settings";
  }
  return {};
}

}  // namespace isthmus::inter::sim
