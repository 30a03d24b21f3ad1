#include "inter/sim/simulated_network.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "inter/zmq_wire.h"

namespace isthmus::inter::sim {
namespace {

constexpr std::size_t kControlQueue = 256;
constexpr std::size_t kBulkQueue = 4;

}  // namespace

void SimulatedNetwork::set_faults(const NetworkFaults& faults) {
  const bool other_rate = faults.bytes_per_second != faults_.bytes_per_second;
  faults_ = faults;
  for (auto& [site, access] : access_) {
    if (other_rate) access->rate = faults.bytes_per_second;
    set_rates(*access);
  }
  set_paths();
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

SimulatedPath& SimulatedNetwork::path(GatewayId from, GatewayId to, Lane lane) {
  const Way way{{from, to}, lane};
  const auto [found, is_new] = paths_.try_emplace(way);
  if (is_new) set_path(way, found->second);
  return found->second;
}

void SimulatedNetwork::set_path(const Way& way, SimulatedPath& path) const {
  const auto& [ends, lane] = way;
  const auto unordered = way_of(ends.first, ends.second, lane).first;
  const auto own = own_delays_.find(unordered);
  path.delay = own == own_delays_.end() ? faults_.delay : own->second;
  path.packet_loss = faults_.packet_loss;
  path.cut = cuts_.contains(ends) || (lane == Lane::bulk && bulk_cuts_.contains(unordered));
}

void SimulatedNetwork::set_paths() {
  for (auto& [way, path] : paths_) set_path(way, path);
}

void SimulatedNetwork::set_delay(GatewayId a, GatewayId b, Nanoseconds delay) {
  own_delays_[way_of(a, b, Lane::control).first] = delay;
  set_paths();
}

const TcpStream* SimulatedNetwork::stream(GatewayId from, GatewayId to, Lane lane) const {
  const auto places = places_.find(way_of(from, to, lane));
  if (places == places_.end() || places->second.empty()) return nullptr;
  return connections_.at(places->second.begin()->second).streams[from < to ? 0 : 1].get();
}

void SimulatedNetwork::cut_bulk(GatewayId a, GatewayId b, bool cut) {
  const auto path = way_of(a, b, Lane::bulk).first;
  if (cut)
    bulk_cuts_.insert(path);
  else
    bulk_cuts_.erase(path);
  set_paths();
  note_silence(a, b);
}

void SimulatedNetwork::cut(GatewayId from, GatewayId to, bool cut) {
  if (cut)
    cuts_.insert({from, to});
  else
    cuts_.erase({from, to});
  set_paths();
  note_silence(from, to);
}

bool SimulatedNetwork::silent(const Way& way) {
  const auto& [ends, lane] = way;
  return path(ends.first, ends.second, lane).cut || path(ends.second, ends.first, lane).cut;
}

// TCP gives up what is not acknowledged, and asks a connection for a sign of life that has nothing
// to send, if the gateway did not have something within its heartbeat.
void SimulatedNetwork::note_silence(GatewayId a, GatewayId b) {
  const ZmqWireOptions real;
  for (const auto lane : {Lane::control, Lane::bulk}) {
    const auto way = way_of(a, b, lane);
    if (!silent(way)) {
      if (silences_.erase(way) > 0)
        for (const auto& [self, peer] : {std::pair(a, b), std::pair(b, a)})
          if (wires_.contains(peer)) refuse_dead(self, peer, lane);
      continue;
    }
    if (!silences_.try_emplace(way, last_silence_ + 1).second) continue;
    ++last_silence_;
    for (const auto& [self, peer] : {std::pair(a, b), std::pair(b, a)}) {
      const auto idle = static_cast<double>(real.heartbeat_interval) * random_.uniform();
      simulation_.after(real.stall_timeout + static_cast<Nanoseconds>(idle), -1,
                        [=, this, self = self, peer = peer, silence = last_silence_] {
                          give_up(self, peer, lane, silence);
                        });
    }
  }
}

// Who sends on a connection that the other end has not, hears so, if it is there and can be heard.
void SimulatedNetwork::refuse_dead(GatewayId self, GatewayId peer, Lane lane) {
  const auto wire = wires_.find(self);
  if (wire == wires_.end() || silent(way_of(self, peer, lane))) return;
  const auto beat = static_cast<double>(ZmqWireOptions().heartbeat_interval);
  for (const auto& [id, told] : wire->second->told_)
    if (told.peer == peer && told.lane == lane && find(id) == nullptr)
      tell_down(self, id, static_cast<Nanoseconds>(beat * random_.uniform()));
}

void SimulatedNetwork::give_up(GatewayId self, GatewayId peer, Lane lane, std::uint64_t silence) {
  const auto lasting = silences_.find(way_of(self, peer, lane));
  const auto wire = wires_.find(self);
  if (lasting == silences_.end() || lasting->second != silence || wire == wires_.end()) return;
  for (const auto& [id, told] : wire->second->told_) {
    if (told.peer != peer || told.lane != lane || told.dropped) continue;
    kill(id);
    tell_down(self, id, 0);
  }
}

void SimulatedNetwork::refuse_connections(SiteId site, bool refuse) {
  if (refuse)
    refusing_.insert(site);
  else
    refusing_.erase(site);
}

void SimulatedNetwork::break_connections(GatewayId a, GatewayId b) {
  for (const auto lane : {Lane::control, Lane::bulk})
    kill_all(way_of(a, b, lane), [&](ConnectionId id) {
      tell_down(a, id, notice_after(true));
      tell_down(b, id, notice_after(true));
    });
}

void SimulatedNetwork::join(SimulatedWire& wire) {
  wires_[wire.self_] = &wire;
  wire.process_ = ++processes_;
  for (const auto peer : wire.peers_) {
    widths_.erase({wire.self_, peer});
    widths_max_.erase({wire.self_, peer});
    leave(wire.self_, peer);  // the process that was here before
    for (const auto lane : {Lane::control, Lane::bulk}) refuse_dead(peer, wire.self_, lane);
  }
}

void SimulatedNetwork::part(SimulatedWire& wire) {
  if (wires_[wire.self_] != &wire) return;
  wires_.erase(wire.self_);
  for (const auto peer : wire.peers_) leave(wire.self_, peer);
}

// Its connections are left behind; most of their other ends notice, where they are told.
void SimulatedNetwork::leave(GatewayId self, GatewayId peer) {
  for (const auto lane : {Lane::control, Lane::bulk}) {
    const bool noticed = !random_.chance(faults_.silent_deaths) && !path(self, peer, lane).cut;
    kill_all(way_of(self, peer, lane),
             [&](ConnectionId id) { tell_down(peer, id, notice_after(noticed)); });
  }
}

std::uint32_t SimulatedNetwork::width(const Way& way) const {
  const auto& [path, lane] = way;
  if (lane == Lane::control || faults_.tcp == SimulatedTcp::unseen) return 1;
  std::uint32_t width = 1;
  for (const auto& ends : {path, Path{path.second, path.first}})
    if (const auto found = widths_.find(ends); found != widths_.end())
      width = std::max(width, found->second);
  return std::min(width, width_max(way));
}

std::uint32_t SimulatedNetwork::width_max(const Way& way) const {
  const auto& [path, lane] = way;
  const auto told = widths_max_.find({path.second, path.first});  // the higher id dials
  return lane == Lane::bulk && told != widths_max_.end()
             ? told->second
             : std::numeric_limits<std::uint32_t>::max();
}

void SimulatedNetwork::widen(GatewayId self, GatewayId peer, std::uint32_t connections) {
  widths_[{self, peer}] = connections;
  const auto dialing = wires_.find(std::max(self, peer));
  if (dialing != wires_.end()) dial_places(*dialing->second, std::min(self, peer), Lane::bulk);
}

void SimulatedNetwork::limit_width(SimulatedWire& wire, GatewayId peer, std::uint32_t most) {
  widths_max_[{wire.self_, peer}] = std::max(1U, most);
  if (!wire.dials(peer)) return;
  std::vector<ConnectionId> beyond;
  for (const auto& [id, told] : wire.told_)
    if (told.peer == peer && told.lane == Lane::bulk && told.place >= most) beyond.push_back(id);
  for (const auto id : beyond) wire.reset(peer, Lane::bulk, id);
}

SimulatedNetwork::Connection* SimulatedNetwork::find(ConnectionId connection) {
  const auto found = connections_.find(connection);
  return found == connections_.end() ? nullptr : &found->second;
}

void SimulatedNetwork::kill(ConnectionId id) {
  const auto dead = connections_.extract(id);
  if (dead.empty()) return;
  const auto& connection = dead.mapped();
  places_[connection.way].erase(connection.place);
  for (const auto& stream : connection.streams) stream->end();
}

void SimulatedNetwork::kill_all(const Way& way, const std::function<void(ConnectionId)>& tell) {
  for (const auto& [place, id] : std::map(places_[way])) {
    kill(id);
    tell(id);
  }
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
    auto& end = *found->second;
    const auto told = end.told_.extract(connection);
    if (told.empty()) return;
    end.blocked_.erase(connection);
    const auto& [peer, lane, place, since, out, in, dropped, stuck] = told.mapped();
    if (end.dials(peer)) {
      const Dialing dialing{self, peer, lane, place, end.process_};
      auto& dialer = dialer_of(dialing);
      dialer.waits_from = simulation_.now();
      dial_after(dialer.delay.ended(simulation_.now(), true), dialing);
    }
    end.receiver_->on_down(peer, lane, connection);
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
  auto* const connection = find(wanted);
  if (connection == nullptr) {  // dead, and this end does not know it yet
    if (told->second.stuck >= queue_max) return Error{ErrorCode::busy, "the queue is full"};
    ++told->second.stuck;
    ++counters_.lost;
    from.sent_[to] += message.size() + SimulatedWire::kFramingBytes;
    return {};
  }
  const int direction = from.self_ < to ? 0 : 1;
  if (connection->queued[direction] >= queue_max) {
    from.blocked_.insert(wanted);
    return Error{ErrorCode::busy, "the queue is full"};
  }
  const auto bytes = message.size() + SimulatedWire::kFramingBytes;
  from.sent_[to] += bytes;
  ++connection->queued[direction];
  // It has left the queue when the access link has taken it, which it does not while the other end
  // stands still.
  const auto freed = [this, self = from.self_, to, lane, wanted, direction] {
    auto* const now = find(wanted);
    if (now == nullptr) return;
    --now->queued[direction];
    const auto wire = wires_.find(self);
    if (wire == wires_.end() || wire->second->blocked_.count(wanted) == 0) return;
    simulation_.after(0, wire->second->actor_, [this, self, to, lane, wanted] {
      const auto writer = wires_.find(self);
      if (writer != wires_.end() && writer->second->receiver_ &&
          writer->second->blocked_.erase(wanted) > 0)
        writer->second->receiver_->on_writable(to, lane, wanted);
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
      copies[i] =
          static_cast<Nanoseconds>(static_cast<double>(path(from.self_, to, lane).delay) * late);
    }
  }
  const auto arrived = [this, self = from.self_, to, lane, id = wanted, copies,
                        shared = SharedBytes(std::move(message))] {
    const auto target = wires_.find(to);
    for (const auto late : copies)
      simulation_.after(
          late, target == wires_.end() ? -1 : target->second->actor_,
          [this, self, to, lane, id, shared] { deliver(self, to, lane, id, shared); });
  };
  connection->streams[direction]->send(bytes, left, arrived);
  return {};
}

void SimulatedNetwork::deliver(GatewayId from, GatewayId to, Lane lane, ConnectionId connection,
                               const SharedBytes& message) {
  const auto wire = wires_.find(to);
  // What was on its way when the connection died may still come out, until its end is told.
  const auto receivable = [&] {
    if (wire == wires_.end() || wire->second->muted_) return false;
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
  wire->second->received_[{from, lane}] += message.size() + SimulatedWire::kFramingBytes;
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

void SimulatedWire::receive_with(WireReceiver& receiver) {
  receiver_ = &receiver;
  network_.dial_peers(*this);
}

Result<void> SimulatedWire::send(GatewayId peer, Lane lane, WireMessage message,
                                 ConnectionId connection) {
  if (message.size() > (lane == Lane::control ? kControlMessageBytesMax : kBulkMessageBytesMax))
    return Error{ErrorCode::too_large, fmt::format("a message of {} bytes", message.size())};
  const auto bytes = message.size() + kFramingBytes;
  auto sent = network_.send(*this, peer, lane, std::move(message).whole(), connection);
  if (sent && lane == Lane::control) bulk_limit_->pay(network_.simulation_.now(), bytes);
  return sent;
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
  if (network_.find(connection) == nullptr) return;  // it is dead already
  network_.kill(connection);
  const bool noticed = !network_.path(self_, peer, lane).cut;
  network_.tell_down(peer, connection, network_.notice_after(noticed));
}

void SimulatedWire::widen(GatewayId peer, std::uint32_t connections) {
  network_.widen(self_, peer, connections);
}

void SimulatedWire::limit_width(GatewayId peer, std::uint32_t most) {
  network_.limit_width(*this, peer, most);
}

void SimulatedWire::pace(GatewayId peer, ConnectionId connection,
                         std::optional<double> bytes_per_second) {
  if (const auto told = told_.find(connection); told != told_.end() && told->second.peer == peer)
    told->second.out->pace(bytes_per_second);
}

void SimulatedWire::limit_bulk(double bytes_per_second) {
  bulk_limit_->set_rate(network_.simulation_.now(), bytes_per_second);
  for (auto& [id, told] : told_)
    if (told.lane == Lane::bulk) told.out->limit_with(bulk_limit_);
}

std::vector<BulkPath> SimulatedWire::bulk_paths(GatewayId peer) const {
  if (network_.faults_.tcp == SimulatedTcp::unseen) return {};
  std::vector<BulkPath> paths;
  for (const auto& [id, told] : told_) {
    if (told.peer != peer || told.lane != Lane::bulk || told.dropped) continue;
    auto& path = paths.emplace_back();
    path.connection = id;
    path.tcp = told.out->facts();
    path.tcp.silence = network_.simulation_.now() - std::max(told.since, told.in->last_arrival());
    path.congestion_control_why = "simulated";
  }
  return paths;
}

std::uint64_t SimulatedWire::bytes_sent(GatewayId peer) const {
  const auto found = sent_.find(peer);
  return found == sent_.end() ? 0 : found->second;
}

std::uint64_t SimulatedWire::bytes_received_on(GatewayId peer, Lane lane) const {
  const auto found = received_.find({peer, lane});
  auto bytes = found == received_.end() ? 0 : found->second;
  if (lane == Lane::control) return bytes;
  for (const auto& [id, told] : told_)
    if (told.peer == peer && told.lane == Lane::bulk && !told.dropped)
      bytes += told.in->bytes_of_a_part();
  auto& most = received_most_[peer];  // a part is read, also of what never comes whole
  return most = std::max(most, bytes);
}

}  // namespace isthmus::inter::sim
