#include "inter/sim/simulated_process.h"

#include <memory>
#include <utility>

namespace isthmus::inter::sim {

SimulatedProcess::SimulatedProcess(const World& world, const security::Roster& roster, SiteId self,
                                   const GatewayOptions& options, const Random& life,
                                   std::function<void(const Event&)> on_event)
    : loop_(world.simulation),
      log_(world.simulation, roster.find(self)->name),
      signer_(self, world.votes),
      verifier_(roster) {
  workers_ =
      std::make_unique<SimulatedWorkers>(world.simulation, life.split("workers"), world.actor);
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

Task<void> SimulatedProcess::live() {
  auto result = co_await gateway_->run();
  if (!result) failure_ = result.error();
  ended_ = true;
}

}  // namespace isthmus::inter::sim
