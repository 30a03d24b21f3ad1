#include "inter/sim/federation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <set>

#include "base/assert.h"
#include "inter/sim/run_model.h"
#include "inter/sim/simulated_disk.h"
#include "inter/sim/simulated_process.h"
#include "inter/sim/simulation.h"
#include "inter/sim/synthetic_ranks.h"

namespace isthmus::inter::sim {
namespace {

// What no fault of the world can cause: whoever writes one of these has met a bug.
const std::set<std::string_view> kNever = {
    "two_contributions",  "two_closes",      "contribution_refused", "chunk_refused",
    "state_differs",      "record_refused",  "bad_signature",        "own_contribution_lost",
    "duplicate_identity", "genesis_refused", "open_refused"};

ModelLayout tiny_layout() {
  // Several chunks, a short last frame, a tensor that shares its chunk with others.
  auto layout = ModelLayout::make(
      {{"a", Shape{7, 100}, 0}, {"b", Shape{33}, 0}, {"c", Shape{40, 30}, 0}, {"d", Shape{5}, 0}});
  ISTHMUS_ASSERT(layout.has_value());
  return std::move(*layout);
}

struct Site {
  SiteId id = 0;
  std::unique_ptr<SimulatedDisk> disk;
  std::unique_ptr<SyntheticRanks> ranks;
  std::unique_ptr<SimulatedProcess> process;  // null: down
  bool gone_for_good = false;
  bool dying = false;
  bool vote_lost = false;  // until a record readmits it
  bool has_newer_roster = false;
  std::uint64_t starts = 0;
  std::uint64_t announced_saved = 0;
  std::optional<std::uint64_t> worked_step;  // whose work was checked, in this life of the process
  bool announced_any = false;
  std::string crash_at;  // a named point
};

class Federation {
 public:
  Federation(const Scenario& scenario, std::uint64_t seed, bool keep_log)
      : scenario_(scenario),
        random_(Random(seed).split(scenario.name)),
        faults_(random_.split("faults")),
        network_(simulation_, random_.split("network"), scenario.network),
        layout_(tiny_layout()),
        keep_log_(keep_log),
        model_(layout_.elements(), scenario.outer, scenario.codec) {
    roster_.epoch = 1;
    roster_.expires = simulation_.unix_time() + 1'000'000 * kSecond;
    for (std::uint32_t i = 0; i < scenario_.sites; ++i) {
      security::RosterSite site;
      site.id = i + 1;
      site.name = fmt::format("s{}", i + 1);
      site.voter = i < scenario_.voters;
      site.gateways.resize(1);
      roster_.sites.push_back(site);
    }
    roster_.digest = security::blake2b(bytes_of("simulated roster"));
    for (std::uint32_t i = 0; i < scenario_.sites; ++i) {
      auto& site = sites_.emplace_back();
      site.id = i + 1;
      site.disk = std::make_unique<SimulatedDisk>(random_.split("disk").split(i));
      site.disk->set_faults({.lying = scenario_.bug == PlantedBug::lying_disk, .failing = 0});
      const bool slow = faults_.chance(scenario_.slow_sites);
      site.ranks = std::make_unique<SyntheticRanks>(
          simulation_, layout_, static_cast<int>(i), scenario_.compute * (slow ? 10 : 1),
          random_.split("ranks").split(i), [this, id = site.id](const auto& made) {
            model_.contributed(id, made.step, made.base, made.parameters, made.tokens);
          });
    }
    if (scenario_.blind_pair && scenario_.sites > 2) {
      const GatewayId a{1, 0}, b{2, 0};
      network_.cut(a, b, true);
      network_.cut(b, a, true);
    }
  }

  Outcome run();

 private:
  GatewayOptions options_of(std::uint32_t index);
  void start(std::uint32_t index);
  void crash(std::uint32_t index);
  void at_point(std::uint32_t index, const char* point, std::uint64_t step);
  void disturb(std::uint32_t index, std::uint64_t step, std::span<float> agreed);
  void plan_faults();
  void change_roster();
  void lose_majority();
  void recover();
  void check(std::uint32_t index);
  void check_at_end();
  void check_work(const Site& site, const Gateway& gateway);
  void violation(const std::string& what) {
    if (outcome_.violations.size() < 20)
      outcome_.violations.push_back(
          fmt::format("[{:.3f} s] {}", seconds_of(simulation_.now()), what));
  }
  void count(const std::string& name, std::uint64_t n = 1) { outcome_.counters[name] += n; }
  void collect(const Gateway& gateway);
  void poll(int actor);
  void log_event(const Event& event);
  bool trouble() const { return simulation_.now() < scenario_.trouble_ends; }
  bool all_finished() const;

  Scenario scenario_;
  Random random_, faults_;
  Simulation simulation_;
  SimulatedNetwork network_;
  ModelLayout layout_;
  security::Roster roster_, newer_roster_;
  std::vector<Site> sites_;
  bool keep_log_;
  Outcome outcome_;
  security::Hasher log_hash_;

  // What all must agree on.
  std::map<std::uint64_t, security::Digest> root_of_, record_of_;
  std::map<std::uint64_t, Record> records_;
  RunModel model_;
  std::map<std::pair<std::uint32_t, std::uint64_t>, std::uint32_t>
      memory_errors_;  // by site and step
};

// --- Life

void Federation::log_event(const Event& event) {
  const auto line = to_json(event);
  log_hash_.update(bytes_of(line));
  if (keep_log_) outcome_.log.push_back(line);
  if (event.id == "contributed" || event.id == "own_contribution_restored" ||
      event.id == "contribution_carried")
    model_.closed(static_cast<SiteId>(std::stoul(std::string(event.site.substr(1)))),
                  static_cast<std::uint64_t>(event.outer_step));
  if (kNever.count(event.id) > 0 && (scenario_.memory_errors == 0 || event.id != "state_differs"))
    violation(fmt::format("{} at {}: {}", event.id, event.site, line));
  if (event.severity == Severity::alarm) count(fmt::format("alarm {}", event.id));
}

GatewayOptions Federation::options_of(std::uint32_t index) {
  GatewayOptions options;
  options.sync.outer_steps = scenario_.outer_steps;
  options.sync.outer = scenario_.outer;
  options.sync.codec = scenario_.codec;
  options.sync.min_sites = scenario_.min_sites;
  options.sync.absent_steps = scenario_.absent_steps;
  options.sync.chunk_elements = 256;
  options.folder = "outer";
  options.first_wait = 20 * kSecond;
  options.straggler_wait = 60 * kSecond;
  options.link.bug = scenario_.bug;
  options.at_point = [this, index](const char* point, std::uint64_t step) {
    at_point(index, point, step);
  };
  options.disturb = [this, index](std::uint64_t step, std::span<float> agreed) {
    disturb(index, step, agreed);
  };
  return options;
}

void Federation::start(std::uint32_t index) {
  auto& site = sites_[index];
  if (site.process || site.gone_for_good) return;
  const int actor = static_cast<int>(index);
  site.process = std::make_unique<SimulatedProcess>(
      SimulatedProcess::World{simulation_, network_, *site.disk, *site.ranks, actor},
      site.has_newer_roster ? newer_roster_ : roster_, site.id, options_of(index),
      random_.split("life").split(index).split(site.starts++),
      [this](const Event& event) { log_event(event); });
  // The ranks attach when the gateway is up.
  simulation_.after(100 * kMillisecond, actor, [this, index, starts = site.starts] {
    auto& s = sites_[index];
    if (s.process && s.starts == starts) s.ranks->attach(s.process->gateway());
  });
  poll(actor);
}

void Federation::crash(std::uint32_t index) {
  auto& site = sites_[index];
  site.dying = false;
  if (!site.process) return;
  collect(site.process->gateway());
  site.worked_step.reset();
  const bool has_run = site.process->gateway().genesis().has_value();
  site.ranks->detach();
  site.process.reset();
  site.disk->crash();
  count("crashes");
  // Never more than leaves a majority: beyond that only the operator can help.
  const auto voters = std::min<std::size_t>(scenario_.voters, scenario_.sites);
  const auto without = static_cast<std::size_t>(
      std::count_if(sites_.begin(), sites_.end(), [](const Site& s) { return s.vote_lost; }));
  // While the run is being founded a lost vote file means to begin it anew.
  if (has_run && faults_.chance(scenario_.votes_lost) && trouble() && index < voters &&
      (site.vote_lost || without + 1 <= voters - (voters / 2 + 1))) {
    site.disk->lose("outer/vote");
    site.vote_lost = true;
    count("vote files lost");
  }
  if (faults_.chance(0.5)) site.ranks->restart();
  simulation_.after(
      static_cast<Nanoseconds>((0.5 + 20 * faults_.uniform() * faults_.uniform()) * 1e9), -1,
      [this, index] { start(index); });
}

void Federation::at_point(std::uint32_t index, const char* point, std::uint64_t) {
  auto& site = sites_[index];
  if (site.dying || site.crash_at != point) return;
  site.crash_at.clear();
  site.dying = true;
  count(fmt::format("killed {}", point));
  // Whatever this process still does is not seen by anybody.
  site.process->mute();
  site.disk->freeze();
  simulation_.after(0, -1, [this, index] { crash(index); });
}

// The same step may be computed wrongly again, in the same way or another; not for ever.
void Federation::disturb(std::uint32_t index, std::uint64_t step, std::span<float> agreed) {
  auto& errors = memory_errors_[{index, step}];
  if (errors >= scenario_.memory_errors_max ||
      !faults_.chance(errors == 0 ? scenario_.memory_errors : scenario_.memory_errors / 2))
    return;
  ++errors;
  agreed[faults_.below(agreed.size())] += 1 + static_cast<float>(faults_.below(2));
  count("memory errors");
}

void Federation::plan_faults() {
  const auto minutes = seconds_of(scenario_.trouble_ends) / 60;
  const auto times = [&](double rate) {
    std::vector<Nanoseconds> when;
    double t = 0;
    while (rate > 0) {
      t += -std::log(1 - faults_.uniform()) / rate;
      if (t >= minutes) break;
      when.push_back(static_cast<Nanoseconds>(t * 60e9));
    }
    return when;
  };
  static constexpr const char* kPoints[] = {"before_close", "between_vote_and_accept", "saving",
                                            "merging",      "state_transfer",          "final"};
  for (std::uint32_t i = 0; i < scenario_.sites; ++i) {
    for (const auto when : times(scenario_.crashes)) {
      if (faults_.chance(0.5))
        simulation_.at(when, -1, [this, i] { crash(i); });
      else
        simulation_.at(
            when, -1, [this, i, point = kPoints[faults_.below(6)]] { sites_[i].crash_at = point; });
    }
    for (const auto when : times(scenario_.disk_full)) {
      simulation_.at(when, -1, [this, i] {
        sites_[i].disk->set_faults(
            {.lying = scenario_.bug == PlantedBug::lying_disk, .failing = 0.5});
      });
      simulation_.at(when + 15 * kSecond, -1, [this, i] {
        sites_[i].disk->set_faults(
            {.lying = scenario_.bug == PlantedBug::lying_disk, .failing = 0});
      });
    }
    for (const auto when : times(scenario_.partitions)) {
      if (scenario_.sites < 2) break;
      const auto j = (i + 1 + static_cast<std::uint32_t>(faults_.below(scenario_.sites - 1))) %
                     scenario_.sites;
      const bool one_way = faults_.chance(scenario_.one_way);
      const auto length = static_cast<Nanoseconds>(faults_.uniform() * 30e9);
      const GatewayId a{i + 1, 0}, b{j + 1, 0};
      simulation_.at(when, -1, [this, a, b, one_way] {
        network_.cut(a, b, true);
        if (!one_way) network_.cut(b, a, true);
        count(one_way ? "one-way partitions" : "partitions");
      });
      simulation_.at(when + length, -1, [this, a, b] {
        if (scenario_.blind_pair && a.site + b.site == 3) return;
        network_.cut(a, b, false);
        network_.cut(b, a, false);
      });
    }
    for (const auto when : times(scenario_.broken_connections)) {
      if (scenario_.sites < 2) break;
      const auto j = (i + 1 + static_cast<std::uint32_t>(faults_.below(scenario_.sites - 1))) %
                     scenario_.sites;
      simulation_.at(when, -1, [this, i, j] {
        network_.break_connections({i + 1, 0}, {j + 1, 0});
      });
    }
  }
  simulation_.at(scenario_.trouble_ends, -1, [this] {
    auto calm = scenario_.network;
    calm.loss = std::min(calm.loss, 0.01);
    network_.set_faults(calm);
    for (auto& site : sites_) site.crash_at.clear();
  });
}

// Each site is started again with the newer roster at a time of its own.
void Federation::change_roster() {
  newer_roster_ = roster_;
  newer_roster_.epoch = 2;
  newer_roster_.digest = security::blake2b(bytes_of("newer simulated roster"));
  for (auto& site : newer_roster_.sites) site.voter = site.id != 1;
  for (std::uint32_t i = 0; i < sites_.size(); ++i)
    simulation_.after(static_cast<Nanoseconds>(faults_.uniform() * 20e9), -1, [this, i] {
      sites_[i].has_newer_roster = true;
      crash(i);
    });
}

void Federation::lose_majority() {
  const auto voters = std::min<std::size_t>(scenario_.voters, scenario_.sites);
  for (std::uint32_t i = 0; i < voters / 2 + 1; ++i) {
    crash(i);
    sites_[i].gone_for_good = true;
  }
  simulation_.after(10 * kSecond, -1, [this] { recover(); });
}

// The operator asks the survivors for the newest state that any of them has.
void Federation::recover() {
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
    site.announced_saved = std::min(site.announced_saved, recovery.step);
    crash(i);
  }
}

void Federation::poll(int actor) {
  if (actor < 0) return;
  auto& site = sites_[static_cast<std::size_t>(actor)];
  if (!site.process) return;
  site.process->loop().run_ready();
}

void Federation::collect(const Gateway& gateway) {
  const auto c = gateway.counters();
  count("ballots above 0", c.ballots_above_zero);
  count("re-proposals", c.reproposals);
  count("unnamed contributions", c.unnamed);
  count("relayed bytes", c.relayed);
  count("relayed messages", c.relayed_messages);
  count("state fetches", c.state_fetches);
  count("votes lost", c.votes_lost);
  count("readmissions", c.readmitted);
  count("view changes", c.view_changes);
  count("states disputed", c.divergences);
  count("voters changed", c.voters_changed);
}

bool Federation::all_finished() const {
  return std::all_of(sites_.begin(), sites_.end(), [](const Site& site) {
    return site.gone_for_good || (site.process && site.process->gateway().told_the_end());
  });
}

Outcome Federation::run() {
  for (std::uint32_t i = 0; i < scenario_.sites; ++i) {
    const bool late = i > 0 && faults_.chance(scenario_.absent_start) && i >= scenario_.voters;
    simulation_.at(static_cast<Nanoseconds>(
                       (late ? 30 + 30 * faults_.uniform() : 2 * faults_.uniform()) * 1e9),
                   -1, [this, i] { start(i); });
  }
  plan_faults();
  bool leaving_planned =
      scenario_.one_leaves_for_good || scenario_.roster_changes || scenario_.majority_lost;
  while (simulation_.now() < scenario_.limit && outcome_.violations.empty()) {
    // The next thing to happen: an event of the simulation, or a timer of some gateway.
    std::optional<Nanoseconds> next;
    int who = -1;
    if (!simulation_.empty()) next = simulation_.next();
    for (std::uint32_t i = 0; i < sites_.size(); ++i) {
      if (!sites_[i].process) continue;
      const auto timer = sites_[i].process->loop().next_timer();
      if (timer && (!next || *timer < *next)) {
        next = timer;
        who = static_cast<int>(i);
      }
    }
    if (!next) break;
    ++outcome_.events;
    int actor = who;
    if (who < 0)
      actor = simulation_.run_one();
    else
      simulation_.advance(std::max(simulation_.now(), *next));
    poll(actor);
    if (actor >= 0) check(static_cast<std::uint32_t>(actor));
    if (leaving_planned && !records_.empty() &&
        records_.rbegin()->first > scenario_.outer_steps / 3) {
      leaving_planned = false;
      if (scenario_.roster_changes) change_roster();
      if (scenario_.majority_lost) lose_majority();
      if (!scenario_.one_leaves_for_good) continue;
      auto& last = sites_.back();
      last.gone_for_good = true;
      if (last.process) {
        collect(last.process->gateway());
        last.ranks->detach();
        last.process.reset();
      }
    }
    if (all_finished()) {
      outcome_.finished = true;
      break;
    }
  }
  for (auto& site : sites_)
    if (site.process) collect(site.process->gateway());
  if (outcome_.violations.empty()) check_at_end();
  outcome_.steps = records_.empty() ? 0 : records_.rbegin()->first;
  outcome_.simulated_seconds = seconds_of(simulation_.now());
  outcome_.log_hash = log_hash_.finish().hex();
  return outcome_;
}

// --- Invariants

void Federation::check(std::uint32_t index) {
  auto& site = sites_[index];
  if (!site.process || site.dying) return;
  const auto& process = *site.process;
  const auto& gateway = process.gateway();
  if (process.failure() && process.failure()->code != ErrorCode::disk_full &&
      process.failure()->code != ErrorCode::io)
    violation(fmt::format("s{} failed: {}", site.id, process.failure()->text()));
  if (process.failure()) {
    // A full disk ended it, as it should; its launcher starts it again.
    site.dying = true;
    simulation_.after(kSecond, -1, [this, index] { crash(index); });
    return;
  }
  // 2. A decided record is never undone, and there is one history.
  for (auto k = gateway.chain().size(); k > 0; --k) {
    const auto& record = gateway.chain()[k - 1].record;
    const auto [known, fresh] = record_of_.emplace(k, record.hash());
    if (fresh) records_.emplace(k, record);
    if (known->second != record.hash())
      violation(fmt::format("s{} holds another record {}", site.id, k));
    if (!fresh) break;
  }
  if (gateway.genesis() && gateway.has_vote()) site.vote_lost = false;
  if (gateway.state()) {
    // 1. Equal records, equal bits.
    // With broken memory only records tell which root is right, in the end.
    const auto step = gateway.state()->step;
    const auto [known, fresh] = root_of_.emplace(step, gateway.root());
    if (known->second != gateway.root() && scenario_.memory_errors == 0)
      violation(fmt::format("s{} has another state {}", site.id, step));
    if (scenario_.memory_errors == 0 && site.worked_step != step &&
        (records_.empty() ? step == 0 : records_.rbegin()->first >= step)) {
      site.worked_step = step;
      check_work(site, gateway);
    }
    // 3. What was announced as saved is there, also after a crash.
    if (site.announced_any && gateway.saved_step() < site.announced_saved &&
        step < site.announced_saved)
      violation(fmt::format("s{} had announced step {} as saved, and came back with {}", site.id,
                            site.announced_saved, step));
    site.announced_saved = std::max(site.announced_saved, gateway.saved_step());
    site.announced_any = true;
    // 7. Memory: the contributions of the few steps that are not yet pruned.
    const auto bound = 4 * (4 * layout_.elements() + 4096) * scenario_.sites;
    if (gateway.memory_bytes() > bound)
      violation(
          fmt::format("s{} holds {} bytes of contributions", site.id, gateway.memory_bytes()));
  }
  // 4, 6. An acknowledged chunk is there.
  for (const auto& peer : sites_) {
    if (peer.id == site.id || !peer.process || peer.dying) continue;
    const auto& theirs = peer.process->gateway();
    if (gateway.session_with(peer.id) == 0 ||
        gateway.session_with(peer.id) != theirs.session_with(site.id))
      continue;
    for (const auto& [transfer, chunk] : gateway.acknowledged_chunks(peer.id))
      if (theirs.lacks_chunk(transfer, chunk))
        violation(fmt::format("s{} acknowledged chunk {} of a transfer of s{} and does not have it",
                              peer.id, chunk, site.id));
  }
}

void Federation::check_at_end() {
  if (!outcome_.finished) {
    std::string where;
    for (const auto& site : sites_)
      where += fmt::format(
          " s{}:{}", site.id,
          site.process ? fmt::format("{}{}",
                                     site.process->gateway().state()
                                         ? std::to_string(site.process->gateway().state()->step)
                                         : "-",
                                     site.process->gateway().finished() ? "f" : "")
                       : "down");
    for (const auto& site : sites_) {
      if (!site.process) continue;
      for (const auto& link : site.process->gateway().status().links)
        if (!link.waiting_for.empty())
          where += fmt::format(" s{}→{} waits for {}", site.id, link.peer, link.waiting_for);
    }
    violation(fmt::format("the run did not finish: {} of {} steps;{}",
                          records_.empty() ? 0 : records_.rbegin()->first, scenario_.outer_steps,
                          where));
    return;
  }
  std::optional<security::Digest> ended;
  for (const auto& site : sites_) {
    if (!site.process || !site.process->gateway().state()) continue;
    const auto& gateway = site.process->gateway();
    if (!ended) ended = gateway.root();
    if (gateway.root() != *ended)
      violation(fmt::format("s{} ended with another state than others", site.id));
    check_work(site, gateway);
  }
}

// 9. Work is conserved: the state is made of what the ranks contributed and records name, and the
// rest of it rides in the next contribution.
void Federation::check_work(const Site& site, const Gateway& gateway) {
  const auto step = gateway.state()->step;
  std::vector<SiteId> ids;
  for (const auto& each : sites_) ids.push_back(each.id);
  std::vector<std::string> wrong;
  const auto model = model_.after(step, records_, ids, wrong);
  for (const auto& what : wrong) violation(what);
  // Whole numbers would be missing or doubled; roundings stay far below.
  constexpr double kRounding = 0.05;
  const auto far = [](std::span<const float> here, std::span<const double> there) {
    double worst = 0;
    for (std::size_t i = 0; i < here.size(); ++i)
      worst = std::max(worst,
                       std::abs(static_cast<double>(here[i]) - (there.empty() ? 0.0 : there[i])));
    return worst;
  };
  if (const double away = far(gateway.state()->agreed, model.agreed); away > kRounding)
    violation(fmt::format("s{} is {} away from the model after step {}", site.id, away, step));
  const auto rest = model.feedback.find(site.id);
  const std::span<const double> expected =
      rest == model.feedback.end() ? std::span<const double>() : rest->second;
  if (gateway.feedback().empty()) return;  // it rides already, or there is none
  if (const double away = far(gateway.feedback(), expected); away > kRounding)
    violation(fmt::format("the feedback of s{} is {} away from the model after step {}", site.id,
                          away, step));
}

}  // namespace

Outcome run_federation(const Scenario& scenario, std::uint64_t seed, bool keep_log) {
  return Federation(scenario, seed, keep_log).run();
}

}  // namespace isthmus::inter::sim
