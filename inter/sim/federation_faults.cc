// What is done to the sites of a simulated federation, and to what stands between them.
#include <fmt/format.h>

#include <algorithm>

#include "inter/sim/federation_run.h"

namespace isthmus::inter::sim {
namespace {

// A site that does not reach the point dies where it is.
constexpr Nanoseconds kOutagePatience = 30 * kSecond;
constexpr Nanoseconds kLateReturn = 15 * kSecond;
constexpr Nanoseconds kTimeToLeave = 20 * kSecond;  // then it is killed
constexpr double kPowerFails = 0.3;  // where a gateway is killed; else its machine stays

}  // namespace

void FederationRun::kill(std::uint32_t index) {
  auto& site = sites_[index];
  site.dying = false;
  site.leaving = false;
  if (site.paused) resume(index);
  if (!site.process) return;
  collect(site.process->gateway());
  site.waited_for_disk += site.process->waited_for_disk();
  if (site.announced_in == site.starts) note_taken_back(site);
  site.worked_step.reset();
  site.ranks->detach();
  site.process.reset();
  end_on_disk(index);
  count("crashes");
  if (chance_.chance(0.5) && !site.ranks_dead) site.ranks->restart();
  note_crash(index);
}

void FederationRun::note_crash(std::uint32_t index) {
  auto& site = sites_[index];
  const auto torn = site.disk->counters().torn;
  site.crash = effects_.begin({.kind = FaultKind::crash,
                               .site = index,
                               .from = simulation_.now(),
                               .saved = site.announced_saved,
                               .torn = torn - std::exchange(site.torn, torn)},
                              {});
}

// Drawn for each life of a gateway, so that no fault changes how others end.
void FederationRun::end_on_disk(std::uint32_t index) {
  auto& site = sites_[index];
  auto life = random_.split("power").split(index).split(site.starts);
  if (!life.chance(kPowerFails)) {
    count("processes killed");
    return site.disk->kill_process();
  }
  const auto torn = site.disk->counters().torn;
  site.disk->crash();
  count("power failures");
  count("torn files", site.disk->counters().torn - torn);
}

void FederationRun::crash(std::uint32_t index, bool vote_lost) {
  auto& site = sites_[index];
  if (!site.process) {
    site.dying = false;
    return;
  }
  const bool has_run = site.process->gateway().genesis().has_value();
  kill(index);
  // While the run is being founded a lost vote file means to begin it anew.
  if (has_run && vote_lost && trouble() && may_lose_vote(index)) lose_vote(index);
  start_soon(index);
}

// --- Named points of a step

void FederationRun::at_point(std::uint32_t index, const char* point, std::uint64_t step) {
  auto& site = sites_[index];
  if (site.dying) return;
  const bool together = outage_ && outage_->waiting.count(index) > 0 &&
                        outage_->fault.point == point && outage_->step == step;
  if (!together && (!site.crash_at || site.crash_at->point != point)) return;
  site.dying = true;
  count(fmt::format("{} {}", together ? "outage at" : "killed", point));
  // Whatever this process still does is not seen by anybody.
  site.process->mute();
  site.disk->freeze();
  if (together) {
    simulation_.after(0, -1, [this, index] { fell(index); });
    return;
  }
  auto& crashes = *site.crash_at;
  const bool vote_lost = crashes.vote_lost;
  if (crashes.done++ > 0) count(fmt::format("killed again {}", point));
  if (--crashes.left == 0) site.crash_at.reset();
  simulation_.after(0, -1, [this, index, vote_lost] { crash(index, vote_lost); });
}

// --- Several sites at once

void FederationRun::begin_outage(const Fault& fault) {
  if (outage_ || !trouble()) return;
  outage_.emplace(Outage{.fault = fault, .step = 0, .waiting = {}, .down = {}});
  for (const auto& site : sites_)
    if (site.process && site.process->gateway().state())
      outage_->step = std::max(outage_->step, site.process->gateway().state()->step + 2);
  outage_->step = std::min(outage_->step, scenario_.outer_steps);
  for (std::uint32_t k = 0; k < std::min(fault.count, scenario_.sites); ++k)
    if (const auto i = (fault.site + k) % scenario_.sites; !sites_[i].gone_for_good)
      outage_->waiting.insert(i);
  count("outages");
  const auto rest = [this] {
    for (const auto i : std::set(outage_->waiting)) fell(i);
  };
  if (fault.point.empty() || outage_->step == 0) return rest();
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
  const auto how = outage_->fault.how;
  outage_.reset();
  for (std::size_t i = down.size(); i > 1; --i) std::swap(down[i - 1], down[chance_.below(i)]);
  for (std::size_t i = 0; i < down.size(); ++i) {
    auto& site = sites_[down[i]];
    site.held_down = false;
    const bool last = i + 1 == down.size();
    // Before the first record everybody is needed.
    if (last && how == OutageReturn::one_never && !one_never_returned_ && newest_step() > 0 &&
        may_lose_site(down[i])) {
      one_never_returned_ = true;
      site.gone_for_good = true;
      count("outages with a site lost");
    } else if (how == OutageReturn::soon) {
      start_after(down[i], static_cast<Nanoseconds>((0.5 + 5 * chance_.uniform()) * 1e9));
    } else {
      start_after(down[i], last ? kLateReturn : kSecond);
      if (last) count("outages with a late return");
    }
  }
}

// --- Lost files

// Never more than leaves a majority: beyond that only the operator can help.
bool FederationRun::may_lose_vote(std::uint32_t index) const {
  // A run is begun with every voter's vote file: until a second site knows that it is, the operator
  // begins anew where one is lost.
  if (!std::ranges::any_of(
          sites_, [&](const Site& site) { return &site != &sites_[index] && site.knew_run; }))
    return false;
  const auto view = newest_view();
  // A voter that is down when it becomes one has no vote at first: until the newer roster's voters
  // are in, no other one is bearable.
  const auto voters = std::count_if(newer_roster_.sites.begin(), newer_roster_.sites.end(),
                                    [](const auto& site) { return site.voter; });
  if (voters > 0 && static_cast<std::size_t>(voters) != view.voters.size()) return false;
  for (const auto& site : newer_roster_.sites)
    if (site.voter != view.is_voter(site.id)) return false;
  return majority_without(index);
}

// Also of the voters that decided the newest record: nobody else may know of it yet.
bool FederationRun::majority_without(std::uint32_t index) const {
  const auto bearable = [&](const View& view) {
    if (!view.is_voter(sites_[index].id)) return true;
    const auto without =
        static_cast<std::size_t>(std::count_if(sites_.begin(), sites_.end(), [&](const Site& site) {
          // Of some nobody could name the vote file: they were down when they became voters.
          return view.is_voter(site.id) &&
                 (site.vote_lost_at || site.gone_for_good || &site == &sites_[index] ||
                  (!records_.empty() && view.vote_file_of(site.id) == kNoVoteFile));
        }));
    return without <= view.voters.size() - (view.voters.size() / 2 + 1);
  };
  const bool decided_here = !records_.empty() && !(recovery_ && newest_step() == recovery_->step);
  return bearable(newest_view()) && (!decided_here || bearable(records_.rbegin()->second.view));
}

// Nor what leaves fewer sites than a step needs, nor its state when the operator asks for it.
bool FederationRun::may_lose_site(std::uint32_t index) const {
  const auto left = std::count_if(sites_.begin(), sites_.end(),
                                  [](const Site& site) { return !site.gone_for_good; });
  if (scenario_.majority_lost && !recovery_) return false;
  // Nor the one that others are seen through.
  if (scenario_.narrow_site && index == seen_by_narrow_site()) return false;
  if (scenario_.blind_pair && index > 1 && left <= 3) return false;
  return may_lose_vote(index) && left > static_cast<std::ptrdiff_t>(scenario_.min_sites);
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
  if (scenario_.majority_lost && !recovery_) return;
  sites_[index].disk->lose("outer/vote");
  note_lost_vote(sites_[index]);
}

void FederationRun::lose_disk(Site& site) {
  site.disk->wipe();
  site.disk_lost_at = simulation_.now();
  site.announced_saved = 0;
  site.announced_any = false;
  votes_.wiped(site.id);
  if (++site.wipes == 2) count("disks wiped twice");
}

void FederationRun::wipe(std::uint32_t index, bool again) {
  auto& site = sites_[index];
  if (!run_ || !trouble() || site.gone_for_good || site.held_down || !may_lose_vote(index)) return;
  // Where a majority is lost for good a survivor needs what it has.
  if (scenario_.majority_lost && !recovery_) return;
  const bool was_up = site.process != nullptr;
  kill(index);
  lose_disk(site);
  const auto view = newest_view();
  if (view.is_voter(site.id)) count("disks of voters wiped");
  if (!view.is_voter(site.id) && view.is_member(site.id)) count("disks of members wiped");
  if (recovery_) count("disks wiped after a recovery");
  note_lost_vote(site);
  site.wipe_due = again;
  if (was_up) start_soon(index);
}

// It has its vote back: is wiped once more before it has done much with it.
void FederationRun::wipe_again(std::uint32_t index) {
  if (!std::exchange(sites_[index].wipe_due, false)) return;
  const auto step = newest_step();
  simulation_.after(static_cast<Nanoseconds>(3e9 * chance_.uniform()), -1, [this, index, step] {
    const auto wipes = sites_[index].wipes;
    wipe(index, chance_.chance(scenario_.wiped_again));
    if (sites_[index].wipes > wipes && newest_step() == step)
      count("disks wiped in the step of their return");
  });
}

void FederationRun::disturb(std::uint32_t index, std::uint64_t step, std::span<float> agreed) {
  const auto errors = memory_errors_.find({index, step});
  if (errors == memory_errors_.end() || errors->second == 0) return;
  --errors->second;
  // Each site elsewhere, and each time by something else: of sites that compute alike, or of one
  // that does twice, nobody can tell that it is wrong.
  const auto element = chance_.below(agreed.size() / sites_.size()) * sites_.size() + index;
  agreed[element] += 1 + static_cast<float>(errors->second);
  count("memory errors");
}

// --- The list

// All that the seed gives; those happen that were asked for and whose sites are there.
void FederationRun::choose_faults(const PartOfRun& part) {
  outcome_.faults = plan_faults(scenario_, random_.split("faults"));
  if (part.outer_steps) scenario_.outer_steps = *part.outer_steps;
  if (part.sites) {
    scenario_.sites = std::min(scenario_.sites, *part.sites);
    scenario_.voters = std::min(scenario_.voters, scenario_.sites);
    scenario_.min_sites = std::min(scenario_.min_sites, scenario_.sites);
  }
  for (std::uint32_t i = 0; i < outcome_.faults.size(); ++i) {
    if (part.faults && !std::ranges::binary_search(*part.faults, i)) continue;
    const auto& fault = outcome_.faults[i];
    if (fault.site < scenario_.sites && fault.other < scenario_.sites) places_.push_back(i);
  }
}

void FederationRun::schedule_faults() {
  for (const auto place : places_) {
    const auto when = outcome_.faults[place].when;
    if (when == kAtAThird) continue;
    if (when == 0)
      apply(place);
    else
      simulation_.at(when, -1, [this, place] { apply(place); });
  }
  simulation_.at(scenario_.trouble_ends, -1, [this] { heal_all(); });
}

void FederationRun::at_a_third() {
  for (const auto place : places_)
    if (outcome_.faults[place].when == kAtAThird) apply(place);
  if (scenario_.away > 0) away_until_ = simulation_.now() + scenario_.away;
}

void FederationRun::apply(std::uint32_t place) {
  outcome_.happened.push_back(place);
  apply(outcome_.faults[place]);
}

void FederationRun::apply(const Fault& fault) {
  const auto i = fault.site;
  switch (fault.kind) {
    case FaultKind::crash:
      return crash_by(fault);
    case FaultKind::wipe:
      return wipe(i, fault.wiped_again);
    case FaultKind::outage:
      return begin_outage(fault);
    case FaultKind::leave:
      return leave(i, fault.length);
    case FaultKind::disk_full:
      return fill_disk(fault);
    case FaultKind::no_descriptors:
      return exhaust_descriptors(fault);
    case FaultKind::slow_disk:
      return slow_disk(fault);
    case FaultKind::partition:
      return partition(fault);
    case FaultKind::broken_connection:
      return break_connections(fault);
    case FaultKind::slow_access:
      return slow_access(fault);
    case FaultKind::bad_network:
      return worsen_network(fault);
    case FaultKind::slow_ranks:
      return slow_ranks(fault);
    case FaultKind::dead_ranks:
      return kill_ranks(fault);
    case FaultKind::pause:
      return pause(fault);
    case FaultKind::clock_jump:
      return jump(fault);
    case FaultKind::memory_error:
      memory_errors_[{i, fault.step}] += fault.count;
      return;
    case FaultKind::late_start:
      return start(i);
    case FaultKind::lost_vote:
      if (!may_lose_vote(i)) return;
      kill(i);
      lose_vote(i);
      return start_soon(i);
    case FaultKind::newer_roster:
      return change_roster(fault);
    case FaultKind::lost_majority:
      return lose_majority(fault);
    case FaultKind::other_settings:
      return start_with_other_settings();
  }
}

void FederationRun::crash_by(const Fault& fault) {
  if (fault.point.empty()) return crash(fault.site, fault.vote_lost);
  sites_[fault.site].crash_at = {
      .point = fault.point, .left = fault.count, .done = 0, .vote_lost = fault.vote_lost};
}

void FederationRun::break_connections(const Fault& fault) {
  const auto a = gateway_at(fault.site), b = gateway_at(fault.other);
  const bool any = network_.stream(a, b, Lane::control) != nullptr ||
                   network_.stream(a, b, Lane::bulk) != nullptr;
  network_.break_connections(a, b);
  if (any) broken_.push_back({a, b, simulation_.now(), strike(fault, "broken connections")});
}

// Something has come both ways on both lanes.
void FederationRun::note_lanes_back() {
  std::erase_if(broken_, [this](const Broken& broken) {
    for (const auto lane : {Lane::control, Lane::bulk})
      for (const auto& [from, to] : {std::pair(broken.a, broken.b), std::pair(broken.b, broken.a)})
        if (const auto* stream = network_.stream(from, to, lane);
            stream == nullptr || stream->last_arrival() <= broken.when)
          return false;
    effects_.end(broken.number, simulation_.now());
    return true;
  });
}

// Of a calendar that somebody reads.
void FederationRun::jump(const Fault& fault) {
  sites_[fault.site].clock->jump(fault.length);
  if (sites_[fault.site].process)
    effects_.end(strike(fault, "jumps of calendars"), simulation_.now());
}

// The gateway says that it leaves; its ranks end with it.
void FederationRun::leave(std::uint32_t index, Nanoseconds length) {
  auto& site = sites_[index];
  if (length == kForGood && !may_lose_site(index)) return;
  if (!site.process || site.dying || site.leaving || site.paused || site.held_down) {
    if (length != kForGood) return;
    kill(index);
    site.gone_for_good = true;
    return;
  }
  count(length == kForGood ? "sites left for good" : "sites left");
  site.leaving = true;
  site.gone_for_good = length == kForGood;
  site.process->gateway().stop();
  simulation_.after(kTimeToLeave, -1, [this, index, length, starts = site.starts] {
    auto& s = sites_[index];
    if (s.process && s.starts == starts) {
      if (!s.process->ended()) count("sites killed while they left");
      kill(index);
    }
    if (length != kForGood) start_after(index, length);
  });
  poll(static_cast<int>(index));
}

}  // namespace isthmus::inter::sim
