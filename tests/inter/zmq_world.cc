#include "tests/inter/zmq_world.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <thread>

#include "base/copy_to.h"
#include "tests/inter/free_ports.h"

namespace isthmus::inter {

struct ZmqWorld::Process {
  explicit Process(const Clock& clock, const std::string& name) : log(clock, name) {
    log.add(make_callback_sink([this](const Event& event) {
      const std::lock_guard lock(mutex);
      events.emplace_back(event.id);
    }));
  }

  EventLog log;
  mutable std::mutex mutex;  // guards events: the ZapHandler logs from its thread
  std::vector<std::string> events;
  security::Identity identity = security::Identity::generate();
  CurveKeyPair key;
  ZmqWireOptions options;
  std::unique_ptr<Loop> loop;
  std::unique_ptr<Wire> wire;
  bool paused = false;
};

ZmqWorld::ZmqWorld(std::size_t gateways) : clock_(make_system_clock()) {
  for (std::size_t i = 0; i < gateways; ++i)
    processes_.push_back(std::make_unique<Process>(*clock_, fmt::format("gateway {}", i)));
  for (std::size_t i = 0; i < gateways; ++i) {
    auto& process = *processes_[i];
    process.options.self = world_gateway(i);
    process.options.identity = &process.identity;
    process.key.public_key = process.identity.public_part().curve_key;
    copy_to(process.identity.curve_secret(), process.key.secret_key.begin());
    process.options.listen = process.options.own_address =
        fmt::format("127.0.0.1:{}", free_port_pair());
  }
  for (std::size_t i = 0; i < gateways; ++i)
    for (std::size_t j = 0; j < gateways; ++j)
      if (i != j)
        processes_[i]->options.peers.push_back(
            {world_gateway(j), fmt::format("gateway {}", j), processes_[j]->key.public_key,
             processes_[j]->identity.public_part().identity, processes_[j]->options.listen});
}

ZmqWorld::~ZmqWorld() {
  for (std::size_t i = 0; i < processes_.size(); ++i) kill(i);
}

Wire& ZmqWorld::start(std::size_t gateway, WireReceiver& receiver) {
  auto& process = *processes_[gateway];
  process.loop = std::make_unique<Loop>(*clock_);
  auto made = make_zmq_wire(*process.loop, process.log, process.options);
  if (!made) throw std::runtime_error(made.error().text());
  process.wire = std::move(*made);
  process.wire->receive_with(receiver);
  process.paused = false;
  return *process.wire;
}

void ZmqWorld::kill(std::size_t gateway) {
  processes_[gateway]->wire.reset();
  processes_[gateway]->loop.reset();
}

void ZmqWorld::pause(std::size_t gateway) { processes_[gateway]->paused = true; }

void ZmqWorld::resume(std::size_t gateway) { processes_[gateway]->paused = false; }

bool ZmqWorld::run_until(const std::function<bool()>& condition, Nanoseconds at_most) {
  const auto deadline = clock_->now() + at_most;
  for (;;) {
    bool any = false;
    for (auto& process : processes_)
      if (process->loop && !process->paused) any |= process->loop->run_ready();
    if (condition()) return true;
    if (clock_->now() >= deadline) return false;
    if (!any) std::this_thread::sleep_for(std::chrono::microseconds(300));
  }
}

ZmqWireOptions& ZmqWorld::options(std::size_t gateway) { return processes_[gateway]->options; }

const security::Identity& ZmqWorld::identity(std::size_t gateway) const {
  return processes_[gateway]->identity;
}

const CurveKeyPair& ZmqWorld::key(std::size_t gateway) const { return processes_[gateway]->key; }

std::string ZmqWorld::control_endpoint(std::size_t gateway) const {
  return "tcp://" + processes_[gateway]->options.listen;
}

std::size_t ZmqWorld::count_events(std::size_t gateway, std::string_view id) const {
  const auto& process = *processes_[gateway];
  const std::lock_guard lock(process.mutex);
  return static_cast<std::size_t>(std::ranges::count(process.events, id));
}

std::unique_ptr<WireWorld> make_zmq_world(std::size_t gateways) {
  return std::make_unique<ZmqWorld>(gateways);
}

}  // namespace isthmus::inter
