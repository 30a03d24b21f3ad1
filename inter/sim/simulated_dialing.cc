// How connections of the simulated network begin, as inter/tls_dialer.h and zmq_dialer.h have it.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "inter/sim/simulated_network.h"
#include "inter/zmq_wire.h"

namespace isthmus::inter::sim {
namespace {

// How long TCP waits before it asks again, at first.
constexpr Nanoseconds kAskAgain = kSecond;
// The same when a handshake has begun.
constexpr Nanoseconds kShakeAgain = 200 * kMillisecond;

// Until the dialing end is up, that of TCP included. CURVE: ZeroMQ's greeting takes two, hello and
// welcome, initiate and ready one each. TLS: its own, and who the other end is.
constexpr Nanoseconds handshake_round_trips(Lane lane) { return lane == Lane::control ? 5 : 3; }

}  // namespace

void SimulatedNetwork::dial_peers(SimulatedWire& wire) {
  for (const auto peer : wire.peers_)
    for (const auto lane : {Lane::control, Lane::bulk})
      if (wire.dials(peer)) dial_places(wire, peer, lane);
}

void SimulatedNetwork::dial_places(SimulatedWire& wire, GatewayId peer, Lane lane) {
  const ZmqWireOptions real;
  if (!wire.receiver_ || !wire.peers_.contains(peer)) return;
  for (std::uint32_t place = 0; place < width(way_of(wire.self_, peer, lane)); ++place)
    if (wire.dialers_
            .try_emplace({peer, lane, place},
                         Dialer{RedialDelay(real.redial_delay_min, real.redial_delay_max)})
            .second)
      dial_after(0, {wire.self_, peer, lane, place, wire.process_});
}

SimulatedWire* SimulatedNetwork::dialer(const Dialing& dialing) {
  const auto wire = wires_.find(dialing.self);
  return wire != wires_.end() && wire->second->process_ == dialing.process ? wire->second : nullptr;
}

SimulatedNetwork::Dialer& SimulatedNetwork::dialer_of(const Dialing& dialing) {
  return wires_.at(dialing.self)->dialers_.at({dialing.peer, dialing.lane, dialing.place});
}

void SimulatedNetwork::dial_after(Nanoseconds delay, const Dialing& dialing) {
  auto& dialer = dialer_of(dialing);
  dialer.next = ++dials_;
  simulation_.after(delay, wires_.at(dialing.self)->actor_, [this, dialing, number = dials_] {
    const auto* const wire = this->dialer(dialing);
    if (wire == nullptr) return;
    const auto found = wire->dialers_.find({dialing.peer, dialing.lane, dialing.place});
    if (found != wire->dialers_.end() && found->second.next == number) dial(dialing);
  });
}

// What waits for the next attempt on the bulk lane does not wait any longer.
void SimulatedNetwork::hurry(SimulatedWire& wire, GatewayId peer) {
  std::vector<std::uint32_t> waiting;
  for (const auto& [at, dialer] : wire.dialers_) {
    const auto& [to, lane, place] = at;
    if (to == peer && lane == Lane::bulk && dialer.next != 0 &&
        dialer.waits_from <= simulation_.now())
      waiting.push_back(place);
  }
  for (const auto place : waiting)
    dial_after(0, {wire.self_, peer, Lane::bulk, place, wire.process_});
}

void SimulatedNetwork::dial(const Dialing& dialing) {
  auto* const wire = dialer(dialing);
  if (wire == nullptr) return;
  const auto& [self, peer, lane, place, process] = dialing;
  if (place >= width(way_of(self, peer, lane))) {  // fewer are wanted meanwhile
    wire->dialers_.erase({peer, lane, place});
    return;
  }
  const auto now = simulation_.now();
  dialer_of(dialing).next = 0;
  const auto patience = delay_of(dialing).dialing(now, ZmqWireOptions().connect_timeout);
  if (refusing_.contains(self.site)) return fail_at(now, dialing);
  ask(dialing, now + patience, kAskAgain);
}

// TCP asks the other end, again after `again` if that does not come through.
void SimulatedNetwork::ask(const Dialing& dialing, Nanoseconds until, Nanoseconds again) {
  if (dialer(dialing) == nullptr) return;
  const auto& [self, peer, lane, place, process] = dialing;
  const auto now = simulation_.now();
  const auto trip = round_trip(self, peer, lane);
  if (!silent(way_of(self, peer, lane)) && now + trip <= until)
    simulation_.after(trip, -1, [this, dialing, until] { answered(dialing, until); });
  else if (now + again < until)
    simulation_.after(again, -1, [=, this] { ask(dialing, until, 2 * again); });
  else
    fail_at(until, dialing);
}

void SimulatedNetwork::answered(const Dialing& dialing, Nanoseconds until) {
  if (dialer(dialing) == nullptr) return;
  const auto& [self, peer, lane, place, process] = dialing;
  const auto now = simulation_.now();
  if (silent(way_of(self, peer, lane))) return fail_at(until, dialing);
  const auto other = wires_.find(peer);
  if (other == wires_.end() || !other->second->receiver_) return fail_at(now, dialing);
  delay_of(dialing).connected(now);
  const auto left = (handshake_round_trips(lane) - 1) * round_trip(self, peer, lane);
  const auto end = now + ZmqWireOptions().handshake_timeout;
  if (!other->second->peers_.contains(self)) return fail_at(now + left, dialing);
  simulation_.after(left, wires_.at(self)->actor_,
                    [this, dialing, end] { shake_hands(dialing, end, kShakeAgain); });
}

// Once both ends have done their part, or never: who stands still or has no descriptor does not,
// and has TCP's answer all the same.
void SimulatedNetwork::shake_hands(const Dialing& dialing, Nanoseconds until, Nanoseconds again) {
  auto* const wire = dialer(dialing);
  if (wire == nullptr) return;
  const auto& [self, peer, lane, place, process] = dialing;
  const auto now = simulation_.now();
  const auto other = wires_.find(peer);
  if (other == wires_.end() || !other->second->receiver_ || !other->second->peers_.contains(self))
    return fail_at(now, dialing);
  if (!silent(way_of(self, peer, lane)) && !other->second->paused_ &&
      !refusing_.contains(peer.site))
    return connect(dialing);
  if (now + again >= until) return fail_at(until, dialing);
  simulation_.after(again, wire->actor_, [=, this] { shake_hands(dialing, until, 2 * again); });
}

void SimulatedNetwork::fail_at(Nanoseconds when, const Dialing& dialing) {
  auto& dialer = dialer_of(dialing);
  dialer.waits_from = when;
  dial_after(when + dialer.delay.ended(when, false) - simulation_.now(), dialing);
}

void SimulatedNetwork::connect(const Dialing& dialing) {
  const auto& [self, peer, lane, place, process] = dialing;
  const auto way = way_of(self, peer, lane);
  if (place >= width_max(way)) {  // the limit was told meanwhile
    wires_.at(self)->dialers_.erase({peer, lane, place});
    return;
  }
  delay_of(dialing).up(simulation_.now());
  const auto id = ++last_connection_;
  places_[way][place] = id;
  auto& connection = connections_[id];
  connection.way = way;
  connection.place = place;
  const auto kind = lane == Lane::bulk ? faults_.tcp : SimulatedTcp::unseen;
  for (const auto& [from, to] : {way.first, Path{way.first.second, way.first.first}})
    connection.streams[from < to ? 0 : 1] = std::make_shared<TcpStream>(
        simulation_, access(from.site).up, access(to.site).down, path(from, to, lane),
        path(to, from, lane), random_.split("stream").split(++streams_), kind);
  if (lane == Lane::control) hurry(*wires_.at(self), peer);
  tell_up(self, peer, id);
  // With the last word of the handshake.
  simulation_.after(path(self, peer, lane).delay, wires_.at(peer)->actor_,
                    [this, self = self, peer = peer, id] { tell_up(peer, self, id); });
}

void SimulatedNetwork::tell_up(GatewayId self, GatewayId peer, ConnectionId id) {
  const auto wire = wires_.find(self);
  const auto* const connection = find(id);
  if (wire == wires_.end() || connection == nullptr) return;
  const int out = self < peer ? 0 : 1;
  const auto lane = connection->way.second;
  wire->second->told_[id] = {.peer = peer,
                             .lane = lane,
                             .place = connection->place,
                             .since = simulation_.now(),
                             .out = connection->streams[out],
                             .in = connection->streams[1 - out]};
  if (lane == Lane::bulk) connection->streams[out]->limit_with(wire->second->bulk_limit_);
  wire->second->receiver_->on_up(peer, lane, id);
}

}  // namespace isthmus::inter::sim
