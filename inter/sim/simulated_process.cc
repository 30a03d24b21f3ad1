#include "inter/sim/simulated_process.h"

#include <memory>
#include <utility>

namespace isthmus::inter::sim {
namespace {

const Clock& clock_of(const SimulatedProcess::World& world) {
  if (world.clock != nullptr) return *world.clock;
  return world.simulation;
}

}  // namespace

SimulatedProcess::SimulatedProcess(const World& world, const security::Roster& roster, SiteId self,
                                   const GatewayOptions& options, const Random& life,
                                   std::function<void(const Event&)> on_event)
    : clock_(world.clock),
      loop_(clock_of(world)),
      log_(clock_of(world), roster.find(self)->name),
      signer_(self, world.votes),
      verifier_(roster) {
  workers_ = std::make_unique<SimulatedWorkers>(world.simulation, life.split("workers"),
                                                world.actor, world.disk);
  log_.add(make_callback_sink(std::move(on_event)));
  std::vector<GatewayId> peers;
  for (const auto& site : roster.sites)
    if (site.id != self) peers.push_back({site.id, 0});
  wire_ = std::make_unique<SimulatedWire>(world.network, GatewayId{self, 0}, peers, world.actor);
  gateway_ = std::make_unique<Gateway>(Gateway::World{loop_, *wire_, world.disk, *workers_, log_,
                                                      life.split("gateway"), signer_, verifier_},
                                       roster, self, options);
  gateway_->serve(world.ranks);
  loop_.spawn(live());
}

SimulatedProcess::~SimulatedProcess() {
  loop_.abandon();
  gateway_.reset();
  wire_.reset();
  workers_.reset();
}

std::optional<Nanoseconds> SimulatedProcess::next_timer() const {
  const auto timer = loop_.next_timer();
  if (!timer || clock_ == nullptr) return timer;
  if (due_.first != *timer) due_ = {*timer, clock_->when(*timer)};
  return due_.second;
}

Task<void> SimulatedProcess::live() {
  auto result = co_await gateway_->run();
  if (!result) failure_ = result.error();
  ended_ = true;
}

}  // namespace isthmus::inter::sim
