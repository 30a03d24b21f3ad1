#include "tests/inter/scripted_federation.h"

#include <fmt/format.h>

#include <algorithm>

namespace isthmus::inter {
namespace {

std::vector<TensorInfo> tensors_of(const ScriptedFederation::Options& options) {
  std::vector<TensorInfo> tensors;
  for (std::int64_t i = 0; i < options.tensors; ++i)
    tensors.push_back({i == 0 ? "weight" : fmt::format("weight.{}", i),
                       Shape{options.elements / options.tensors}, 0});
  return tensors;
}

}  // namespace

ScriptedFederation::ScriptedFederation(Options options)
    : options_(std::move(options)),
      network_(simulation_, Random(options_.network_seed), options_.network),
      layout_(*ModelLayout::make(tensors_of(options_))),
      sites_(options_.compute.size()) {
  roster_.epoch = 1;
  roster_.expires = simulation_.unix_time() + 1'000'000 * kSecond;
  roster_.digest = security::blake2b(bytes_of("scripted roster"));
  for (SiteId id = 1; id <= sites_.size(); ++id) {
    security::RosterSite site;
    site.id = id;
    site.name = fmt::format("s{}", id);
    site.voter = options_.without_vote.count(id) == 0;
    site.gateways.resize(1);
    roster_.sites.push_back(site);
  }
  options_.gateway.folder = "outer";
  for (SiteId id = 1; id <= sites_.size(); ++id) {
    auto& site = sites_[id - 1];
    const auto actor = static_cast<int>(id - 1);
    site.disk = std::make_unique<sim::SimulatedDisk>(Random(id), &simulation_);
    site.ranks = std::make_unique<sim::SyntheticRanks>(
        simulation_, layout_, actor, options_.compute[id - 1], Random(id), [](const auto&) {});
    if (options_.puppets.count(id) > 0)
      site.puppet =
          std::make_unique<Puppet>(simulation_, network_, roster_, id,
                                   Fingerprint::of(layout_, options_.gateway.sync), actor);
    else if (options_.late.count(id) == 0)
      start(id);
  }
}

security::Roster ScriptedFederation::newer_roster(const std::set<SiteId>& voters) const {
  auto newer = roster_;
  newer.epoch += 1;
  newer.digest = security::blake2b(bytes_of("newer roster"));
  for (auto& site : newer.sites) site.voter = voters.contains(site.id);
  return newer;
}

void ScriptedFederation::start(SiteId id) {
  auto& site = sites_[id - 1];
  const auto actor = static_cast<int>(id - 1);
  auto own = options_.gateway;
  options_.adjust(id, own);
  const auto newer = newer_rosters_.find(id);
  site.process = std::make_unique<sim::SimulatedProcess>(
      sim::SimulatedProcess::World{simulation_, network_, *site.disk, *site.ranks, actor},
      newer != newer_rosters_.end() ? newer->second : roster_, id, own,
      Random(id).split(static_cast<std::uint64_t>(now())),
      [&site](const Event& event) { site.events.emplace_back(event.id); });
  simulation_.after(100 * kMillisecond, actor, [this, id] { ranks(id).attach(gateway(id)); });
  site.process->loop().run_ready();
}

bool ScriptedFederation::run_until(const std::function<bool()>& condition, Nanoseconds limit) {
  const auto end = now() + limit;
  while (!condition()) {
    // The next thing to happen: an event of the simulation, or a timer of some gateway.
    int who = -1;
    auto next = simulation_.empty() ? end + 1 : simulation_.next();
    for (std::size_t i = 0; i < sites_.size(); ++i) {
      const auto* loop = sites_[i].loop();
      const auto timer = loop != nullptr ? loop->next_timer() : std::nullopt;
      if (!timer || *timer >= next) continue;
      next = *timer;
      who = static_cast<int>(i);
    }
    if (next > end) {
      simulation_.advance(end);
      return false;
    }
    if (who < 0)
      who = simulation_.run_one();
    else
      simulation_.advance(std::max(now(), next));
    if (who < 0) continue;
    auto& site = sites_[static_cast<std::size_t>(who)];
    if (auto* loop = site.loop()) loop->run_ready();
    if (site.process && site.process->ended()) site.process->mute();
  }
  return true;
}

void ScriptedFederation::run_for(Nanoseconds time) {
  run_until([] { return false; }, time);
}

void ScriptedFederation::kill(SiteId id) {
  auto& site = sites_[id - 1];
  site.ranks->detach();
  site.process.reset();
  site.disk->crash();
}

void ScriptedFederation::end_ranks(SiteId site) {
  ranks(site).detach();
  gateway(site).detached();
}

void ScriptedFederation::cut(SiteId a, SiteId b, bool cut) {
  network_.cut({a, 0}, {b, 0}, cut);
  network_.cut({b, 0}, {a, 0}, cut);
}

void ScriptedFederation::cut_off(SiteId site, bool cut_it) {
  for (SiteId other = 1; other <= sites_.size(); ++other)
    if (other != site) cut(site, other, cut_it);
}

bool ScriptedFederation::finished() const {
  return std::ranges::all_of(sites_, [](const Site& site) {
    return !site.process || site.process->gateway().told_the_end();
  });
}

StepId ScriptedFederation::step_at_hand(SiteId site) {
  const auto& of = gateway(site);
  return {.run = of.genesis()->record.hash(),
          .view = of.view().digest(),
          .step = step(site) + 1,
          .fragment = 0};
}

std::uint64_t ScriptedFederation::step(SiteId site) {
  const auto state = gateway(site).state();
  return state ? state->step : 0;
}

std::size_t ScriptedFederation::events(SiteId site, std::string_view id) const {
  return static_cast<std::size_t>(std::ranges::count(sites_[site - 1].events, id));
}

}  // namespace isthmus::inter
