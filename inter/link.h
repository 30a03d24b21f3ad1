// Link: the flow-controlled, resuming whole to one peer, on top of a Wire that loses, repeats and
// reorders. A session begins with a handshake that compares protocol, run and fingerprint; within
// it control messages arrive once and in order, and chunks of transfers arrive under credit, are
// acknowledged once their receiver has checked them, and resume after a reconnect at the gaps.
// PROTOCOL.md, "Link", draws the frames. A link knows nothing of outer steps.
//
// The peer holds the keys of a gateway, no more: it may be an older version, a second process with
// the same identity, or malicious. Memory that it can claim is bounded by LinkOptions.
//
// Parts: link_session.cc (handshake, who is who), link.cc (control lane, timers, what arrives),
// bulk_sender.h (chunks that leave), lane_connections.h, round_trip.h, link_frames.h.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/event_log.h"
#include "base/random.h"
#include "inter/bulk_arrivals.h"
#include "inter/bulk_connections.h"
#include "inter/bulk_sender.h"
#include "inter/lane_connections.h"
#include "inter/link_frames.h"
#include "inter/log_pace.h"
#include "inter/loop.h"
#include "inter/owned_tasks.h"
#include "inter/planted_bug.h"
#include "inter/rate_limit.h"
#include "inter/round_trip.h"
#include "inter/status.h"
#include "inter/wire.h"

namespace isthmus::inter {

struct LinkOptions {
  Nanoseconds heartbeat = kSecond;
  Nanoseconds silence = 6 * kSecond;  // at least; more on links with a long round trip
  // Credit: chunks received and not yet checked. As many as fit into the bytes, which must hold
  // what is on its way on a long fat line; but at least the number, whatever their size.
  std::uint32_t window_chunks = 16;
  std::uint64_t window_bytes = 64 << 20;
  // Up to so many, where the line carries more in a round trip.
  std::uint64_t window_bytes_max = 256 << 20;
  // Control messages that the peer has not acknowledged, in number and bytes; beyond either the
  // session starts anew.
  std::size_t control_queue_max = 8192;
  std::size_t control_queue_bytes_max = 8 << 20;
  // Control messages that came before one that was lost; beyond either they are dropped, and come
  // again.
  std::size_t beyond_gap_max = 1024;
  std::size_t beyond_gap_bytes_max = 8 << 20;
  // Of the bulk lane, where one does not suffice (inter/bulk_width.h).
  std::uint32_t bulk_connections_max = 128;
  PlantedBug bug = PlantedBug::none;
};

// A chunk that came in and waits for its verdict: settle() must be called once.
struct ChunkArrival {
  TransferId transfer = 0;
  std::uint32_t index = 0;
  std::uint64_t sequence = 0;  // of the bulk lane, in this session
  std::uint64_t session = 0;
  std::size_t bytes = 0;  // of its message
};

class Link;

class LinkOwner {
 public:
  virtual ~LinkOwner() = default;
  virtual Introduction introduce() = 0;
  // In a hello that seeks a session, whether or not one may begin.
  virtual void on_introduction(GatewayId peer, const Introduction& theirs) = 0;
  // "": a session with this introduction may begin; else why not.
  virtual std::string objection(GatewayId peer, const Introduction& theirs) const = 0;
  virtual void on_session(Link& link, bool up) = 0;
  // In order, once each, while a session is up. The bytes are valid during the call.
  virtual void on_control(Link& link, std::span<const std::byte> message) = 0;
  virtual void on_chunk(Link& link, const ChunkArrival& arrival, const SharedBytes& payload) = 0;
};

class Link {
 public:
  Link(Loop& loop, Wire& wire, RateLimit& limit, EventLog& log, Random random, LinkOwner& owner,
       GatewayId self, GatewayId peer, std::string peer_name, std::string peer_address,
       LinkOptions options);
  ~Link();

  // How long a chunk is at most, for the window; before start().
  void expect_chunks(std::uint64_t bytes_max);
  // Nothing is said or answered before.
  void start();
  GatewayId peer() const { return peer_; }
  const std::string& peer_name() const { return peer_name_; }
  bool up() const { return session_ != 0; }
  const std::string& refused() const { return refused_; }  // why there is no session; "": not known
  std::uint64_t session() const { return session_; }
  std::string bulk_waits_for() const { return session_ != 0 ? bulk_.waits_for() : ""; }
  std::uint64_t unsettled_chunks() const { return unsettled_; }  // that came in
  Nanoseconds round_trip() const { return round_trip_.mean(); }
  // Something of the peer's is to come from now on.
  void await_chunks() { arrivals_.expect(loop_.now()); }
  // It comes, as far as bytes tell while no chunk is whole.
  bool brings_chunks() const;
  // A message on the bulk lane was none of the link's.
  void note_other_bulk(std::size_t message_bytes) {
    other_bulk_bytes_ += wire_.bytes_of(Lane::bulk, message_bytes);
  }
  // How long nothing may come of chunks that the peer sends before they count as stuck: four round
  // trips, and twice the time of a chunk on each of its connections at the rate at which bytes came
  // in the last seconds, while any came that were not control's. At most a minute. Of a
  // contribution's chunks, or of others of at most so many bytes.
  Nanoseconds chunk_patience() const { return chunk_patience(chunk_bytes_max_); }
  Nanoseconds chunk_patience(std::uint64_t chunk_bytes) const;
  // So many chunks may be on their way at once, of which none is whole: one on each connection that
  // both ends together would like to have.
  std::uint32_t chunks_at_once() const { return width_for_both(); }

  // Reliable and ordered within the session; dropped with it, so the owner says what stands again
  // when a new one begins. A message too long for the wire is dropped, with an alarm in the log.
  void send(Bytes message);

  // How many were sent in this session, and whether the first so many are acknowledged.
  std::uint64_t sent() const { return next_sequence_ - 1; }
  bool acknowledged_up_to(std::uint64_t count) const {
    return count + unacknowledged_.size() < next_sequence_;
  }
  // Everything sent is acknowledged.
  bool drained() const { return unacknowledged_.empty(); }

  // Begins (or, under the same id, keeps) sending a transfer; lower priority numbers first.
  // `resume`: some of it may have arrived in an earlier session, so the peer's have() comes first.
  // The source lives until withdraw() or the end of the session.
  void offer(TransferId transfer, std::uint64_t priority, std::uint32_t chunks,
             std::shared_ptr<ChunkSource> source, bool resume) {
    bulk_.offer(transfer, priority, chunks, std::move(source), resume);
    if (bulk_.asks_when_it_arrives()) arm_timer();  // from now on, not from the next heartbeat on
  }
  void withdraw(TransferId transfer) { bulk_.withdraw(transfer); }
  bool offers(TransferId transfer) const { return bulk_.offers(transfer); }
  // Some chunk of it is not acknowledged.
  bool sends(TransferId transfer) const { return bulk_.sends(transfer); }
  // Some chunk of some transfer is not.
  bool sends_bulk() const { return bulk_.sends_any(); }
  // When something of chunks came to the peer, the last time; 0: never.
  Nanoseconds last_arrival() const { return bulk_.last_arrival(); }
  // In all: chunks, parts of them too, and what the wire adds. Of link tests as well.
  std::uint64_t bulk_bytes_received() const { return wire_.bytes_received_on(peer_, Lane::bulk); }
  // Chunks that the peer acknowledged in this session.
  std::vector<std::pair<TransferId, std::uint32_t>> acknowledged_chunks() const {
    return bulk_.acknowledged_chunks();
  }
  const std::optional<BulkSender::Flow>& last_flow() const { return bulk_.last_flow(); }
  void rate_changed() { bulk_.rate_changed(); }
  // A chunk that was not there is there now.
  void poke() { bulk_.pump(); }

  // The receiver's side: what has arrived of a transfer, sent when its announcement is seen again.
  void have(TransferId transfer, const std::vector<bool>& chunks);
  void settle(const ChunkArrival& arrival, bool accepted);
  // It can be checked, or kept, only later: until it is settled the peer gets no new credit, for it
  // would send the same again and again.
  void stall(const ChunkArrival& arrival);

  // From the gateway's WireReceiver.
  void wire_message(Lane lane, ConnectionId connection, const SharedBytes& message);
  void wire_up(Lane lane, ConnectionId connection);
  void wire_down(Lane lane, ConnectionId connection);
  void wire_writable(Lane lane, ConnectionId connection);
  bool connected() const { return control_.any(); }  // on the control lane
  // The peer is known to be gone: no silence has to tell.
  void end(const std::string& why) { end_session(why, false); }

  LinkStatus status() const;
  struct Counters {
    std::uint64_t sessions = 0, retransmits = 0;
    // Hellos of ours, ten heartbeats apart, whose answer was that another process lives.
    std::uint64_t refused_as_duplicate = 0;
  };
  const Counters& counters() const { return counters_; }
  const BulkSender::Counters& bulk_counters() const { return bulk_.counters(); }
  // Of messages that wait: not acknowledged by the peer, beyond a gap, or chunks without a verdict.
  std::size_t memory_bytes() const {
    return unacknowledged_bytes_ + beyond_gap_bytes_ + unsettled_bytes_;
  }

 private:
  struct Unacknowledged {
    Bytes message;
    ConnectionId connection = 0;  // that took it last; 0: none did yet
    bool lost = false;            // by that
    Nanoseconds sent = 0;         // or refused
  };
  // A hello of another process, or of a restart, while the session seems alive.
  struct Challenger {
    ConnectionId connection = 0;
    std::uint64_t nonce = 0, boot = 0;
    Nanoseconds asked = 0;  // when the session's other end was asked for a sign of life
    Nanoseconds until = 0;
  };

  // Session (link_session.cc).
  void send_hello(ConnectionId connection);
  void receive_hello(ConnectionId connection, const Hello& hello);
  void note_nonce(std::uint64_t theirs);
  void begin_session(std::uint64_t their_nonce, std::uint64_t their_boot);
  void end_session(const std::string& why, bool reset_wire);
  struct RefusalSaid {
    std::string fact;
    Nanoseconds when = 0;
  };
  // How many were left out since the last one that was logged; nothing: leave this one out too.
  std::optional<std::uint64_t> refusal_due(RefusalSaid& said, std::string_view why);
  void refuse(ConnectionId connection, const std::string& why);
  void receive_refuse(ConnectionId connection, const Refuse& refuse);
  void count_duplicate_refusal();
  void refuse_challenger();
  void yield_to_challenger();
  void bind(Lane lane, ConnectionId connection, std::uint32_t place);
  void bind_others();
  void use_bulk();
  std::uint32_t width_max() const;
  std::uint32_t width_for_both() const;
  std::string_view width_why() const;
  void consider_width();
  void hear_width(const Ack& ack);
  std::uint64_t window_bytes_max() const;
  void set_window(std::uint64_t bytes);
  void consider_window();
  Nanoseconds silence_limit() const;

  // Control lane, timers (link.cc).
  void arm_timer();
  void on_timer();
  void sample_rates();
  std::uint64_t chunk_bytes_received() const;
  void receive_control(ConnectionId connection, std::span<const std::byte> message);
  void receive_bulk(ConnectionId connection, const SharedBytes& message);
  void receive_data(const Data& data);
  void receive_ack(const Ack& ack);
  void deliver(std::span<const std::byte> message);
  Unacknowledged& unacknowledged(std::uint64_t sequence) {
    return unacknowledged_[sequence - (next_sequence_ - unacknowledged_.size())];
  }
  bool send_data(std::uint64_t sequence);  // false: the wire takes none now
  void pump_control();
  void probe();
  void send_again(Nanoseconds stamp);
  // Of chunks: all that are remembered, since what was sent may be lost; or what was not sent yet.
  enum class Acks { recent, unsent };
  void send_ack(Acks acks);
  // With these of recent_acks_. False: the wire takes none now.
  bool send_ack_of(std::size_t first, std::size_t count);
  void ack_soon(Nanoseconds apart);                           // after the last one, at least
  bool send_control(Bytes message, ConnectionId connection);  // false: the wire takes none now
  void handle_cumulative(std::uint64_t acknowledged);
  Nanoseconds probe_at() const;

  Loop& loop_;
  Wire& wire_;
  RateLimit& limit_;
  EventLog& log_;
  Random random_;
  LinkOwner& owner_;
  const GatewayId self_, peer_;
  const std::string peer_name_, peer_address_;
  const LinkOptions options_;
  std::uint32_t window_chunks_;
  std::uint64_t window_bytes_;
  std::uint64_t chunk_bytes_max_ = kBulkMessageBytesMax;

  // Session.
  std::uint64_t nonce_ = 0;        // ours, new for each session that we begin to seek
  std::uint64_t their_nonce_ = 0;  // the last one seen
  std::uint64_t their_nonce_before_ = 0;
  Nanoseconds their_nonce_since_ = 0;
  std::uint64_t session_ = 0;  // 0: none
  std::uint64_t their_boot_ = 0;
  LaneConnections control_;
  BulkConnections bulk_connections_;
  std::optional<Challenger> challenger_;
  std::uint64_t earlier_refused_ =
      0;                 // nonce of a challenger that started before the session's end
  std::string refused_;  // why, when the last handshake was refused
  std::array<RefusalSaid, 2> refusals_said_;  // last, by us and by the peer
  LogPace refusals_logged_{kRefusedKeysApart, kRefusedKeysAtOnce};
  // A peer that begins anew all the time.
  LogPace begins_logged_{kSecond, 16}, ends_logged_{kSecond, 16};
  BurstPace hellos_answered_{16, kSecond / 4}, sessions_begun_{16, kSecond / 4};
  static constexpr int kRefusedAsksApart = 10;  // heartbeats
  Nanoseconds next_hello_ = 0, next_heartbeat_ = 0;
  std::optional<Nanoseconds> asked_, refused_ask_;  // hellos: the last; the last that counted so
  bool started_ = false;
  std::optional<Loop::TimerId> timer_;
  OwnedTasks tasks_;
  Counters counters_;

  // Control lane.
  std::uint64_t next_sequence_ = 1;
  std::deque<Unacknowledged> unacknowledged_;  // front has sequence next_sequence_ - size
  std::size_t unacknowledged_bytes_ = 0;
  ConnectionId pumped_ = 0;                    // the connection that has taken all before `unsent_`
  std::uint64_t unsent_ = 1;                   // a sequence
  Nanoseconds probed_ = 0;                     // the last time
  std::uint32_t probes_ = 0;                   // since anything was acknowledged
  std::uint64_t received_ = 0;                 // all up to here
  std::map<std::uint64_t, Bytes> beyond_gap_;  // with one missing before them
  std::size_t beyond_gap_bytes_ = 0;
  std::optional<Loop::TimerId> ack_timer_;
  Nanoseconds ack_at_ = 0;  // when it fires
  Nanoseconds last_heard_ = 0;
  Nanoseconds stamped_ = 0;  // the last ack
  Nanoseconds their_stamp_ = 0, their_stamp_at_ = 0;
  RoundTrip round_trip_;

  // Bulk lane.
  BulkSender bulk_;
  BulkArrivals arrivals_;
  std::uint64_t other_bulk_bytes_ = 0;  // received, of whole messages that are no accepted chunks
  std::uint64_t highest_received_ = 0;
  std::uint64_t their_floor_ = 0;  // BulkSender::floor of the peer
  double brought_in_trip_ = 0;     // bytes that came in a round trip, lately
  LogPace window_logged_{600 * kSecond};
  std::uint32_t unsettled_ = 0;  // chunks
  std::size_t unsettled_bytes_ = 0;
  std::set<std::uint64_t> stalled_;  // sequences of those of them that stall() named
  std::deque<std::pair<TransferId, std::uint32_t>> recent_acks_;
  std::size_t unsent_acks_ = 0;  // of these, the last ones, that no connection has taken
  // Those that were sent may be lost. They go again on each heartbeat, after the end of a
  // connection, and once so many bytes of chunks came that they are a small part of it: not with
  // each answer.
  static constexpr std::size_t kCameForAllAcks = 16 << 10;
  std::size_t came_since_all_acks_ = 0;
  // Connections for bulk: as the peer would like them, and as they were asked for last.
  std::uint32_t their_width_ = 1, width_ = 1;
  std::uint32_t their_width_max_;  // it takes no more, as it said last, in an earlier session too
  bool their_width_max_said_ = false;  // in this one, for which it holds
  std::size_t next_bind_ = 0;

  // For people.
  struct Sample {
    Nanoseconds when = 0;
    std::uint64_t sent = 0, received = 0;
    std::uint64_t bulk_received = 0;  // of these

    double bulk_since(const Sample& before) const {
      return static_cast<double>(bulk_received - before.bulk_received);
    }
  };
  std::deque<Sample> samples_;  // one a heartbeat, the last few seconds
};

}  // namespace isthmus::inter
