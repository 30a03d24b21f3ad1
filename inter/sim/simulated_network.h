// SimulatedNetwork: the wires of a simulated federation. Each site has one access link, with a rate
// and a queue each way, that all its peers and lanes share (access_link.h); each path a delay of
// its own; each connection the dynamics of TCP (tcp_stream.h), of which the bulk lane has several
// where gateways see what TCP knows, as they do with a kernel's. Ways may be cut, also one of two:
// TCP meets that as a real one does, and gives up after as long. Who dials does it at the pace and
// with the patience of the real wire (redial_delay.h, zmq_wire.h). Besides, what the contract of a
// Wire allows happens to whole messages: loss, repetition, reordering; and connections die silently
// or not. Wires of one network belong to one Simulation.
//
// Parts: simulated_dialing.cc (how connections begin), simulated_network.cc (all else).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "base/random.h"
#include "inter/redial_delay.h"
#include "inter/sim/access_link.h"
#include "inter/sim/simulation.h"
#include "inter/sim/tcp_stream.h"
#include "inter/wire.h"

namespace isthmus::inter::sim {

struct NetworkFaults {
  Nanoseconds delay = 20 * kMillisecond;  // one way, of each path that has no other
  double jitter = 0.3;                    // × delay, uniform, of one message
  double loss = 0;                        // of one message
  double duplicate = 0;
  double reorder = 0;                 // a message that is held up by up to ten delays
  double bytes_per_second = 12.5e6;   // of a site's access link that has no other
  double up_share = 1;                // of it, towards the others
  std::size_t queue_bytes = 1 << 18;  // of an access link, each way; what finds no room is lost
  double packet_loss = 0;             // of one packet, which comes later
  SimulatedTcp tcp = SimulatedTcp::unseen;  // of the bulk lane
  // Share of dead connections that an end notices only by a heartbeat that stays away, 5 to 20 s
  // later, unless the other end is back before and refuses what it sends; and of those that it
  // notices late for another reason, up to 3 s. Meanwhile it may send into the void, and the end
  // that dials may dial again.
  double silent_deaths = 0.3;
  double late_downs = 0.3;
};

class SimulatedWire;

class SimulatedNetwork {
 public:
  SimulatedNetwork(Simulation& simulation, Random random, NetworkFaults faults)
      : simulation_(simulation), random_(random), faults_(faults) {}

  // Of paths and access links all but their own delays and rates changes at once.
  void set_faults(const NetworkFaults& faults);
  // The rate of a site's access link, before its share upwards.
  void set_access(SiteId site, double bytes_per_second);
  // The access link of a site has a `factor`th of its rate.
  void slow_down(SiteId site, double factor);
  // Of both directions.
  void set_delay(GatewayId a, GatewayId b, Nanoseconds delay);
  // What one sends to the other vanishes, its acknowledgements too. Both directions, or one.
  void cut(GatewayId from, GatewayId to, bool cut);
  // Both directions, of the bulk lane alone: a firewall that lets one port through.
  void cut_bulk(GatewayId a, GatewayId b, bool cut);
  // A site takes no new connections; those that stand are not concerned.
  void refuse_connections(SiteId site, bool refuse);
  // Drops a connection that stands, noticed by both ends, as a router's restart would.
  void break_connections(GatewayId a, GatewayId b);

  struct Counters {
    std::uint64_t delivered = 0, lost = 0, duplicated = 0;
  };
  const Counters& counters() const { return counters_; }
  // Of the first connection that stands; nullptr: none.
  const TcpStream* stream(GatewayId from, GatewayId to, Lane lane) const;

 private:
  friend class SimulatedWire;
  using Path = std::pair<GatewayId, GatewayId>;
  using Way = std::pair<Path, Lane>;  // of a connection: lower id first
  struct Connection {
    Way way;
    std::uint32_t place = 0;
    // By direction: lower id first. Shared with what is on its way when the connection dies.
    std::shared_ptr<TcpStream> streams[2];
    std::size_t queued[2] = {0, 0};
  };
  // What is dialed, again and again, and which process does it.
  struct Dialing {
    GatewayId self, peer;
    Lane lane = Lane::control;
    std::uint32_t place = 0;
    std::uint64_t process = 0;
  };
  struct Access {
    Access(Simulation& simulation, double own_rate, std::size_t queue_bytes)
        : rate(own_rate),
          up(simulation, own_rate, queue_bytes),
          down(simulation, own_rate, queue_bytes) {}
    double rate, slowness = 1;
    AccessLink up, down;
  };
  Access& access(SiteId site);
  void set_rates(Access& access);
  SimulatedPath& path(GatewayId from, GatewayId to, Lane lane);
  void set_path(const Way& way, SimulatedPath& path) const;
  void set_paths();
  bool silent(const Way& way);  // cut, either way: nothing is acknowledged
  Nanoseconds round_trip(GatewayId a, GatewayId b, Lane lane) {
    return path(a, b, lane).delay + path(b, a, lane).delay;
  }
  void join(SimulatedWire& wire);
  void part(SimulatedWire& wire);
  void widen(GatewayId self, GatewayId peer, std::uint32_t connections);
  void limit_width(SimulatedWire& wire, GatewayId peer, std::uint32_t most);
  std::uint32_t width(const Way& way) const;      // that either end wants, within the limit
  std::uint32_t width_max(const Way& way) const;  // of the end that dials, as its peer told it

  // Dialing (simulated_dialing.cc).
  void dial_peers(SimulatedWire& wire);
  void dial_places(SimulatedWire& wire, GatewayId peer, Lane lane);
  SimulatedWire* dialer(const Dialing& dialing);  // nullptr: that process is gone
  struct Dialer {
    RedialDelay delay;
    Nanoseconds waits_from = 0;  // the last attempt, or connection, has ended then
    std::uint64_t next = 0;      // the attempt that is to come
  };
  Dialer& dialer_of(const Dialing& dialing);
  RedialDelay& delay_of(const Dialing& dialing) { return dialer_of(dialing).delay; }
  void dial_after(Nanoseconds delay, const Dialing& dialing);
  void hurry(SimulatedWire& wire, GatewayId peer);
  void dial(const Dialing& dialing);
  void ask(const Dialing& dialing, Nanoseconds until, Nanoseconds again);
  void answered(const Dialing& dialing, Nanoseconds until);
  void shake_hands(const Dialing& dialing, Nanoseconds until, Nanoseconds again);
  void fail_at(Nanoseconds when, const Dialing& dialing);
  void connect(const Dialing& dialing);
  void tell_up(GatewayId self, GatewayId peer, ConnectionId connection);

  // Ends of connections.
  Connection* find(ConnectionId connection);  // nullptr: it is dead
  void kill(ConnectionId connection);         // the ends have yet to be told
  void kill_all(const Way& way, const std::function<void(ConnectionId)>& tell);
  void leave(GatewayId self, GatewayId peer);  // a process that ends
  void note_silence(GatewayId a, GatewayId b);
  void give_up(GatewayId self, GatewayId peer, Lane lane, std::uint64_t silence);
  void refuse_dead(GatewayId self, GatewayId peer, Lane lane);
  Nanoseconds notice_after(bool noticed);
  void tell_down(GatewayId self, ConnectionId connection, Nanoseconds delay);
  Result<void> send(SimulatedWire& from, GatewayId to, Lane lane, Bytes message,
                    ConnectionId connection);
  void deliver(GatewayId from, GatewayId to, Lane lane, ConnectionId connection,
               const SharedBytes& message);
  static Way way_of(GatewayId a, GatewayId b, Lane lane) {
    return {a < b ? Path{a, b} : Path{b, a}, lane};
  }

  Simulation& simulation_;
  Random random_;
  NetworkFaults faults_;
  std::set<Path> cuts_;
  std::set<Path> bulk_cuts_;
  std::map<Way, std::uint64_t> silences_;  // that last, numbered
  std::uint64_t last_silence_ = 0;
  std::set<SiteId> refusing_;
  std::map<SiteId, std::unique_ptr<Access>> access_;
  std::map<Way, SimulatedPath> paths_;  // from the first to the second
  std::map<Path, Nanoseconds> own_delays_;
  std::map<GatewayId, SimulatedWire*> wires_;
  std::map<ConnectionId, Connection> connections_;               // that live
  std::map<Way, std::map<std::uint32_t, ConnectionId>> places_;  // and where they are
  std::map<Path, std::uint32_t>
      widths_,      // of the bulk lane, as the first wants it towards the second
      widths_max_;  // and as the second takes it, as it told the first
  std::uint64_t streams_ = 0, processes_ = 0, dials_ = 0;
  ConnectionId last_connection_ = 0;
  Counters counters_;
};

// One process's wire; joins the network while it lives. `actor`: of the Simulation.
class SimulatedWire final : public Wire {
 public:
  static constexpr std::uint64_t kFramingBytes = 64;  // of each message

  SimulatedWire(SimulatedNetwork& network, GatewayId self, std::vector<GatewayId> peers, int actor);
  ~SimulatedWire() override;

  // Its process stands still: what arrives waits, and what is on its way fills the path.
  void pause() { paused_ = true; }
  void resume();
  // Nothing leaves or arrives any more: the process is about to crash.
  void mute() { muted_ = true; }

  void receive_with(WireReceiver& receiver) override;
  Result<void> send(GatewayId peer, Lane lane, WireMessage message,
                    ConnectionId connection) override;
  void reset(GatewayId peer, Lane lane, ConnectionId connection) override;
  void widen(GatewayId peer, std::uint32_t connections) override;
  void limit_width(GatewayId peer, std::uint32_t most) override;
  void pace(GatewayId peer, ConnectionId connection,
            std::optional<double> bytes_per_second) override;
  void limit_bulk(double bytes_per_second) override;
  std::vector<BulkPath> bulk_paths(GatewayId peer) const override;
  std::uint64_t bytes_sent(GatewayId peer) const override;
  std::uint64_t bytes_received_on(GatewayId peer, Lane lane) const override;
  std::uint64_t bytes_of(Lane, std::size_t message_bytes) const override {
    return message_bytes + kFramingBytes;
  }

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
    std::uint32_t place = 0;
    Nanoseconds since = 0;
    std::shared_ptr<TcpStream> out, in;
    bool dropped = false;   // at this end: nothing more in or out
    std::size_t stuck = 0;  // messages that a dead connection took
  };
  ConnectionId newest(GatewayId peer, Lane lane) const;  // 0: none
  bool dials(GatewayId peer) const { return peer < self_; }
  std::map<ConnectionId, Told> told_;
  // Of the bulk lane; shared with its connections, which may outlive the process.
  std::shared_ptr<RateLimit> bulk_limit_ = std::make_shared<RateLimit>(0);
  std::uint64_t process_ = 0;  // its number in the network
  // Each has one attempt or connection going, or waits for the next.
  std::map<std::tuple<GatewayId, Lane, std::uint32_t>, SimulatedNetwork::Dialer>
      dialers_;  // by peer and place
  std::map<GatewayId, std::uint64_t> sent_;
  std::map<std::pair<GatewayId, Lane>, std::uint64_t> received_;
  mutable std::map<GatewayId, std::uint64_t> received_most_;
  std::set<ConnectionId> blocked_;
};

}  // namespace isthmus::inter::sim
