#include "inter/sim/simulated_network.h"

#include <fmt/format.h>

#include <algorithm>

namespace isthmus::inter::sim {
namespace {

constexpr std::size_t kControlQueue = 256;
constexpr std::size_t kBulkQueue = 4;
constexpr Nanoseconds kReconnect = 500 * kMillisecond;

}  // namespace

void SimulatedNetwork::set_faults(const NetworkFaults& faults) {
  const bool other_rate = faults.bytes_per_second != faults_.bytes_per_second;
  faults_ = faults;
  for (auto& [site, access] : access_) {
    if (other_rate) access->rate = faults.bytes_per_second;
    set_rates(*access);
  }
  for (auto& [ends, path] : paths_) {
    path.packet_loss = faults.packet_loss;
    if (own_delays_.count(ends) == 0) path.delay = faults.delay;
  }
}

SimulatedNetwork::Access& SimulatedNetwork::access(SiteId site) {
  auto& access = access_[site];
  if (!access) {
    access = std::make_unique<Access>(simulation_, faults_.bytes_per_second, faults_.queue_bytes);
    set_rates(*access);
  }
  return *access;
}

void SimulatedNetwork::set_rates(Access& access) {
  access.up.set_rate(access.rate * faults_.up_share / access.slowness);
  access.down.set_rate(access.rate / access.slowness);
  access.up.set_queue(faults_.queue_bytes);
  access.down.set_queue(faults_.queue_bytes);
}

void SimulatedNetwork::set_access(SiteId site, double bytes_per_second) {
  access(site).rate = bytes_per_second;
  set_rates(access(site));
}

void SimulatedNetwork::slow_down(SiteId site, double factor) {
  access(site).slowness = factor;
  set_rates(access(site));
}

SimulatedPath& SimulatedNetwork::path(GatewayId a, GatewayId b) {
  return paths_
      .try_emplace(key(a, b, Lane::control).first,
                   SimulatedPath{.delay = faults_.delay, .packet_loss = faults_.packet_loss})
      .first->second;
}

void SimulatedNetwork::set_delay(GatewayId a, GatewayId b, Nanoseconds delay) {
  path(a, b).delay = delay;
  own_delays_.insert(key(a, b, Lane::control).first);
}

const TcpStream* SimulatedNetwork::stream(GatewayId from, GatewayId to, Lane lane) const {
  const auto found = connections_.find(key(from, to, lane));
  if (found == connections_.end() || found->second.id == 0) return nullptr;
  return found->second.streams[from < to ? 0 : 1].get();
}

void SimulatedNetwork::cut(GatewayId from, GatewayId to, bool cut) {
  if (cut)
    cuts_.insert({from, to});
  else
    cuts_.erase({from, to});
}

void SimulatedNetwork::break_connections(GatewayId a, GatewayId b) {
  for (const auto lane : {Lane::control, Lane::bulk}) {
    drop(a, b, lane, true);
    schedule_connect(a, b, lane, kReconnect);
  }
}

void SimulatedNetwork::join(SimulatedWire& wire) {
  // The process that was here before left its connections behind; most of their other ends notice.
  wires_[wire.self_] = &wire;
  for (const auto peer : wire.peers_)
    for (const auto lane : {Lane::control, Lane::bulk}) {
      drop(wire.self_, peer, lane, !random_.chance(faults_.silent_deaths));
      schedule_connect(wire.self_, peer, lane, kReconnect / 10);
    }
}

void SimulatedNetwork::part(SimulatedWire& wire) {
  if (wires_[wire.self_] != &wire) return;
  wires_.erase(wire.self_);
  for (const auto peer : wire.peers_)
    for (const auto lane : {Lane::control, Lane::bulk})
      drop(wire.self_, peer, lane, !random_.chance(faults_.silent_deaths));
}

void SimulatedNetwork::schedule_connect(GatewayId a, GatewayId b, Lane lane, Nanoseconds delay) {
  simulation_.after(delay + static_cast<Nanoseconds>(random_.uniform() * 1e8), -1,
                    [=, this] { connect(a, b, lane); });
}

void SimulatedNetwork::connect(GatewayId a, GatewayId b, Lane lane) {
  const auto first = wires_.find(a), second = wires_.find(b);
  if (first == wires_.end() || second == wires_.end()) return;  // whoever returns connects
  if (!first->second->receiver_ || !second->second->receiver_ || is_cut(a, b) || is_cut(b, a)) {
    schedule_connect(a, b, lane, kReconnect);
    return;
  }
  if (first->second->peers_.count(b) == 0 || second->second->peers_.count(a) == 0) return;
  auto& connection = connections_[key(a, b, lane)];
  if (connection.id != 0) return;
  connection = Connection{};
  connection.id = ++last_connection_;
  for (const auto& [self, peer] : {std::pair(a, b), std::pair(b, a)}) {
    connection.streams[self < peer ? 0 : 1] =
        std::make_shared<TcpStream>(simulation_, access(self.site).up, access(peer.site).down,
                                    path(a, b), random_.split("stream").split(++streams_));
    simulation_.after(path(a, b).delay, wires_[self]->actor_,
                      [this, self = self, peer = peer, lane, id = connection.id] {
                        const auto found = wires_.find(self);
                        if (found == wires_.end() || connections_[key(self, peer, lane)].id != id)
                          return;
                        found->second->blocked_.erase({peer, lane});
                        found->second->told_[id] = {.peer = peer, .lane = lane};
                        found->second->receiver_->on_up(peer, lane, id);
                      });
  }
}

void SimulatedNetwork::drop(GatewayId a, GatewayId b, Lane lane, bool noticed) {
  auto& connection = connections_[key(a, b, lane)];
  const auto id = std::exchange(connection.id, 0);
  if (id == 0) return;
  for (const auto& stream : connection.streams) stream->end();
  tell_down(a, id, notice_after(noticed));
  tell_down(b, id, notice_after(noticed));
}

Nanoseconds SimulatedNetwork::notice_after(bool noticed) {
  if (!noticed) return static_cast<Nanoseconds>((5 + 15 * random_.uniform()) * 1e9);
  if (!random_.chance(faults_.late_downs)) return kMillisecond;
  return static_cast<Nanoseconds>(3e9 * random_.uniform());
}

void SimulatedNetwork::tell_down(GatewayId self, ConnectionId connection, Nanoseconds delay) {
  const auto wire = wires_.find(self);
  if (wire == wires_.end()) return;
  simulation_.after(delay, wire->second->actor_, [this, self, connection] {
    const auto found = wires_.find(self);
    if (found == wires_.end()) return;
    const auto told = found->second->told_.extract(connection);
    if (told.empty()) return;
    found->second->receiver_->on_down(told.mapped().peer, told.mapped().lane, connection);
  });
}

Result<void> SimulatedNetwork::send(SimulatedWire& from, GatewayId to, Lane lane, Bytes message,
                                    ConnectionId wanted) {
  if (wanted == 0) wanted = from.newest(to, lane);
  const auto told = from.told_.find(wanted);
  if (from.muted_ || told == from.told_.end() || told->second.dropped || told->second.peer != to ||
      told->second.lane != lane)
    return Error{ErrorCode::unavailable, "no connection"};
  const auto queue_max = lane == Lane::control ? kControlQueue : kBulkQueue;
  auto& connection = connections_[key(from.self_, to, lane)];
  if (connection.id != wanted) {  // dead, and this end does not know it yet
    if (told->second.stuck >= queue_max) return Error{ErrorCode::busy, "the queue is full"};
    ++told->second.stuck;
    ++counters_.lost;
    from.sent_[to] += message.size() + 64;
    return {};
  }
  const int direction = from.self_ < to ? 0 : 1;
  if (connection.queued[direction] >= queue_max) {
    from.blocked_.insert({to, lane});
    return Error{ErrorCode::busy, "the queue is full"};
  }
  const auto bytes = message.size() + 64;
  from.sent_[to] += bytes;
  ++connection.queued[direction];
  // It has left the queue when the access link has taken it, which it does not while the other end
  // stands still.
  const auto freed = [this, self = from.self_, to, lane, id = connection.id, direction] {
    auto& now = connections_[key(self, to, lane)];
    if (now.id != id) return;
    --now.queued[direction];
    const auto wire = wires_.find(self);
    if (wire == wires_.end() || wire->second->blocked_.count({to, lane}) == 0) return;
    simulation_.after(0, wire->second->actor_, [this, self, to, lane, id] {
      const auto writer = wires_.find(self);
      if (writer != wires_.end() && writer->second->receiver_ &&
          writer->second->blocked_.erase({to, lane}) > 0)
        writer->second->receiver_->on_writable(to, lane, id);
    });
  };
  const auto left = [this, to, lane, freed] {
    const auto other = wires_.find(to);
    if (other == wires_.end() || !other->second->paused_) return freed();
    other->second->waiting_[static_cast<std::size_t>(lane)].push_back(freed);
  };
  // How late each copy is, after TCP has brought it; empty: it is lost all the same.
  std::vector<Nanoseconds> copies;
  if (random_.chance(faults_.loss)) {
    ++counters_.lost;
  } else {
    copies.resize(random_.chance(faults_.duplicate) ? 2 : 1);
    counters_.duplicated += copies.size() - 1;
    for (std::size_t i = 0; i < copies.size(); ++i) {
      double late = faults_.jitter * random_.uniform();
      if (random_.chance(faults_.reorder) || i > 0) late += 10 * random_.uniform();
      copies[i] = static_cast<Nanoseconds>(static_cast<double>(path(from.self_, to).delay) * late);
    }
  }
  const auto arrived = [this, self = from.self_, to, lane, id = connection.id, copies,
                        shared = SharedBytes(std::move(message))] {
    const auto target = wires_.find(to);
    for (const auto late : copies)
      simulation_.after(
          late, target == wires_.end() ? -1 : target->second->actor_,
          [this, self, to, lane, id, shared] { deliver(self, to, lane, id, shared); });
  };
  connection.streams[direction]->send(bytes, left, arrived);
  return {};
}

void SimulatedNetwork::deliver(GatewayId from, GatewayId to, Lane lane, ConnectionId connection,
                               const SharedBytes& message) {
  const auto wire = wires_.find(to);
  // What was on its way when the connection died may still come out, until its end is told.
  const auto receivable = [&] {
    if (wire == wires_.end() || wire->second->muted_ || is_cut(from, to)) return false;
    const auto told = wire->second->told_.find(connection);
    return told != wire->second->told_.end() && !told->second.dropped;
  };
  if (!receivable()) {
    ++counters_.lost;
    return;
  }
  if (wire->second->paused_) {
    wire->second->waiting_[static_cast<std::size_t>(lane)].push_back(
        [=, this] { deliver(from, to, lane, connection, message); });
    return;
  }
  ++counters_.delivered;
  wire->second->received_[from] += message.size() + 64;
  wire->second->receiver_->on_message(from, lane, connection, message);
}

SimulatedWire::SimulatedWire(SimulatedNetwork& network, GatewayId self,
                             std::vector<GatewayId> peers, int actor)
    : network_(network), self_(self), peers_(peers.begin(), peers.end()), actor_(actor) {
  network_.join(*this);
}

SimulatedWire::~SimulatedWire() { network_.part(*this); }

void SimulatedWire::resume() {
  paused_ = false;
  for (auto& lane : waiting_)
    for (const auto& waiting : std::exchange(lane, {})) waiting();
}

void SimulatedWire::receive_with(WireReceiver& receiver) { receiver_ = &receiver; }

Result<void> SimulatedWire::send(GatewayId peer, Lane lane, WireMessage message,
                                 ConnectionId connection) {
  if (message.size() > (lane == Lane::control ? kControlMessageBytesMax : kBulkMessageBytesMax))
    return Error{ErrorCode::too_large, fmt::format("a message of {} bytes", message.size())};
  return network_.send(*this, peer, lane, std::move(message).whole(), connection);
}

ConnectionId SimulatedWire::newest(GatewayId peer, Lane lane) const {
  ConnectionId newest = 0;
  for (const auto& [id, told] : told_)
    if (told.peer == peer && told.lane == lane && !told.dropped) newest = id;
  return newest;
}

void SimulatedWire::reset(GatewayId peer, Lane lane, ConnectionId connection) {
  if (connection == 0) connection = newest(peer, lane);
  const auto told = told_.find(connection);
  if (told == told_.end() || told->second.dropped || told->second.peer != peer ||
      told->second.lane != lane)
    return;
  told->second.dropped = true;
  network_.tell_down(self_, connection, kMillisecond);
  // It may be dead already, with another one on its way.
  if (network_.connections_[SimulatedNetwork::key(self_, peer, lane)].id != connection) return;
  network_.drop(self_, peer, lane, true);
  network_.schedule_connect(self_, peer, lane, kReconnect);
}

std::uint64_t SimulatedWire::bytes_sent(GatewayId peer) const {
  const auto found = sent_.find(peer);
  return found == sent_.end() ? 0 : found->second;
}

std::uint64_t SimulatedWire::bytes_received(GatewayId peer) const {
  const auto found = received_.find(peer);
  return found == received_.end() ? 0 : found->second;
}

}  // namespace isthmus::inter::sim
