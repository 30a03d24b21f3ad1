// What happens to a simulated federation once, when a third of the run is done.
#include <fmt/format.h>

#include <algorithm>

#include "inter/sim/federation_run.h"

namespace isthmus::inter::sim {
namespace {

constexpr Nanoseconds kSettingsTried = 40 * kSecond;
// Until the operator says where to go on. Who is back without its disk has time to do harm.
constexpr Nanoseconds kMachinesMissed = 10 * kSecond, kDisksMissed = 40 * kSecond;

}  // namespace

// Each site is started again with the newer roster at a time of its own.
void FederationRun::change_roster(const Fault& fault) {
  const auto any = [&](const auto& is) { return std::any_of(sites_.begin(), sites_.end(), is); };
  // It would give votes to who never uses them.
  if (sites_.size() < 2 || any([](const Site& site) { return site.gone_for_good; })) return;
  if (any([](const Site& site) { return site.vote_lost_at.has_value(); })) {
    simulation_.after(kSecond, -1, [this, &fault] { change_roster(fault); });
    return;
  }
  newer_roster_ = roster_;
  newer_roster_.epoch = 2;
  newer_roster_.digest = security::blake2b(bytes_of("newer simulated roster"));
  for (auto& site : newer_roster_.sites) site.voter = site.id != 1;
  // As the operator is told to say where the first voters are not those of this roster.
  newer_roster_.run = records_.begin()->second.run;
  if (fault.drops_a_site) {
    const auto& first = newer_roster_.sites.front();
    newer_roster_.former.push_back(
        {.id = first.id, .name = first.name, .identity = first.identity});
    newer_roster_.sites.erase(newer_roster_.sites.begin());
    // It is switched off while some still have the older roster, and others have the newer one.
    simulation_.after(static_cast<Nanoseconds>(chance_.uniform() * 30e9), -1,
                      [this] { switch_off_first(); });
  }
  for (std::uint32_t i = fault.drops_a_site ? 1 : 0; i < sites_.size(); ++i)
    simulation_.after(static_cast<Nanoseconds>(chance_.uniform() * 20e9), -1,
                      [this, i] { read_newer_roster(i); });
}

// A site that has voted for the run's beginning and not learnt it yet refuses another roster: it
// gets it later.
void FederationRun::read_newer_roster(std::uint32_t index) {
  auto& site = sites_[index];
  const bool founds = roster_.find(site.id)->voter && !site.knew_run;
  if (founds && trouble()) {
    simulation_.after(kSecond, -1, [this, index] { read_newer_roster(index); });
    return;
  }
  site.has_newer_roster = true;
  crash(index);
}

void FederationRun::switch_off_first() {
  // Once the run is over its vote is not needed, also where others have lost theirs.
  const bool over = !records_.empty() && records_.rbegin()->second.final_step;
  if (!over && !majority_without(0)) {
    simulation_.after(kSecond, -1, [this] { switch_off_first(); });
    return;
  }
  kill(0);
  sites_[0].gone_for_good = true;
}

// Of the machines, or of their disks alone: then they are back within seconds, and know of no run.
void FederationRun::lose_majority(const Fault& fault) {
  const auto voters = std::min(scenario_.voters, scenario_.sites);
  // The survivors need what they have, and are enough for a step.
  const bool bearable = std::none_of(sites_.begin(), sites_.end(), [](const Site& site) {
    return site.gone_for_good || site.vote_lost_at || !site.process || site.dying ||
           !site.process->gateway().state() || site.process->gateway().finished();
  });
  if (!bearable || scenario_.sites < voters / 2 + 1 + scenario_.min_sites) {
    if (trouble()) simulation_.after(kSecond, -1, [this, &fault] { lose_majority(fault); });
    return;
  }
  for (std::uint32_t i = 0; i < voters / 2 + 1; ++i) {
    kill(i);
    if (!fault.disks_alone) {
      sites_[i].gone_for_good = true;
      continue;
    }
    lose_disk(sites_[i]);
    sites_[i].majority_disk = true;
    start_after(i, static_cast<Nanoseconds>((0.5 + 5 * chance_.uniform()) * 1e9));
  }
  if (fault.disks_alone)
    count(voters <= 2 ? "disks of all voters lost" : "disks of most voters lost");
  simulation_.after(fault.disks_alone ? kDisksMissed : kMachinesMissed, -1, [this] { recover(); });
}

// The operator asks those that have their disks for the newest state that any of them has.
void FederationRun::recover() {
  security::Recovery recovery;
  for (const auto& site : sites_) {
    if (site.gone_for_good || site.majority_disk) continue;
    if (!site.process || site.dying || !site.process->gateway().state()) {
      simulation_.after(5 * kSecond, -1, [this] { recover(); });
      return;
    }
    recovery.voters.push_back(site.id);
    const auto& gateway = site.process->gateway();
    if (gateway.saved_step() < recovery.step) continue;
    recovery.run = gateway.genesis()->record.hash();
    recovery.step = gateway.saved_step();
    recovery.root = root_of_[recovery.step];
  }
  newer_roster_ = roster_;
  newer_roster_.epoch = 2;
  newer_roster_.digest = security::blake2b(bytes_of("roster of a recovery"));
  for (auto& site : newer_roster_.sites)
    site.voter = std::count(recovery.voters.begin(), recovery.voters.end(), site.id) > 0;
  newer_roster_.run = recovery.run;
  newer_roster_.recoveries = {recovery};
  recovery_ = recovery;
  votes_.knows(newest_view());
  count("recoveries");
  // What the lost majority decided beyond that never was.
  for (auto* known : {&root_of_, &record_of_})
    known->erase(known->upper_bound(recovery.step), known->end());
  records_.erase(records_.upper_bound(recovery.step), records_.end());
  model_.give_up_after(recovery.step);
  for (std::uint32_t i = 0; i < sites_.size(); ++i) {
    auto& site = sites_[i];
    if (site.gone_for_good) continue;
    site.has_newer_roster = true;
    site.vote_lost_at.reset();
    site.announced_saved = std::min(site.announced_saved, recovery.step);
    crash(i);
    site.ranks->restart();  // they may go on from what is given up
  }
}

// A user changed [sync] at all sites, where a run is.
void FederationRun::start_with_other_settings() {
  other_setting_ = static_cast<std::uint32_t>(chance_.below(3));
  settings_tried_ = true;
  for (std::uint32_t i = 0; i < sites_.size(); ++i) {
    kill(i);
    sites_[i].other_settings = true;
    start_after(i, static_cast<Nanoseconds>(2e9 * chance_.uniform()));
  }
  simulation_.after(kSettingsTried, -1, [this] { start_with_right_settings(); });
}

void FederationRun::start_with_right_settings() {
  for (std::uint32_t i = 0; i < sites_.size(); ++i) {
    auto& site = sites_[i];
    if (!site.refused_settings)
      violation(fmt::format("s{} goes on with other settings than its run's", site.id));
    site.other_settings = false;
    kill(i);
    start_after(i, static_cast<Nanoseconds>(2e9 * chance_.uniform()));
  }
}

// The gateway lives on. Hanging ranks keep what they have, dead ones come back without it.
void FederationRun::kill_ranks(const Fault& fault) {
  const auto index = fault.site;
  auto& site = sites_[index];
  if (site.ranks_dead) return;
  count(fault.hang ? "ranks hung" : "ranks died");
  site.ranks_dead = true;
  ranks_died_at_ = newest_step();
  if (fault.hang)
    site.ranks->hang();
  else
    site.ranks->die();
  if (fault.length == kForGood) return;
  simulation_.after(fault.length, static_cast<int>(index), [this, index] {
    auto& s = sites_[index];
    s.ranks_dead = false;
    count("ranks came back");
    s.ranks->live();
    if (s.process && !s.ranks->attached_to(s.process->gateway()))
      s.ranks->attach(s.process->gateway());
  });
}

}  // namespace isthmus::inter::sim
