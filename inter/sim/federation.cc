#include "inter/sim/federation.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/assert.h"
#include "inter/chunk_seal.h"
#include "inter/sim/federation_run.h"

namespace isthmus::inter::sim {
namespace {

// What no fault of the world can cause: whoever writes one of these has met a bug.
const std::set<std::string_view> kNever = {
    "two_contributions", "two_closes",    "contribution_refused", "chunk_refused",
    "record_refused",    "bad_signature", "message_too_large",    "duplicate_identity",
    "genesis_refused",   "open_refused"};
// What memory that fails can cause, and nothing else.
const std::set<std::string_view> kOfBrokenMemory = {"state_differs", "spot_root_differs"};

constexpr std::uint64_t kChunkElements = 256;
constexpr std::uint32_t kConnectionsMax = 8;  // of bulk; more would only be more of the same

ModelLayout tiny_layout(std::uint32_t elements) {
  // Two groups of chunks or more, a short last frame, tensors that share a chunk.
  auto layout = ModelLayout::make({{"a", Shape{7, 100}, 0},
                                   {"b", Shape{33}, 0},
                                   {"c", Shape{elements / 40, 40}, 0},
                                   {"d", Shape{5}, 0}});
  ISTHMUS_ASSERT(layout.has_value());
  ISTHMUS_ASSERT(layout->chunks(0, kChunkElements).size() > kSealedTogether);
  return std::move(*layout);
}

std::vector<std::size_t> elements_of(const ModelLayout& layout) {
  std::vector<std::size_t> all;
  for (const auto& tensor : layout.tensors())
    all.push_back(static_cast<std::size_t>(tensor.shape.elements()));
  return all;
}

}  // namespace

FederationRun::FederationRun(const Scenario& scenario, std::uint64_t seed, bool keep_history,
                             const PartOfRun& part)
    : scenario_(scenario),
      random_(Random(seed).split(scenario.name)),
      chance_(random_.split("chance")),
      network_(simulation_, random_.split("network"), scenario.network),
      layout_(tiny_layout(scenario.elements)),
      keep_history_(keep_history),
      model_(elements_of(layout_), scenario.outer, scenario.codec),
      memory_fails_(scenario.memory_errors > 0),
      votes_(memory_fails_, [this](const std::string& what) { violation(what); }) {
  choose_faults(part);
  roster_.epoch = 1;
  roster_.expires = simulation_.unix_time() + scenario_.roster_expires;
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
    auto clock = random_.split("clock").split(i);
    site.clock = std::make_unique<SimulatedClock>(
        simulation_,
        static_cast<std::int64_t>((2 * clock.uniform() - 1) * scenario_.clock_drift * 1e6));
    site.disk = std::make_unique<SimulatedDisk>(random_.split("disk").split(i), &simulation_);
    set_disk(i);
    auto connections = random_.split("connections").split(i);
    site.bulk_connections_max = connections.chance(scenario_.few_connections)
                                    ? 1 + static_cast<std::uint32_t>(connections.below(4))
                                    : kConnectionsMax;
    site.ranks = std::make_unique<SyntheticRanks>(
        simulation_, layout_, static_cast<int>(i), scenario_.compute,
        random_.split("ranks").split(i), [this, i](const auto& made) {
          model_.contributed(sites_[i].id, sites_[i].wipes, made.step, made.base, made.parameters,
                             made.tokens);
        });
  }
  lay_lines();
  apply_standing_cuts();
}

void FederationRun::lay_lines() {
  auto lines = random_.split("lines");
  for (auto& site : sites_) {
    site.bytes_per_second =
        scenario_.network.bytes_per_second / (lines.chance(scenario_.slow_lines) ? 10 : 1);
    network_.set_access(site.id, site.bytes_per_second);
  }
  for (const auto& a : sites_)
    for (const auto& b : sites_) {
      if (a.id >= b.id || scenario_.delay_spread <= 0) continue;
      const double factor = 1 + scenario_.delay_spread * (2 * lines.uniform() - 1);
      network_.set_delay(
          {a.id, 0}, {b.id, 0},
          static_cast<Nanoseconds>(static_cast<double>(scenario_.network.delay) * factor));
    }
}

void FederationRun::violation(const std::string& what) {
  if (outcome_.violations.size() < 20)
    outcome_.violations.push_back(
        fmt::format("[{:.3f} s] {}", seconds_of(simulation_.now()), what));
}

// --- Life

void FederationRun::log_event(const Event& event) {
  const auto line = to_json(event);
  log_hash_.update(bytes_of(line));
  if (keep_history_)
    outcome_.history.log.push_back({simulation_.now(), std::string(event.site),
                                    std::string(event.id), std::string(event.peer),
                                    event.outer_step, line});
  if (event.id == "contributed" || event.id == "contribution_carried") {
    const auto& site = site_of(event.site);
    model_.closed(site.id, site.wipes, static_cast<std::uint64_t>(event.outer_step));
  }
  if (kNever.contains(event.id) || (!memory_fails_ && kOfBrokenMemory.contains(event.id)))
    violation(fmt::format("{} at {}: {}", event.id, event.site, line));
  if (event.severity == Severity::alarm) count(fmt::format("alarm {}", event.id));
  if (line.find(kNoDescriptors) != std::string::npos) ++site_of(event.site).lacked_descriptors;
}

FederationRun::Site& FederationRun::site_of(std::string_view name) {
  return sites_[std::stoul(std::string(name.substr(1))) - 1];
}

GatewayOptions FederationRun::options_of(std::uint32_t index) {
  GatewayOptions options;
  options.sync.outer_steps = scenario_.outer_steps;
  options.sync.outer = scenario_.outer;
  options.sync.codec = scenario_.codec;
  options.sync.min_sites = scenario_.min_sites;
  options.sync.absent_steps = scenario_.absent_steps;
  options.sync.chunk_elements = kChunkElements;
  if (sites_[index].other_settings) {
    if (other_setting_ == 0)
      options.sync.outer.kind =
          scenario_.outer.has_momentum() ? OuterRuleKind::average : OuterRuleKind::nesterov;
    else if (other_setting_ == 1)
      options.sync.codec = scenario_.codec == compress::CodecId::none ? compress::CodecId::bf16
                                                                      : compress::CodecId::none;
    else
      options.sync.chunk_elements = 2 * kChunkElements;
  }
  options.folder = "outer";
  options.first_wait = 20 * kSecond;
  options.straggler_wait = 60 * kSecond;
  options.link.bug = scenario_.bug;
  if (scenario_.window_chunks > 0) {
    options.link.window_chunks = scenario_.window_chunks;
    options.link.window_bytes = options.link.window_bytes_max = 0;  // it does not grow
  }
  options.link.bulk_connections_max = sites_[index].bulk_connections_max;
  if (scenario_.rate_limited)
    options.rate_limit_bytes_per_second =
        0.9 * scenario_.network.up_share * sites_[index].bytes_per_second;
  options.at_point = [this, index](const char* point, std::uint64_t step) {
    at_point(index, point, step);
  };
  options.disturb = [this, index](std::uint64_t step, std::span<float> agreed) {
    disturb(index, step, agreed);
  };
  return options;
}

void FederationRun::start(std::uint32_t index) {
  auto& site = sites_[index];
  if (site.process || site.gone_for_good || site.held_down) return;
  const int actor = static_cast<int>(index);
  effects_.end(site.crash, simulation_.now());
  site.has_run_since.reset();
  site.sees_since.clear();
  if (scenario_.clock_drift > 0)
    site.clock->restart(static_cast<Nanoseconds>(1e15 * chance_.uniform()));
  site.process = std::make_unique<SimulatedProcess>(
      SimulatedProcess::World{simulation_, network_, *site.disk, *site.ranks, actor, &votes_,
                              site.clock.get()},
      site.has_newer_roster ? newer_roster_ : roster_, site.id, options_of(index),
      random_.split("life").split(index).split(site.starts++),
      [this](const Event& event) { log_event(event); });
  // The ranks attach when the gateway is up.
  simulation_.after(100 * kMillisecond, actor, [this, index, starts = site.starts] {
    auto& s = sites_[index];
    if (s.process && s.starts == starts && !s.ranks_dead) s.ranks->attach(s.process->gateway());
  });
  poll(actor);
  if (site.process->gateway().genesis()) site.has_run_since = 0;
}

void FederationRun::start_after(std::uint32_t index, Nanoseconds delay) {
  simulation_.after(delay, -1, [this, index] { start(index); });
}

void FederationRun::start_soon(std::uint32_t index) {
  const auto soon =
      static_cast<Nanoseconds>((0.5 + 20 * chance_.uniform() * chance_.uniform()) * 1e9);
  start_after(index, std::max(soon, scenario_.gone_for));
}

void FederationRun::poll(int actor) {
  if (actor < 0) return;
  auto& site = sites_[static_cast<std::size_t>(actor)];
  if (!site.process || site.paused) return;
  site.process->loop().run_ready();
  if (site.process->ended()) site.process->mute();
}

void FederationRun::collect(const Gateway& gateway) {
  const auto c = gateway.counters();
  count("ballots above 0", c.ballots_above_zero);
  count("re-proposals", c.reproposals);
  count("unnamed contributions", c.unnamed);
  count("chunks stepped ahead", c.stepped_ahead);
  count("relayed bytes", c.relayed);
  count("relayed messages", c.relayed_messages);
  count("state fetches", c.state_fetches);
  count("votes lost", c.votes_lost);
  count("readmissions", c.readmitted);
  count("view changes", c.view_changes);
  count("states disputed", c.divergences);
  count("votes under way when a step began anew", c.votes_under_way);
  count("voters changed", c.voters_changed);
  for (const auto& link : gateway.status().links) {
    count("chunks sent", link.chunks_sent);
    count("chunks sent again", link.chunks_resent);
  }
}

bool FederationRun::all_finished() const {
  return std::all_of(sites_.begin(), sites_.end(), [](const Site& site) {
    return site.gone_for_good || (site.process && site.process->gateway().told_the_end());
  });
}

Outcome FederationRun::run() {
  std::set<std::uint32_t> late;
  for (const auto place : places_)
    if (const auto& fault = outcome_.faults[place]; fault.kind == FaultKind::late_start)
      late.insert(fault.site);
  for (std::uint32_t i = 0; i < scenario_.sites; ++i)
    if (late.count(i) == 0) start_after(i, static_cast<Nanoseconds>(2e9 * chance_.uniform()));
  schedule_faults();
  bool before_a_third = true;
  while (simulation_.now() < scenario_.limit && outcome_.violations.empty()) {
    // The next thing to happen: an event of the simulation, or a timer of some gateway.
    std::optional<Nanoseconds> next;
    int who = -1;
    if (!simulation_.empty()) next = simulation_.next();
    for (std::uint32_t i = 0; i < sites_.size(); ++i) {
      if (!sites_[i].process || sites_[i].paused) continue;
      const auto timer = sites_[i].process->next_timer();
      if (timer && (!next || *timer < *next)) {
        next = timer;
        who = static_cast<int>(i);
      }
    }
    if (!next) break;
    ++outcome_.events;
    if (who < 0 && simulation_.next_actor() >= 0 &&
        sites_[static_cast<std::size_t>(simulation_.next_actor())].paused) {
      auto& site = sites_[static_cast<std::size_t>(simulation_.next_actor())];
      site.held_up.push_back(simulation_.take_one());
      continue;
    }
    int actor = who;
    if (who < 0)
      actor = simulation_.run_one();
    else
      simulation_.advance(std::max(simulation_.now(), *next));
    poll(actor);
    if (actor >= 0) check(static_cast<std::uint32_t>(actor));
    if (!broken_.empty()) note_lanes_back();
    if (before_a_third && newest_step() > scenario_.outer_steps / 3) {
      before_a_third = false;
      at_a_third();
    }
    if (all_finished()) {
      outcome_.finished = true;
      break;
    }
  }
  for (auto& site : sites_)
    if (site.process) collect(site.process->gateway());
  count("messages lost or repeated", network_.counters().lost + network_.counters().duplicated);
  if (scenario_.window_chunks > 0) count("most chunks of a peer not yet checked", most_unsettled_);
  if (outcome_.violations.empty()) check_at_end();
  std::ranges::sort(outcome_.happened);
  auto struck = effects_.finish();
  if (keep_history_) {
    outcome_.history.struck = std::move(struck);
    for (const auto& [step, record] : records_)
      outcome_.history.decided[step] = {decided_at_[step], record};
  }
  outcome_.steps = newest_step();
  outcome_.simulated_seconds = seconds_of(simulation_.now());
  outcome_.log_hash = log_hash_.finish().hex();
  return outcome_;
}

std::vector<Fault> faults_of(const Scenario& scenario, std::uint64_t seed) {
  return plan_faults(scenario, Random(seed).split(scenario.name).split("faults"));
}

Outcome run_federation(const Scenario& scenario, std::uint64_t seed, bool keep_history,
                       const PartOfRun& part) {
  return FederationRun(scenario, seed, keep_history, part).run();
}

}  // namespace isthmus::inter::sim
