// What must hold in a simulated federation, after every event and at the end (PROTOCOL.md, "What
// must always hold").
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "inter/sim/federation_run.h"

namespace isthmus::inter::sim {
namespace {

// Whole numbers would be missing or doubled, or a code's worth where feedback is; roundings of f32
// stay far below.
constexpr double kRounding = 1e-3;

double distance(std::span<const float> here, std::span<const double> there) {
  double worst = 0;
  for (std::size_t i = 0; i < std::max(here.size(), there.size()); ++i)
    worst = std::max(worst, std::abs((i < here.size() ? static_cast<double>(here[i]) : 0.0) -
                                     (i < there.size() ? there[i] : 0.0)));
  return worst;
}

}  // namespace

void FederationRun::check(std::uint32_t index) {
  auto& site = sites_[index];
  if (!site.process || site.dying) return;
  if (site.process->failure()) return check_failure(index);
  const auto& gateway = site.process->gateway();
  if (!check_run(index)) return;
  check_held(site);
  check_records(index);
  if (site.vote_lost_at && has_vote_back(site)) {
    site.vote_lost_at.reset();
    wipe_again(index);
  }
  if (gateway.state()) check_state(index);
  check_chunks(site);
  note_credit(site);
  if (gateway.counters().signed_dropped > 0)
    violation(fmt::format("s{} dropped signed messages of honest sites", site.id));
  if (away_until_ && !returned_at_ && &site == &sites_.back()) note_return(site);
}

// Nobody founds a second run while a peer that is up has one. Out of the sight of all that have it
// nothing is against that, and its operator moves it away. False: it is another run than the first.
bool FederationRun::check_run(std::uint32_t index) {
  constexpr Nanoseconds kTimeToHear = 20 * kSecond;
  constexpr Nanoseconds kBeginsToWrite = 10 * kSecond;  // that a run began, and cannot take it back
  auto& site = sites_[index];
  const auto& gateway = site.process->gateway();
  const auto now = simulation_.now();
  if (!gateway.genesis()) {
    for (const auto& peer : sites_)
      if (gateway.session_with(peer.id) == 0)
        site.sees_since.erase(peer.id);
      else
        site.sees_since.emplace(peer.id, now);
    return true;
  }
  const auto run = gateway.genesis()->record.hash();
  if (!run_) {
    run_ = run;
    votes_.knows(gateway.genesis()->record.next_view);
  }
  site.knew_run = true;
  if (!site.has_run_since) site.has_run_since = now;
  if (run == *run_) return true;
  for (const auto& [id, since] : site.sees_since) {
    const auto& peer = sites_[id - 1];
    if (peer.process && peer.has_run_since && *peer.has_run_since <= since &&
        since + kBeginsToWrite <= now && peer.process->gateway().genesis()->record.hash() == *run_)
      violation(
          fmt::format("s{} founded a second run, and sees s{}, which has one", site.id, peer.id));
  }
  if (now < site.disk_lost_at + kTimeToHear)
    violation(fmt::format("s{} founded a second run before others could say that they have one",
                          site.id));
  count("second runs founded out of sight");
  site.dying = true;
  site.process->mute();
  simulation_.after(0, -1, [this, index] {
    kill(index);
    lose_disk(sites_[index]);
    start_soon(index);
  });
  return false;
}

// By a record of after the loss.
bool FederationRun::has_vote_back(const Site& site) const {
  const auto& gateway = site.process->gateway();
  return gateway.has_vote() && gateway.state() && gateway.state()->step > *site.vote_lost_at;
}

void FederationRun::check_failure(std::uint32_t index) {
  auto& site = sites_[index];
  const auto& failure = *site.process->failure();
  if (site.other_settings) {
    if (failure.code != ErrorCode::mismatch || failure.text().find("sync.") == std::string::npos)
      violation(fmt::format("s{} does not say which setting differs: {}", site.id, failure.text()));
    if (!std::exchange(site.refused_settings, true)) count("other settings refused");
    return;
  }
  if (failure.code != ErrorCode::disk_full && failure.code != ErrorCode::io)
    violation(fmt::format("s{} failed: {}", site.id, failure.text()));
  if (failure.text().find(kNoDescriptors) != std::string::npos) ++site.lacked_descriptors;
  // A full disk ended it, as it should; its launcher starts it again.
  site.dying = true;
  simulation_.after(kSecond, -1, [this, index] { crash(index); });
}

// A site has one contribution to a step.
void FederationRun::check_held(Site& site) {
  const auto& gateway = site.process->gateway();
  if (!gateway.state() || gateway.finished()) return;
  const auto step = gateway.state()->step + 1;
  Site::Held held{site.starts, step, gateway.view(), gateway.held()};
  if (site.held == held) return;
  for (const auto& [origin, part] : held.parts) {
    votes_.holds(site.id, held.view, step, part);
    if (origin == site.id) model_.held(site.id, site.wipes, step, part.root);
  }
  site.held = std::move(held);
}

// A decided record is never undone, and there is one history.
void FederationRun::check_records(std::uint32_t index) {
  const auto& site = sites_[index];
  const auto& chain = site.process->gateway().chain();
  for (auto k = chain.size(); k > 0; --k) {
    const auto& record = chain[k - 1].record;
    if (const auto known = records_.find(k); known != records_.end() && known->second == record)
      break;  // and so are those before it
    const auto [known, fresh] = record_of_.emplace(k, record.hash());
    if (fresh) {
      records_.emplace(k, record);
      decided_at_[k] = simulation_.now();
      votes_.knows(record.view);
      votes_.knows(record.next_view);
    }
    if (known->second != record.hash())
      violation(fmt::format("s{} holds another record {}", site.id, k));
    if (!fresh) break;
  }
}

// A state that turned out wrong is not saved any more, says its gateway before it is gone.
void FederationRun::note_taken_back(Site& site) {
  const auto saved = site.process->gateway().saved_step();
  if (memory_fails_ && saved + 1 == site.announced_saved) site.announced_saved = saved;
}

void FederationRun::check_state(std::uint32_t index) {
  auto& site = sites_[index];
  const auto& gateway = site.process->gateway();
  // Equal records, equal bits.
  // With broken memory only records tell which root is right, in the end.
  const auto step = gateway.state()->step;
  const auto [known, fresh] = root_of_.emplace(step, gateway.root());
  if (known->second != gateway.root() && !memory_fails_)
    violation(fmt::format("s{} has another state {}", site.id, step));
  const bool unsettled = gateway.pending_step() && *gateway.pending_step() <= step;
  if (!memory_fails_ && site.worked_step != step && !unsettled && newest_step() >= step) {
    site.worked_step = step;
    check_work(site);
  }
  // What was announced as saved is there, also after a crash.
  if (site.announced_in == site.starts) note_taken_back(site);
  site.announced_in = site.starts;
  if (site.announced_any && gateway.saved_step() < site.announced_saved &&
      step < site.announced_saved)
    violation(fmt::format("s{} had announced step {} as saved, and came back with {}", site.id,
                          site.announced_saved, step));
  site.announced_saved = std::max(site.announced_saved, gateway.saved_step());
  site.announced_any = true;
  // Memory: the contributions of the few steps that are not yet pruned.
  const auto bound = 4 * (4 * layout_.elements() + 4096) * scenario_.sites;
  if (gateway.memory_bytes() > bound)
    violation(fmt::format("s{} holds {} bytes of contributions", site.id, gateway.memory_bytes()));
}

// An acknowledged chunk is there.
void FederationRun::check_chunks(const Site& site) {
  const auto& gateway = site.process->gateway();
  for (const auto& peer : sites_) {
    if (peer.id == site.id || !peer.process || peer.dying) continue;
    const auto& theirs = peer.process->gateway();
    const auto session = gateway.session_with(peer.id);
    if (session == 0 || session != theirs.session_with(site.id)) continue;
    if (const auto missing = theirs.first_missing(gateway.acknowledged_chunks(peer.id)))
      violation(fmt::format("s{} acknowledged chunk {} of a transfer of s{} and does not have it",
                            peer.id, missing->second, site.id));
  }
}

// What a site has of another and has not checked yet, and whether the other waits for that.
void FederationRun::note_credit(const Site& site) {
  if (scenario_.window_chunks == 0) return;
  for (const auto& peer : sites_) {
    const auto* link = site.process->gateway().link_with(peer.id);
    if (link == nullptr) continue;
    if (link->bulk_waits_for() == "credit") count("events at which chunks waited for credit");
    most_unsettled_ = std::max(most_unsettled_, link->unsettled_chunks());
  }
}

std::string FederationRun::where_all_are() const {
  std::string where;
  for (const auto& site : sites_) {
    where += fmt::format(" s{}:", site.id);
    if (!site.process) {
      where += site.gone_for_good ? "gone" : "down";
      continue;
    }
    const auto& gateway = site.process->gateway();
    where += gateway.state() ? std::to_string(gateway.state()->step) : "-";
    if (gateway.finished()) where += "f";
    if (!gateway.has_vote()) where += " without a vote";
  }
  for (const auto& site : sites_) {
    if (!site.process) continue;
    for (const auto& link : site.process->gateway().status().links)
      if (!link.waiting_for.empty())
        where += fmt::format(" s{}→{} waits for {}", site.id, link.peer, link.waiting_for);
  }
  return where;
}

void FederationRun::check_at_end() {
  votes_.check_decided();
  if (!outcome_.finished) {
    violation(fmt::format("the run did not finish: {} of {} steps;{}", newest_step(),
                          scenario_.outer_steps, where_all_are()));
    return;
  }
  std::optional<security::Digest> ended;
  for (auto& site : sites_) {
    if (site.gone_for_good || !site.process || !site.process->gateway().state()) continue;
    const auto& gateway = site.process->gateway();
    if (!ended) ended = gateway.root();
    if (gateway.root() != *ended)
      violation(fmt::format("s{} ended with another state than others", site.id));
    check_work(site);
  }
  if (scenario_.any_fault_every > 0) return;
  if (scenario_.dead_ranks > 0) check_dead_ranks();
  if (scenario_.narrow_site) check_narrow_site();
  if (scenario_.away > 0) check_return();
}

// Work is conserved: the state is made of what the ranks contributed and records name, and the
// rest of it rides in the next contribution.
void FederationRun::check_work(Site& site) {
  const auto& gateway = site.process->gateway();
  const auto step = gateway.state()->step;
  RunModel::Lives lives;
  for (const auto& each : sites_) lives[each.id] = each.wipes;
  std::vector<std::string> wrong;
  const auto model = model_.after(step, records_, lives, wrong);
  for (const auto& what : wrong) violation(what);
  if (const double away = distance(gateway.state()->agreed, model.agreed); away > kRounding)
    violation(fmt::format("s{} is {} away from the model after step {}", site.id, away, step));
  // It rides in the contribution to the next step: that one's record, or its feedback, shows it.
  if (gateway.pending_step()) return;
  const auto rest = model.feedback.find(site.id);
  const std::span<const double> expected =
      rest == model.feedback.end() ? std::span<const double>() : rest->second;
  if (const double away = distance(gateway.feedback(), expected); away > kRounding)
    violation(fmt::format("the feedback of s{} is {} away from the model after step {}", site.id,
                          away, step));
}

// A site whose ranks are away costs the others the wait for them once, and a change of the
// view.
void FederationRun::check_dead_ranks() {
  const SiteId site = scenario_.sites;
  const bool comes_back = scenario_.dead_ranks < scenario_.limit;
  // What a step takes when everybody is there, thrice.
  const auto usual = 3 * (scenario_.compute + 2 * kSecond);
  const auto options = options_of(0);
  std::uint64_t unnamed = 0, changes = 0;
  for (const auto& [k, record] : records_) {
    if (k <= ranks_died_at_) continue;
    if (record.view.members != record.next_view.members) ++changes;
    if (record.part_of(site) != nullptr) {
      unnamed = 0;
      continue;
    }
    ++unnamed;
    const auto took = k > 1 ? decided_at_[k] - decided_at_[k - 1] : 0;
    // The first one finds out; until the view has changed others may ask again, for a while.
    const auto bound = unnamed == 1                        ? *options.straggler_wait + 2 * usual
                       : unnamed <= scenario_.absent_steps ? options.first_wait + usual
                                                           : usual;
    if (took > bound)
      violation(fmt::format("step {} took {:.1f} s, {} steps after the ranks of s{} died", k,
                            seconds_of(took), unnamed, site));
    if (unnamed > scenario_.absent_steps) count("steps without a site of dead ranks");
  }
  if (changes > (comes_back ? 2U : 1U))
    violation(fmt::format("the view changed {} times for the ranks of s{}", changes, site));
  if (comes_back && records_.rbegin()->second.part_of(site) == nullptr)
    violation(fmt::format("s{} takes part no more, although its ranks came back", site));
}

// Who sees but one of the voters is a member like others, and gets its vote back like others.
void FederationRun::check_narrow_site() {
  const auto& site = sites_.back();
  const auto named = std::count_if(records_.begin(), records_.end(), [&](const auto& entry) {
    return entry.second.part_of(site.id) != nullptr;
  });
  if (named == 0)
    violation(fmt::format("s{} sees one voter, and no record ever named it", site.id));
  count("records that name a site with one peer", static_cast<std::uint64_t>(named));
  if (!scenario_.narrow_vote_lost) return;
  if (site.vote_lost_at)
    violation(fmt::format("s{} sees one voter, and did not get its vote back", site.id));
  else
    count("votes given back to a site with one peer");
}

void FederationRun::note_return(const Site& site) {
  const auto sees = [&](const Site& other) {
    return site.process->gateway().session_with(other.id) != 0;
  };
  if (simulation_.now() >= *away_until_ && std::ranges::any_of(sites_, sees))
    returned_at_ = newest_step();
}

// Whoever was away takes part again, however short the steps are.
void FederationRun::check_return() {
  const auto site = sites_.back().id;
  if (!returned_at_) return violation(fmt::format("s{} was away, and saw nobody again", site));
  const auto back = std::ranges::find_if(records_, [&](const auto& entry) {
    const auto& [k, record] = entry;
    return k > *returned_at_ && (record.next_view.is_member(site) || record.part_of(site));
  });
  if (back == records_.end() || back->first > *returned_at_ + scenario_.back_within)
    violation(fmt::format(
        "s{} was away until step {}, and takes part {}", site, *returned_at_,
        back == records_.end() ? "no more" : fmt::format("from step {} on", back->first)));
  else
    count("steps until a site was back", back->first - *returned_at_);
}

}  // namespace isthmus::inter::sim
