// Conditions that last at the sites of a simulated federation, and between them, until they heal:
// full and slow disks, slow lines and ranks, partitions, bursts of loss, pauses.
#include <algorithm>
#include <functional>
#include <numeric>

#include "inter/sim/federation_run.h"

namespace isthmus::inter::sim {
namespace {

constexpr Nanoseconds kEndedAgain = 60 * kSecond;

double product(const std::vector<double>& factors) {
  return std::accumulate(factors.begin(), factors.end(), 1.0, std::multiplies<>());
}

double worst(const std::vector<double>& factors) {
  return factors.empty() ? 1 : std::ranges::max(factors);
}

void remove_one(std::vector<double>& factors, double factor) {
  if (const auto found = std::ranges::find(factors, factor); found != factors.end())
    factors.erase(found);
}

}  // namespace

void FederationRun::set_disk(std::uint32_t index) {
  auto& site = sites_[index];
  site.disk->set_faults({.lying = scenario_.bug == PlantedBug::lying_disk,
                         .failing = site.disk_full > 0 ? 0.5 : 0,
                         .no_descriptors = site.no_descriptors > 0});
  // Of several the worst: what is begun before they heal must end some time.
  const double slower = worst(site.disk_slow);
  auto speed = scenario_.disk;
  speed.operation = static_cast<Nanoseconds>(static_cast<double>(speed.operation) * slower);
  speed.sync = static_cast<Nanoseconds>(static_cast<double>(speed.sync) * slower);
  speed.bytes_per_second /= slower;
  site.disk->set_speed(speed);
}

Effects::Number FederationRun::strike(const Fault& fault, std::string counter,
                                      std::function<bool()> hit) {
  return effects_.begin({.kind = fault.kind,
                         .site = fault.site,
                         .other = fault.other,
                         .one_way = fault.one_way,
                         .from = simulation_.now()},
                        std::move(counter), std::move(hit));
}

// Something counted has grown, once it is asked for.
std::function<bool()> FederationRun::more(std::function<std::uint64_t()> count) {
  const auto before = count();
  return [count = std::move(count), before] { return count() > before; };
}

bool FederationRun::run_both(std::uint32_t a, std::uint32_t b) const {
  return sites_[a].process && sites_[b].process;
}

bool FederationRun::lacks_connection(std::uint32_t index) const {
  for (std::uint32_t other = 0; other < sites_.size(); ++other)
    for (const auto lane : {Lane::control, Lane::bulk})
      if (other != index && run_both(index, other) &&
          network_.stream(gateway_at(index), gateway_at(other), lane) == nullptr)
        return true;
  return false;
}

void FederationRun::fill_disk(const Fault& fault) {
  ++sites_[fault.site].disk_full;
  set_disk(fault.site);
  const auto number =
      strike(fault, "full disks",
             more([this, i = fault.site] { return sites_[i].disk->counters().refused_writes; }));
  simulation_.after(fault.length, -1, [this, number, i = fault.site] {
    effects_.end(number, simulation_.now());
    --sites_[i].disk_full;
    set_disk(i);
  });
}

void FederationRun::exhaust_descriptors(const Fault& fault) {
  const auto set = [this, i = fault.site] {
    set_disk(i);
    network_.refuse_connections(i + 1, sites_[i].no_descriptors > 0);
  };
  ++sites_[fault.site].no_descriptors;
  set();
  const auto lacked = more([this, i = fault.site] { return sites_[i].lacked_descriptors; });
  const auto number = strike(fault, "times without descriptors", [this, lacked, i = fault.site] {
    return lacked() || lacks_connection(i);
  });
  simulation_.after(fault.length, -1, [this, set, number, i = fault.site] {
    effects_.end(number, simulation_.now());
    --sites_[i].no_descriptors;
    set();
  });
}

void FederationRun::slow_disk(const Fault& fault) {
  sites_[fault.site].disk_slow.push_back(fault.factor);
  set_disk(fault.site);
  const auto number =
      strike(fault, "slow disks", more([this, i = fault.site] {
               const auto& site = sites_[i];
               const auto in_this_life = site.process ? site.process->waited_for_disk() : 0;
               return static_cast<std::uint64_t>(site.waited_for_disk + in_this_life);
             }));
  simulation_.after(fault.length, -1, [this, number, &fault] {
    effects_.end(number, simulation_.now());
    remove_one(sites_[fault.site].disk_slow, fault.factor);
    set_disk(fault.site);
  });
}

void FederationRun::slow_access(const Fault& fault) {
  const auto set = [this, i = fault.site] {
    network_.slow_down(i + 1, worst(sites_[i].access_slow));
  };
  sites_[fault.site].access_slow.push_back(fault.factor);
  set();
  const auto number = strike(fault, "slow access links", more([this, i = fault.site] {
                               std::uint64_t bytes = 0;
                               if (const auto& process = sites_[i].process)
                                 for (const auto& peer : sites_)
                                   bytes += process->bytes_received({peer.id, 0});
                               return bytes;
                             }));
  simulation_.after(fault.length, -1, [this, set, number, &fault] {
    effects_.end(number, simulation_.now());
    remove_one(sites_[fault.site].access_slow, fault.factor);
    set();
  });
}

void FederationRun::slow_ranks(const Fault& fault) {
  const auto set = [this, i = fault.site] {
    sites_[i].ranks->slow_down(product(sites_[i].ranks_slow));
  };
  sites_[fault.site].ranks_slow.push_back(fault.factor);
  set();
  const auto number =
      strike(fault, "slow ranks",
             more([this, i = fault.site] { return sites_[i].ranks->slow_computations(); }));
  if (fault.length == kForGood) return;
  simulation_.after(fault.length, -1, [this, set, number, &fault] {
    effects_.end(number, simulation_.now());
    remove_one(sites_[fault.site].ranks_slow, fault.factor);
    set();
  });
}

void FederationRun::partition(const Fault& fault) {
  const auto a = gateway_at(fault.site), b = gateway_at(fault.other);
  std::vector<std::pair<GatewayId, GatewayId>> ways = {{a, b}};
  if (!fault.one_way) ways.emplace_back(b, a);
  for (const auto& [from, to] : ways) {
    ++cuts_[{from, to}];
    network_.cut(from, to, true);
  }
  // Two that run speak every second, or try to.
  const bool now = run_both(fault.site, fault.other);
  const auto number =
      strike(fault, fault.one_way ? "one-way partitions" : "partitions",
             [this, now, &fault] { return now || run_both(fault.site, fault.other); });
  simulation_.after(fault.length, -1, [this, ways, number] {
    effects_.end(number, simulation_.now());
    for (const auto& [from, to] : ways)
      if (--cuts_[{from, to}] == 0 && !stands_cut(from, to)) network_.cut(from, to, false);
  });
}

void FederationRun::worsen_network(const Fault& fault) {
  bursts_.push_back(fault.factor);
  set_network();
  const auto number =
      strike(fault, "bursts of loss",
             more([this] { return network_.counters().lost + network_.counters().duplicated; }));
  simulation_.after(fault.length, -1, [this, number, &fault] {
    effects_.end(number, simulation_.now());
    remove_one(bursts_, fault.factor);
    set_network();
  });
}

void FederationRun::set_network() {
  auto faults = scenario_.network;
  if (!trouble()) faults.loss = std::min(faults.loss, 0.01);
  for (const auto burst : bursts_) {
    faults.loss = std::max(faults.loss, burst);
    faults.duplicate = std::max(faults.duplicate, burst / 2);
    faults.reorder = std::max(faults.reorder, burst);
  }
  network_.set_faults(faults);
}

// Whatever happens to it meanwhile happens when it goes on.
void FederationRun::pause(const Fault& fault) {
  auto& site = sites_[fault.site];
  if (!site.process || site.dying || site.leaving || site.paused) return;
  site.paused = true;
  site.process->pause_wire();
  site.pause = strike(fault, "pauses", [this, &site] {
    const auto timer = site.process ? site.process->next_timer() : std::nullopt;
    return !site.held_up.empty() || (timer && *timer < simulation_.now());
  });
  simulation_.after(fault.length, -1, [this, i = fault.site, starts = site.starts] {
    if (sites_[i].paused && sites_[i].starts == starts) resume(i);
  });
}

void FederationRun::resume(std::uint32_t index) {
  auto& site = sites_[index];
  site.paused = false;
  effects_.end(site.pause, simulation_.now());
  site.process->resume_wire();
  for (auto& what : std::exchange(site.held_up, {}))
    simulation_.after(0, static_cast<int>(index), std::move(what));
  simulation_.after(0, static_cast<int>(index), [] {});
}

void FederationRun::heal_all() {
  set_network();
  for (auto& site : sites_) {
    site.crash_at.reset();
    site.clock->set_right();
  }
  start_ended_again();
}

// Who returns when all others have ended needs one that serves the end, or says which one is right:
// its operator starts them again.
void FederationRun::start_ended_again() {
  simulation_.after(kEndedAgain, -1, [this] { start_ended_again(); });
  const bool needed = std::any_of(sites_.begin(), sites_.end(), [](const Site& site) {
    return !site.gone_for_good && site.process && !site.process->gateway().told_the_end();
  });
  if (!needed) return;
  for (std::uint32_t i = 0; i < sites_.size(); ++i)
    if (sites_[i].process && sites_[i].process->ended() && !sites_[i].process->failure()) {
      count("ended gateways started again");
      crash(i);
    }
}

bool FederationRun::stands_cut(GatewayId a, GatewayId b) const {
  const auto last = scenario_.sites;
  if (scenario_.blind_pair && last > 2 && a.site + b.site == 3) return true;
  if (!scenario_.narrow_site || (a.site != last && b.site != last)) return false;
  const auto through = seen_by_narrow_site() + 1;
  return a.site != through && b.site != through;
}

std::uint32_t FederationRun::seen_by_narrow_site() const {
  return (scenario_.voters < scenario_.sites ? scenario_.voters : scenario_.sites - 1) - 1;
}

void FederationRun::apply_standing_cuts() {
  for (const auto& a : roster_.sites)
    for (const auto& b : roster_.sites)
      if (a.id != b.id && stands_cut({a.id, 0}, {b.id, 0}))
        network_.cut({a.id, 0}, {b.id, 0}, true);
}

}  // namespace isthmus::inter::sim
