// SimulatedNetwork: the wires of a simulated federation: delay, jitter, loss, repetition,
// reordering, narrow paths, partitions that may be one-way, connections that die silently or not.
// Wires of one network belong to one Simulation.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "base/random.h"
#include "inter/sim/simulation.h"
#include "inter/wire.h"

namespace isthmus::inter::sim {

struct NetworkFaults {
  Nanoseconds delay = 20 * kMillisecond;  // one way
  double jitter = 0.3;                    // × delay, uniform
  double loss = 0;                        // of one message
  double duplicate = 0;
  double reorder = 0;                // a message that is held up by up to ten delays
  double bytes_per_second = 12.5e6;  // of each path and lane
  // Share of dead connections that an end notices only by a heartbeat that stays away, 5 to 20 s
  // later; and of those that it notices late for another reason, up to 3 s. Meanwhile it may send
  // into the void, and the next connection may come up.
  double silent_deaths = 0.3;
  double late_downs = 0.3;
};

class SimulatedWire;

class SimulatedNetwork {
 public:
  SimulatedNetwork(Simulation& simulation, Random random, NetworkFaults faults)
      : simulation_(simulation), random_(random), faults_(faults) {}

  void set_faults(const NetworkFaults& faults) { faults_ = faults; }
  // Messages from one to the other vanish. Both directions, or one.
  void cut(GatewayId from, GatewayId to, bool cut);
  bool is_cut(GatewayId from, GatewayId to) const { return cuts_.count({from, to}) > 0; }
  // Drops a connection that stands, noticed by both ends, as a router's restart would.
  void break_connections(GatewayId a, GatewayId b);

  struct Counters {
    std::uint64_t delivered = 0, lost = 0, duplicated = 0;
  };
  const Counters& counters() const { return counters_; }

 private:
  friend class SimulatedWire;
  using Path = std::pair<GatewayId, GatewayId>;
  struct Connection {
    ConnectionId id = 0;
    Nanoseconds free_at[2] = {0, 0};  // by direction: lower id first
    std::size_t queued[2] = {0, 0};
  };
  void join(SimulatedWire& wire);
  void part(SimulatedWire& wire);
  void connect(GatewayId a, GatewayId b, Lane lane);
  void schedule_connect(GatewayId a, GatewayId b, Lane lane, Nanoseconds delay);
  void drop(GatewayId a, GatewayId b, Lane lane, bool noticed);
  Nanoseconds notice_after(bool noticed);
  void tell_down(GatewayId self, ConnectionId connection, Nanoseconds delay);
  Result<void> send(SimulatedWire& from, GatewayId to, Lane lane, Bytes message,
                    ConnectionId connection);
  void deliver(GatewayId from, GatewayId to, Lane lane, ConnectionId connection,
               const std::shared_ptr<const Bytes>& message);
  static std::pair<Path, Lane> key(GatewayId a, GatewayId b, Lane lane) {
    return {a < b ? Path{a, b} : Path{b, a}, lane};
  }

  Simulation& simulation_;
  Random random_;
  NetworkFaults faults_;
  std::set<Path> cuts_;
  std::map<GatewayId, SimulatedWire*> wires_;
  std::map<std::pair<Path, Lane>, Connection> connections_;
  ConnectionId last_connection_ = 0;
  Counters counters_;
};

// One process's wire; joins the network while it lives. `actor`: of the Simulation.
class SimulatedWire final : public Wire {
 public:
  SimulatedWire(SimulatedNetwork& network, GatewayId self, std::vector<GatewayId> peers, int actor);
  ~SimulatedWire() override;

  // Its process stands still: what arrives waits, and what is on its way fills the path.
  void pause() { paused_ = true; }
  void resume();
  // Nothing leaves or arrives any more: the process is about to crash.
  void mute() { muted_ = true; }

  void receive_with(WireReceiver& receiver) override;
  Result<void> send(GatewayId peer, Lane lane, Bytes message, ConnectionId connection) override;
  void reset(GatewayId peer, Lane lane, ConnectionId connection) override;
  std::uint64_t bytes_sent(GatewayId peer) const override;
  std::uint64_t bytes_received(GatewayId peer) const override;

 private:
  friend class SimulatedNetwork;
  SimulatedNetwork& network_;
  const GatewayId self_;
  std::set<GatewayId> peers_;
  const int actor_;
  WireReceiver* receiver_ = nullptr;
  bool muted_ = false, paused_ = false;
  // While paused, in order; the lanes are separate connections, so control is not behind bulk.
  std::vector<std::function<void()>> waiting_[2];
  // What the receiver was told is up, and not yet that it is down.
  struct Told {
    GatewayId peer;
    Lane lane = Lane::control;
    bool dropped = false;   // at this end: nothing more in or out
    std::size_t stuck = 0;  // messages that a dead connection took
  };
  ConnectionId newest(GatewayId peer, Lane lane) const;  // 0: none
  std::map<ConnectionId, Told> told_;
  std::map<GatewayId, std::uint64_t> sent_, received_;
  std::set<std::pair<GatewayId, Lane>> blocked_;
};

}  // namespace isthmus::inter::sim
