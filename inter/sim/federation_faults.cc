// What is done to the sites of a simulated federation, and to what stands between them.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "inter/sim/federation_run.h"

namespace isthmus::inter::sim {
namespace {

constexpr const char* kPoints[] = {"before_close", "feedback_written", "between_vote_and_accept",
                                   "saving",       "merging",          "state_transfer",
                                   "final"};

// By OutagePoint; those that every voter reaches in every step.
constexpr const char* kOutagePoints[] = {
    "drawn",  "",       "before_close", "feedback_written", "between_vote_and_accept",
    "saving", "merging"};

// A site that does not reach the point dies where it is.
constexpr Nanoseconds kOutagePatience = 30 * kSecond;
constexpr Nanoseconds kLateReturn = 15 * kSecond;
constexpr Nanoseconds kSettingsTried = 40 * kSecond;

}  // namespace

void FederationRun::kill(std::uint32_t index) {
  auto& site = sites_[index];
  site.dying = false;
  if (!site.process) return;
  collect(site.process->gateway());
  site.worked_step.reset();
  site.ranks->detach();
  site.process.reset();
  site.disk->crash();
  count("crashes");
  if (faults_.chance(0.5) && !site.ranks_dead) site.ranks->restart();
}

void FederationRun::crash(std::uint32_t index) {
  auto& site = sites_[index];
  if (!site.process) {
    site.dying = false;
    return;
  }
  const bool has_run = site.process->gateway().genesis().has_value();
  kill(index);
  // While the run is being founded a lost vote file means to begin it anew.
  if (has_run && faults_.chance(scenario_.votes_lost) && trouble() && may_lose_vote(index))
    lose_vote(index);
  start_soon(index);
}

// --- Named points of a step

void FederationRun::at_point(std::uint32_t index, const char* point, std::uint64_t step) {
  auto& site = sites_[index];
  if (site.dying) return;
  const bool together = outage_ && outage_->waiting.count(index) > 0 && outage_->point == point &&
                        outage_->step == step;
  if (!together && site.crash_at != point) return;
  site.dying = true;
  count(fmt::format("{} {}", together ? "outage at" : "killed", point));
  // Whatever this process still does is not seen by anybody.
  site.process->mute();
  site.disk->freeze();
  if (together) {
    simulation_.after(0, -1, [this, index] { fell(index); });
    return;
  }
  if (std::exchange(site.crashes_again, false)) count(fmt::format("killed again {}", point));
  if (faults_.chance(scenario_.killed_again))
    site.crashes_again = true;
  else
    site.crash_at.clear();
  simulation_.after(0, -1, [this, index] { crash(index); });
}

// --- Several sites at once

void FederationRun::begin_outage() {
  if (outage_ || !trouble()) return;
  outage_.emplace();
  auto point = scenario_.outage_point;
  if (point == OutagePoint::drawn) point = static_cast<OutagePoint>(1 + faults_.below(6));
  outage_->point = kOutagePoints[static_cast<std::size_t>(point)];
  for (const auto& site : sites_)
    if (site.process && site.process->gateway().state())
      outage_->step = std::max(outage_->step, site.process->gateway().state()->step + 2);
  outage_->step = std::min(outage_->step, scenario_.outer_steps);
  const auto sites = scenario_.outage_sites == 0 ? scenario_.sites : scenario_.outage_sites;
  for (std::uint32_t i = 0; i < std::min(sites, scenario_.sites); ++i)
    if (!sites_[i].gone_for_good) outage_->waiting.insert(i);
  count("outages");
  const auto rest = [this] {
    for (const auto i : std::set(outage_->waiting)) fell(i);
  };
  if (outage_->point.empty() || outage_->step == 0) return rest();
  // Who is down stays down.
  for (const auto i : std::set(outage_->waiting))
    if (!sites_[i].process) fell(i);
  simulation_.after(kOutagePatience, -1, [this, rest, step = outage_->step] {
    if (outage_ && outage_->step == step) rest();
  });
}

void FederationRun::fell(std::uint32_t index) {
  kill(index);
  sites_[index].held_down = true;
  if (!outage_ || outage_->waiting.erase(index) == 0) return;
  outage_->down.insert(index);
  if (outage_->waiting.empty()) end_outage();
}

void FederationRun::end_outage() {
  std::vector<std::uint32_t> down(outage_->down.begin(), outage_->down.end());
  outage_.reset();
  for (std::size_t i = down.size(); i > 1; --i) std::swap(down[i - 1], down[faults_.below(i)]);
  auto how = scenario_.outage_return;
  if (how == OutageReturn::drawn) how = static_cast<OutageReturn>(1 + faults_.below(3));
  for (std::size_t i = 0; i < down.size(); ++i) {
    auto& site = sites_[down[i]];
    site.held_down = false;
    const bool last = i + 1 == down.size();
    // Before the first record everybody is needed.
    if (last && how == OutageReturn::one_never && !one_never_returned_ && newest_step() > 0 &&
        may_lose_vote(down[i])) {
      one_never_returned_ = true;
      site.gone_for_good = true;
      count("outages with a site lost");
    } else if (how == OutageReturn::soon) {
      start_after(down[i], static_cast<Nanoseconds>((0.5 + 5 * faults_.uniform()) * 1e9));
    } else {
      start_after(down[i], last ? kLateReturn : kSecond);
      if (last) count("outages with a late return");
    }
  }
}

// --- Lost files

// Never more than leaves a majority: beyond that only the operator can help.
bool FederationRun::may_lose_vote(std::uint32_t index) const {
  // Of a voter whose vote file nobody could name, because it was down when it became one.
  const auto view = newest_view();
  const auto unnamed_vote = [&](SiteId site) {
    return view.is_voter(site) && !records_.empty() && view.vote_file_of(site) == kNoVoteFile;
  };
  const auto bearable = [&](const std::vector<SiteId>& voters) {
    if (std::count(voters.begin(), voters.end(), sites_[index].id) == 0) return true;
    const auto without =
        static_cast<std::size_t>(std::count_if(sites_.begin(), sites_.end(), [&](const Site& site) {
          return (site.vote_lost_at || site.gone_for_good || &site == &sites_[index] ||
                  unnamed_vote(site.id)) &&
                 std::count(voters.begin(), voters.end(), site.id) > 0;
        }));
    return without <= voters.size() - (voters.size() / 2 + 1);
  };
  // A voter that is down when it becomes one has no vote at first: until the newer roster's voters
  // are in, no other one is bearable.
  for (const auto& site : newer_roster_.sites)
    if (site.voter != view.is_voter(site.id)) return false;
  return bearable(view.voters);
}

View FederationRun::newest_view() const {
  if (recovery_ && newest_step() == recovery_->step) return view_of(*recovery_);
  if (!records_.empty()) return records_.rbegin()->second.next_view;
  View view;
  for (const auto& site : roster_.sites)
    if (site.voter) view.voters.push_back(site.id);
  view.members = view.voters;
  return view;
}

void FederationRun::note_lost_vote(Site& site) {
  site.vote_lost_at = newest_step();
  if (!newest_view().is_voter(site.id)) return;
  count("vote files lost");
  if (++site.votes_lost == 2) count("vote files lost twice");
  if (site.id > scenario_.voters) count("vote files of new voters lost");
}

void FederationRun::lose_vote(std::uint32_t index) {
  sites_[index].disk->lose("outer/vote");
  note_lost_vote(sites_[index]);
}

void FederationRun::wipe(std::uint32_t index) {
  auto& site = sites_[index];
  if (!run_exists_ || !trouble() || site.gone_for_good || site.held_down || !may_lose_vote(index))
    return;
  // Where a majority is lost for good a survivor needs what it has.
  if (scenario_.majority_lost && !recovery_) return;
  const bool was_up = site.process != nullptr;
  kill(index);
  site.disk->wipe();
  site.announced_saved = 0;
  site.announced_any = false;
  votes_.wiped(site.id);
  const auto view = newest_view();
  if (view.is_voter(site.id)) count("disks of voters wiped");
  if (!view.is_voter(site.id) && view.is_member(site.id)) count("disks of members wiped");
  if (recovery_) count("disks wiped after a recovery");
  if (++site.wipes == 2) count("disks wiped twice");
  note_lost_vote(site);
  site.wipe_due = faults_.chance(scenario_.wiped_again);
  if (was_up) start_soon(index);
}

// It has its vote back: is wiped once more before it has done much with it.
void FederationRun::wipe_again(std::uint32_t index) {
  if (!std::exchange(sites_[index].wipe_due, false)) return;
  const auto step = newest_step();
  simulation_.after(static_cast<Nanoseconds>(3e9 * faults_.uniform()), -1, [this, index, step] {
    const auto wipes = sites_[index].wipes;
    wipe(index);
    if (sites_[index].wipes > wipes && newest_step() == step)
      count("disks wiped in the step of their return");
  });
}

// The same step may be computed wrongly again, in the same way or another; not for ever.
void FederationRun::disturb(std::uint32_t index, std::uint64_t step, std::span<float> agreed) {
  auto& errors = memory_errors_[{index, step}];
  if (errors >= scenario_.memory_errors_max ||
      !faults_.chance(errors == 0 ? scenario_.memory_errors : scenario_.memory_errors / 2))
    return;
  ++errors;
  agreed[faults_.below(agreed.size())] += 1 + static_cast<float>(faults_.below(2));
  count("memory errors");
}

// --- The plan

std::vector<Nanoseconds> FederationRun::times(double rate_per_minute) {
  const auto minutes = seconds_of(scenario_.trouble_ends) / 60;
  std::vector<Nanoseconds> when;
  double t = 0;
  while (rate_per_minute > 0) {
    t += -std::log(1 - faults_.uniform()) / rate_per_minute;
    if (t >= minutes) break;
    when.push_back(static_cast<Nanoseconds>(t * 60e9));
  }
  return when;
}

void FederationRun::plan_faults() {
  for (std::uint32_t i = 0; i < scenario_.sites; ++i) {
    for (const auto when : times(scenario_.crashes)) {
      if (faults_.chance(0.5))
        simulation_.at(when, -1, [this, i] { crash(i); });
      else
        simulation_.at(when, -1, [this, i, point = kPoints[faults_.below(std::size(kPoints))]] {
          sites_[i].crash_at = point;
          sites_[i].crashes_again = false;
        });
    }
    for (const auto when : times(scenario_.wipes)) simulation_.at(when, -1, [this, i] { wipe(i); });
    for (const auto when : times(scenario_.disk_full)) {
      const auto fail = [this, i](double failing) {
        sites_[i].disk->set_faults(
            {.lying = scenario_.bug == PlantedBug::lying_disk, .failing = failing});
      };
      simulation_.at(when, -1, [fail] { fail(0.5); });
      simulation_.at(when + 15 * kSecond, -1, [fail] { fail(0); });
    }
    plan_partitions(i);
  }
  for (const auto when : times(scenario_.outages))
    simulation_.at(when, -1, [this] { begin_outage(); });
  simulation_.at(scenario_.trouble_ends, -1, [this] {
    auto calm = scenario_.network;
    calm.loss = std::min(calm.loss, 0.01);
    network_.set_faults(calm);
    for (auto& site : sites_) {
      site.crash_at.clear();
      site.crashes_again = false;
    }
  });
}

void FederationRun::plan_partitions(std::uint32_t index) {
  if (scenario_.sites < 2) return;
  const auto another = [&] {
    return (index + 1 + static_cast<std::uint32_t>(faults_.below(scenario_.sites - 1))) %
           scenario_.sites;
  };
  for (const auto when : times(scenario_.partitions)) {
    const bool one_way = faults_.chance(scenario_.one_way);
    const auto length = static_cast<Nanoseconds>(faults_.uniform() * 30e9);
    const GatewayId a{index + 1, 0}, b{another() + 1, 0};
    simulation_.at(when, -1, [this, a, b, one_way] {
      network_.cut(a, b, true);
      if (!one_way) network_.cut(b, a, true);
      count(one_way ? "one-way partitions" : "partitions");
    });
    simulation_.at(when + length, -1, [this, a, b] {
      if (stands_cut(a, b)) return;
      network_.cut(a, b, false);
      network_.cut(b, a, false);
    });
  }
  for (const auto when : times(scenario_.broken_connections))
    simulation_.at(when, -1, [this, a = GatewayId{index + 1, 0}, b = GatewayId{another() + 1, 0}] {
      network_.break_connections(a, b);
    });
}

bool FederationRun::stands_cut(GatewayId a, GatewayId b) const {
  const auto last = scenario_.sites;
  if (scenario_.blind_pair && last > 2 && a.site + b.site == 3) return true;
  if (!scenario_.narrow_site || (a.site != last && b.site != last)) return false;
  const auto last_voter = std::min(scenario_.voters, last);
  const auto through = last_voter == last ? last - 1 : last_voter;
  return a.site != through && b.site != through;
}

void FederationRun::apply_standing_cuts() {
  for (const auto& a : roster_.sites)
    for (const auto& b : roster_.sites)
      if (a.id != b.id && stands_cut({a.id, 0}, {b.id, 0}))
        network_.cut({a.id, 0}, {b.id, 0}, true);
}

// --- Once in a run, when a third of it is done

void FederationRun::at_a_third() {
  const auto last = scenario_.sites - 1;
  if (scenario_.roster_changes) change_roster();
  if (scenario_.majority_lost) lose_majority();
  if (scenario_.other_settings) start_with_other_settings();
  if (scenario_.dead_ranks > 0) kill_ranks();
  if (scenario_.narrow_vote_lost && may_lose_vote(last)) {
    kill(last);
    lose_vote(last);
    start_soon(last);
  }
  if (!scenario_.one_leaves_for_good) return;
  kill(last);
  sites_[last].gone_for_good = true;
}

// Each site is started again with the newer roster at a time of its own.
void FederationRun::change_roster() {
  if (std::any_of(sites_.begin(), sites_.end(),
                  [](const Site& site) { return site.vote_lost_at.has_value(); })) {
    simulation_.after(kSecond, -1, [this] { change_roster(); });
    return;
  }
  newer_roster_ = roster_;
  newer_roster_.epoch = 2;
  newer_roster_.digest = security::blake2b(bytes_of("newer simulated roster"));
  for (auto& site : newer_roster_.sites) site.voter = site.id != 1;
  // As the operator is told to say where the first voters are not those of this roster.
  newer_roster_.run = records_.begin()->second.run;
  if (scenario_.roster_drops) {
    const auto& first = newer_roster_.sites.front();
    newer_roster_.former.push_back(
        {.id = first.id, .name = first.name, .identity = first.identity});
    newer_roster_.sites.erase(newer_roster_.sites.begin());
    // It is switched off while some still have the older roster, and others have the newer one.
    simulation_.after(static_cast<Nanoseconds>(faults_.uniform() * 30e9), -1, [this] {
      kill(0);
      sites_[0].gone_for_good = true;
    });
  }
  for (std::uint32_t i = scenario_.roster_drops ? 1 : 0; i < sites_.size(); ++i)
    simulation_.after(static_cast<Nanoseconds>(faults_.uniform() * 20e9), -1, [this, i] {
      sites_[i].has_newer_roster = true;
      crash(i);
    });
}

void FederationRun::lose_majority() {
  const auto voters = std::min(scenario_.voters, scenario_.sites);
  for (std::uint32_t i = 0; i < voters / 2 + 1; ++i) {
    kill(i);
    sites_[i].gone_for_good = true;
  }
  simulation_.after(10 * kSecond, -1, [this] { recover(); });
}

// The operator asks the survivors for the newest state that any of them has.
void FederationRun::recover() {
  security::Recovery recovery;
  for (const auto& site : sites_) {
    if (site.gone_for_good) continue;
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
  }
}

// A user changed [sync] at all sites, where a run is.
void FederationRun::start_with_other_settings() {
  other_setting_ = static_cast<std::uint32_t>(faults_.below(3));
  settings_tried_ = true;
  for (std::uint32_t i = 0; i < sites_.size(); ++i) {
    kill(i);
    sites_[i].other_settings = true;
    start_after(i, static_cast<Nanoseconds>(2e9 * faults_.uniform()));
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
    start_after(i, static_cast<Nanoseconds>(2e9 * faults_.uniform()));
  }
}

// The gateway lives on. Hanging ranks keep what they have, dead ones come back without it.
void FederationRun::kill_ranks() {
  const auto index = scenario_.sites - 1;
  auto& site = sites_[index];
  const bool hang = faults_.chance(0.5);
  count(hang ? "ranks hung" : "ranks died");
  site.ranks_dead = true;
  ranks_died_at_ = newest_step();
  if (hang)
    site.ranks->hang();
  else
    site.ranks->die();
  if (scenario_.dead_ranks >= scenario_.limit) return;
  simulation_.after(scenario_.dead_ranks, static_cast<int>(index), [this, index] {
    auto& s = sites_[index];
    s.ranks_dead = false;
    count("ranks came back");
    s.ranks->live();
    if (s.process && !s.ranks->attached_to(s.process->gateway()))
      s.ranks->attach(s.process->gateway());
  });
}

}  // namespace isthmus::inter::sim
