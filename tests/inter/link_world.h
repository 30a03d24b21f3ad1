// Links for tests: LinkOwner that writes everything down, a wire whose other end is the test
// (ScriptedPeer), and a few gateways with a link each on a simulated network (LinkWorld).
#pragma once

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/event_log.h"
#include "inter/link.h"
#include "inter/sim/simulated_network.h"

namespace isthmus::inter {

// The number of a control message, after a byte that is no message type of the link's.
inline Bytes numbered(std::uint64_t number, std::size_t size = 9) {
  auto message = ByteWriter().put(std::uint8_t{1}).put(number).take();
  message.resize(std::max(size, message.size()));
  return message;
}

// What follows the first byte of a frame.
inline ByteReader after_kind(std::span<const std::byte> frame) {
  return ByteReader(frame.subspan(1));
}

class NumberedChunks final : public ChunkSource {
 public:
  explicit NumberedChunks(std::size_t chunk_bytes) : chunk_bytes_(chunk_bytes) {}
  ChunkBytes chunk(std::uint32_t index) override {
    auto bytes = ByteWriter().put(index).take();
    bytes.resize(chunk_bytes_);
    return {std::move(bytes), 1, 1};
  }

 private:
  std::size_t chunk_bytes_;
};

class RecordingOwner final : public LinkOwner {
 public:
  Introduction introduce() override { return introduction; }
  void on_introduction(GatewayId, const Introduction&) override {}
  std::string objection(GatewayId, const Introduction& theirs) const override {
    return introduction.fingerprint.difference(theirs.fingerprint);
  }
  void on_session(Link& link, bool up) override {
    sessions += up;
    session = link.session();
    if (up && begin) begin();
  }
  void on_control(Link&, std::span<const std::byte> message) override {
    ByteReader in(message);
    in.get<std::uint8_t>();
    numbers.push_back(in.get<std::uint64_t>());
  }
  void on_chunk(Link& link, const ChunkArrival& arrival, const SharedBytes& payload) override {
    chunks.push_back(arrival.index);
    payload_bytes += payload.size();
    if (settle_at_once)
      link.settle(arrival, true);
    else
      unsettled.push_back(arrival);
  }

  Introduction introduction = {.boot = 1, .run = {}, .fingerprint = {{{"codec", "int8"}}}};
  std::function<void()> begin;  // what stands again when a session begins
  bool settle_at_once = true;
  int sessions = 0;
  std::uint64_t session = 0;
  std::vector<std::uint64_t> numbers;
  std::vector<std::uint32_t> chunks;  // indices, as they came
  std::size_t payload_bytes = 0;
  std::deque<ChunkArrival> unsettled;
};

// Ids of events, and what they said.
class RecordedLog {
 public:
  RecordedLog(const Clock& clock, const std::string& site) : log(clock, site) {
    log.add(make_callback_sink(
        [this](const Event& event) { lines.emplace_back(event.id, to_json(event)); }));
  }
  std::size_t count(std::string_view id, std::string_view text = "") const {
    return static_cast<std::size_t>(std::count_if(lines.begin(), lines.end(), [&](const auto& l) {
      return l.first == id && l.second.find(text) != std::string::npos;
    }));
  }

  EventLog log;
  std::vector<std::pair<std::string, std::string>> lines;
};

// A link whose peer is the test: it sees each message that the link sends, and says what it likes.
class ScriptedPeer final : public Wire {
 public:
  explicit ScriptedPeer(LinkOptions options = {}) : ScriptedPeer(Begin::later, options) {
    link.start();
  }
  enum class Begin { later };  // the test starts the link
  explicit ScriptedPeer(Begin, LinkOptions options = {})
      : link(loop, *this, limit, log.log, Random(1), owner, {1, 0}, {2, 0}, "peer", "", options) {}

  // Handshake on control connection 1, with bulk connection 2.
  void begin_session() {
    link.wire_up(Lane::control, 1);
    link.wire_up(Lane::bulk, 2);
    run_for(kMillisecond);
    const auto hello = last(Frame::hello);
    auto in = after_kind(hello);
    say(decode_hello(in)->nonce);
    // It says the session's number with its first bind.
    const auto bind = last(Frame::bind);
    in = after_kind(bind);
    session = decode_bind(in)->session;
  }
  void say(std::uint64_t echo, ConnectionId connection = 1, std::uint64_t nonce = 77) {
    Hello hello;
    hello.nonce = nonce;
    hello.echo = echo;
    hello.introduction = owner.introduction;
    control(hello.encode(), connection);
  }
  void control(const Bytes& message, ConnectionId connection = 1) {
    link.wire_message(Lane::control, connection, message);
  }
  void bulk(const Bytes& message, ConnectionId connection = 2) {
    link.wire_message(Lane::bulk, connection, message);
  }
  void run_for(Nanoseconds time) {
    const auto end = simulation.now() + time;
    loop.run_ready();
    while (loop.next_timer() && *loop.next_timer() <= end) {
      simulation.advance(std::max(simulation.now(), *loop.next_timer()));
      loop.run_ready();
    }
    simulation.advance(end);
  }
  // The last frame of this kind that the link sent; empty: none.
  Bytes last(Frame kind) const {
    for (auto it = sent.rbegin(); it != sent.rend(); ++it)
      if (!it->message.empty() && it->message[0] == static_cast<std::byte>(kind))
        return it->message;
    return {};
  }
  std::size_t count(Frame kind, ConnectionId connection) const {
    return static_cast<std::size_t>(std::count_if(sent.begin(), sent.end(), [&](const auto& s) {
      return s.connection == connection && s.message[0] == static_cast<std::byte>(kind);
    }));
  }

  // Wire.
  void receive_with(WireReceiver&) override {}
  Result<void> send(GatewayId, Lane lane, WireMessage message, ConnectionId connection) override {
    if (busy.contains(connection)) return Error{ErrorCode::busy, "full"};
    sent.push_back({lane, connection, std::move(message).whole()});
    return {};
  }
  void reset(GatewayId, Lane lane, ConnectionId connection) override {
    resets.emplace_back(lane, connection);
  }
  std::vector<BulkPath> bulk_paths(GatewayId) const override { return paths; }
  void widen(GatewayId, std::uint32_t connections) override { width = connections; }
  void limit_width(GatewayId, std::uint32_t most) override { width_max = most; }
  void pace(GatewayId, ConnectionId connection, std::optional<double> rate) override {
    paces[connection] = rate;
  }
  std::uint64_t bytes_sent(GatewayId) const override { return 0; }
  std::uint64_t bytes_received_on(GatewayId, Lane lane) const override {
    return lane == Lane::bulk ? received : 0;
  }

  struct Sent {
    Lane lane;
    ConnectionId connection;
    Bytes message;
  };
  std::vector<Sent> sent;
  std::vector<std::pair<Lane, ConnectionId>> resets;
  std::set<ConnectionId> busy;  // send() refuses
  std::vector<BulkPath> paths;
  std::uint32_t width = 0;                 // as widen() said last
  std::optional<std::uint32_t> width_max;  // as limit_width() said last
  std::map<ConnectionId, std::optional<double>> paces;
  std::uint64_t received = 0;  // bytes, as the wire counts them
  sim::Simulation simulation;
  Loop loop{simulation};
  RateLimit limit{0};
  RecordedLog log{simulation, "scripted"};
  RecordingOwner owner;
  std::uint64_t session = 0;
  Link link;
};

// Gives a link what comes from any gateway of the peer's site, so that two processes with one
// identity can be two gateways of the simulated network.
class SiteWire final : public Wire, public WireReceiver {
 public:
  SiteWire(sim::SimulatedNetwork& network, GatewayId self, std::vector<GatewayId> peers)
      : peers_(peers), wire_(network, self, peers, -1) {}
  Link* link = nullptr;

  void receive_with(WireReceiver&) override { wire_.receive_with(*this); }
  Result<void> send(GatewayId, Lane lane, WireMessage message, ConnectionId connection) override {
    if (connection == 0)
      for (const auto& [id, where] : whose_)
        if (where.second == lane) connection = id;
    const auto found = whose_.find(connection);
    if (found == whose_.end()) return Error{ErrorCode::unavailable, "no connection"};
    return wire_.send(found->second.first, lane, std::move(message), connection);
  }
  void reset(GatewayId, Lane lane, ConnectionId connection) override {
    if (const auto found = whose_.find(connection); found != whose_.end())
      wire_.reset(found->second.first, lane, connection);
  }
  void widen(GatewayId, std::uint32_t connections) override {
    for (const auto peer : peers_) wire_.widen(peer, connections);
  }
  void pace(GatewayId, ConnectionId connection, std::optional<double> rate) override {
    if (const auto found = whose_.find(connection); found != whose_.end())
      wire_.pace(found->second.first, connection, rate);
  }
  void limit_bulk(double rate) override { wire_.limit_bulk(rate); }
  std::vector<BulkPath> bulk_paths(GatewayId) const override {
    std::vector<BulkPath> paths;
    for (const auto peer : peers_)
      for (auto& path : wire_.bulk_paths(peer)) paths.push_back(std::move(path));
    std::ranges::sort(paths, {}, &BulkPath::connection);
    return paths;
  }
  std::uint64_t bytes_sent(GatewayId) const override {
    std::uint64_t bytes = 0;
    for (const auto peer : peers_) bytes += wire_.bytes_sent(peer);
    return bytes;
  }
  std::uint64_t bytes_received_on(GatewayId, Lane lane) const override {
    std::uint64_t bytes = 0;
    for (const auto peer : peers_) bytes += wire_.bytes_received_on(peer, lane);
    return bytes;
  }
  std::uint64_t bytes_of(Lane lane, std::size_t message_bytes) const override {
    return wire_.bytes_of(lane, message_bytes);
  }

  void on_message(GatewayId, Lane lane, ConnectionId connection,
                  const SharedBytes& message) override {
    link->wire_message(lane, connection, message);
  }
  void on_up(GatewayId peer, Lane lane, ConnectionId connection) override {
    whose_[connection] = {peer, lane};
    link->wire_up(lane, connection);
  }
  void on_down(GatewayId, Lane lane, ConnectionId connection) override {
    whose_.erase(connection);
    link->wire_down(lane, connection);
  }
  void on_writable(GatewayId, Lane lane, ConnectionId connection) override {
    link->wire_writable(lane, connection);
  }

 private:
  std::vector<GatewayId> peers_;
  std::map<ConnectionId, std::pair<GatewayId, Lane>> whose_;
  sim::SimulatedWire wire_;
};

class LinkWorld {
 public:
  explicit LinkWorld(sim::NetworkFaults faults = {}, std::uint64_t seed = 1)
      : random_(seed), network(simulation, random_.split("network"), faults) {}

  struct Node {
    explicit Node(const Clock& clock, const std::string& name) : loop(clock), log(clock, name) {}
    Loop loop;
    RecordedLog log;
    RecordingOwner owner;
    RateLimit limit{0};
    std::unique_ptr<SiteWire> wire;
    std::unique_ptr<Link> link;
    // As a gateway does it.
    void limit_to(double bytes_per_second) {
      limit.set_rate(loop.now(), bytes_per_second);
      wire->limit_bulk(bytes_per_second);
      link->rate_changed();
    }
    ~Node() {
      loop.abandon();
      link.reset();
      wire.reset();
    }
  };
  // A process of `at`'s site that talks to the site of `peers`.
  Node& start(GatewayId at, const std::vector<GatewayId>& peers, Introduction introduction = {},
              LinkOptions options = {}) {
    auto node = std::make_unique<Node>(simulation, "site " + std::to_string(at.site));
    if (!introduction.fingerprint.fields.empty()) node->owner.introduction = introduction;
    node->wire = std::make_unique<SiteWire>(network, at, peers);
    node->link = std::make_unique<Link>(
        node->loop, *node->wire, node->limit, node->log.log, random_.split(started_++), node->owner,
        GatewayId{at.site, 0}, GatewayId{peers[0].site, 0}, "peer", "", options);
    node->wire->link = node->link.get();
    node->link->start();
    node->wire->receive_with(*node->wire);
    nodes.push_back(std::move(node));
    return *nodes.back();
  }
  void kill(Node& node) {
    std::erase_if(nodes, [&](const auto& other) { return other.get() == &node; });
  }
  bool run_until(const std::function<bool()>& condition, Nanoseconds at_most) {
    const auto end = simulation.now() + at_most;
    for (;;) {
      for (const auto& node : nodes) node->loop.run_ready();
      if (condition()) return true;
      Nanoseconds next = end + 1;
      bool timer = false;
      if (!simulation.empty()) next = std::min(next, simulation.next());
      for (const auto& node : nodes)
        if (const auto when = node->loop.next_timer(); when && *when < next) {
          next = *when;
          timer = true;
        }
      if (next > end) {
        simulation.advance(end);
        return false;
      }
      if (timer)
        simulation.advance(std::max(simulation.now(), next));
      else
        simulation.run_one();
    }
  }
  void run_for(Nanoseconds time) {
    run_until([] { return false; }, time);
  }

 private:
  Random random_;
  std::uint64_t started_ = 0;

 public:
  sim::Simulation simulation;
  sim::SimulatedNetwork network;
  std::vector<std::unique_ptr<Node>> nodes;
};

}  // namespace isthmus::inter
