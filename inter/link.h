// Link: the flow-controlled, resuming whole to one peer, on top of a Wire that loses, repeats and
// reorders. A session begins with a handshake that compares protocol, run and fingerprint; within
// it control messages arrive once and in order, and chunks of transfers arrive under credit, are
// acknowledged once their receiver has checked them, and resume after a reconnect at the gaps.
// PROTOCOL.md, "Link", draws the frames. A link knows nothing of outer steps.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/event_log.h"
#include "base/random.h"
#include "inter/loop.h"
#include "inter/messages.h"
#include "inter/rate_limit.h"
#include "inter/status.h"
#include "inter/wire.h"

namespace isthmus::inter {

inline constexpr std::uint16_t kProtocolVersion = 1;

// Faults that the simulator plants to prove that it would find them
// (tests/sim/planted_bugs_test.cc). None in a real gateway.
enum class PlantedBug : std::uint8_t {
  none,
  lying_disk,             // an fsync that does nothing
  acknowledge_early,      // a chunk is acknowledged before it is checked
  skip_gap,               // after a reconnect everything below the highest chunk counts as received
  announce_before_saved,  // Saved is sent before the state is on disk
  two_contributions,      // a restart contributes again, with other values
  drop_feedback,          // a contribution that no record names is forgotten
};

struct LinkOptions {
  Nanoseconds heartbeat = kSecond;
  Nanoseconds silence = 6 * kSecond;  // at least; more on links with a long round trip
  std::uint32_t window_chunks = 16;   // credit: received and not yet checked
  std::size_t control_queue_max =
      8192;  // unacknowledged control messages; beyond it the session starts anew
  PlantedBug bug = PlantedBug::none;
};

// What a link says of its own side when a session begins.
struct Introduction {
  std::uint64_t boot = 0;  // counts the starts of this gateway, on disk
  security::Digest run;    // zero: none yet
  Fingerprint fingerprint;
  std::uint64_t roster_epoch = 0;
};

// One coded chunk, ready to send, with the sizes it stands for.
struct ChunkBytes {
  std::shared_ptr<const Bytes> bytes;  // shared by the links that send it; null: not there yet
  std::uint32_t parameter_bytes = 0;
  std::uint32_t codec_bytes = 0;
};

class ChunkSource {
 public:
  virtual ~ChunkSource() = default;
  virtual ChunkBytes chunk(std::uint32_t index) = 0;
};

// A chunk that came in and waits for its verdict: settle() must be called once.
struct ChunkArrival {
  TransferId transfer = 0;
  std::uint32_t index = 0;
  std::uint64_t sequence = 0;  // of the bulk lane, in this session
  std::uint64_t session = 0;
};

class Link;

class LinkOwner {
 public:
  virtual ~LinkOwner() = default;
  virtual Introduction introduce() = 0;
  // "": a session with this introduction may begin; else why not.
  virtual std::string objection(GatewayId peer, const Introduction& theirs) = 0;
  virtual void on_session(Link& link, bool up) = 0;
  // In order, once each, while a session is up. The bytes are valid during the call.
  virtual void on_control(Link& link, std::span<const std::byte> message) = 0;
  virtual void on_chunk(Link& link, const ChunkArrival& arrival,
                        std::span<const std::byte> payload) = 0;
};

class Link {
 public:
  Link(Loop& loop, Wire& wire, RateLimit& limit, EventLog& log, Random random, LinkOwner& owner,
       GatewayId self, GatewayId peer, std::string peer_name, std::string peer_address,
       LinkOptions options);
  ~Link();

  // Nothing is said or answered before.
  void start();
  GatewayId peer() const { return peer_; }
  const std::string& peer_name() const { return peer_name_; }
  bool up() const { return session_ != 0; }
  std::uint64_t session() const { return session_; }
  Nanoseconds last_heard() const { return last_heard_; }
  Nanoseconds round_trip() const { return round_trip_; }

  // Reliable and ordered within the session; dropped with it, so the owner says what stands again
  // when a new one begins.
  void send(Bytes message);

  // Everything sent is acknowledged.
  bool drained() const { return unacknowledged_.empty(); }

  // Begins (or, under the same id, keeps) sending a transfer; lower priority numbers first.
  // `resume`: some of it may have arrived in an earlier session, so the peer's have() comes first.
  // The source lives until withdraw().
  void offer(TransferId transfer, std::uint64_t priority, std::uint32_t chunks,
             std::shared_ptr<ChunkSource> source, bool resume);
  void withdraw(TransferId transfer);
  bool offers(TransferId transfer) const { return outgoing_.count(transfer) > 0; }
  // Chunks that the peer acknowledged in this session.
  std::vector<std::pair<TransferId, std::uint32_t>> acknowledged_chunks() const;
  // All chunks acknowledged.
  bool delivered(TransferId transfer) const;
  // A chunk that was not there is there now.
  void poke();

  // The receiver's side: what has arrived of a transfer, sent when its announcement is seen again.
  void have(TransferId transfer, const std::vector<bool>& chunks);
  void settle(const ChunkArrival& arrival, bool accepted);

  // From the gateway's WireReceiver.
  void wire_message(Lane lane, ConnectionId connection, std::span<const std::byte> message);
  void wire_up(Lane lane, ConnectionId connection);
  void wire_down(Lane lane, ConnectionId connection);
  void wire_writable(Lane lane);

  // Ends the session and says why; the peer logs it too. For a peer that left the roster, or at a
  // clean end ("").
  void close(const std::string& why);

  LinkStatus status() const;
  struct Counters {
    std::uint64_t chunks_resent = 0, resumes = 0, sessions = 0, retransmits = 0, duplicates = 0;
  };
  const Counters& counters() const { return counters_; }

 private:
  struct Outgoing {
    std::uint64_t priority = 0;
    std::uint32_t chunks = 0;
    std::shared_ptr<ChunkSource> source;  // shared by the links that send the same transfer
    std::vector<bool> acknowledged;
    std::deque<std::uint32_t> queue;
    std::uint32_t acknowledged_count = 0;
    bool wait_for_have = false;
  };
  struct InFlight {
    TransferId transfer = 0;
    std::uint32_t index = 0;
    Nanoseconds sent = 0;
    std::size_t bytes = 0;
  };
  struct Unacknowledged {
    Bytes frame_body;
    Nanoseconds sent = 0;
  };

  void arm_timer();
  void on_timer();
  void send_hello();
  void receive_hello(ConnectionId connection, ByteReader& in);
  void begin_session(std::uint64_t their_nonce, std::uint64_t their_boot);
  void end_session(const std::string& why, bool reset_wire);
  void refuse(ConnectionId connection, const std::string& why);
  void receive_data(ByteReader& in);
  void receive_ack(ByteReader& in);
  void receive_bulk(std::span<const std::byte> message);
  void deliver(std::span<const std::byte> message);
  void send_data(std::uint64_t sequence);
  void send_ack();
  void ack_soon();
  bool send_control(Bytes message, ConnectionId connection = 0);
  void handle_cumulative(std::uint64_t acknowledged);
  void requeue(std::map<std::uint64_t, InFlight>::iterator entry);
  void requeue_all();
  void pump();
  std::string blocked_by() const;
  Nanoseconds silence_limit() const;
  Nanoseconds retransmit_after() const;

  Loop& loop_;
  Wire& wire_;
  RateLimit& limit_;
  EventLog& log_;
  Random random_;
  LinkOwner& owner_;
  const GatewayId self_, peer_;
  const std::string peer_name_, peer_address_;
  const LinkOptions options_;

  // Session.
  std::uint64_t nonce_ = 0;        // ours, new for each session that we begin to seek
  std::uint64_t their_nonce_ = 0;  // the last one seen
  std::uint64_t session_ = 0;      // 0: none
  std::uint64_t their_boot_ = 0;
  ConnectionId control_connection_ = 0;
  struct Challenger {  // a hello of another process, or of a restart, while the session seems alive
    ConnectionId connection = 0;
    std::uint64_t nonce = 0, boot = 0;
    Nanoseconds until = 0;
    Nanoseconds heard_before = 0;
  };
  std::optional<Challenger> challenger_;
  std::string refused_;  // why, when the last handshake was refused
  Nanoseconds next_hello_ = 0;
  bool started_ = false, control_up_ = false, bulk_up_ = false;

  // Control lane.
  std::uint64_t next_sequence_ = 1;
  std::deque<Unacknowledged> unacknowledged_;  // front has sequence next_sequence_ - size
  std::uint64_t received_ = 0;                 // all up to here
  std::map<std::uint64_t, Bytes> early_;       // beyond a gap
  bool ack_posted_ = false;
  std::deque<std::pair<TransferId, std::uint32_t>> recent_acks_;
  Nanoseconds last_heard_ = 0;
  Nanoseconds their_stamp_ = 0, their_stamp_at_ = 0;
  Nanoseconds round_trip_ = 0, round_trip_deviation_ = 0;

  // Bulk lane, sending.
  std::map<TransferId, Outgoing> outgoing_;
  std::map<std::uint64_t, InFlight> in_flight_;  // by bulk sequence
  std::uint64_t next_bulk_ = 1;
  std::uint64_t credit_ = 0;  // may send sequences up to here
  std::uint64_t highest_acknowledged_ = 0;
  Nanoseconds last_progress_ = 0;
  std::optional<Loop::TimerId> release_timer_;
  struct Reserved {  // a chunk whose turn at the rate limit is known
    TransferId transfer = 0;
    std::uint32_t index = 0;
  };
  std::optional<Reserved> reserved_;
  bool bulk_blocked_ = false;  // the wire said busy

  // Bulk lane, receiving.
  std::uint64_t highest_received_ = 0;
  std::uint64_t their_floor_ =
      0;  // the peer has given up, or had acknowledged, all sequences up to here
  std::uint32_t unsettled_ = 0;

  std::optional<Loop::TimerId> timer_;
  std::uint64_t ever_sessions_ = 0;
  Counters counters_;
  std::uint64_t parameter_bytes_ = 0, codec_bytes_ = 0, zstd_bytes_ = 0, chunks_sent_ = 0;
  struct Sample {
    Nanoseconds when = 0;
    std::uint64_t sent = 0, received = 0;
  };
  double peak_rate_ = 0;        // bytes per second, the best so far
  std::deque<Sample> samples_;  // one a heartbeat, the last few seconds
};

}  // namespace isthmus::inter
