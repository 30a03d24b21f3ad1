// BulkSender: the sending half of a link's bulk lane: which chunk goes next, when credit, the rate
// limit and the wire allow it, and what goes again because it was lost (PROTOCOL.md, "Credit",
// "Resume"). Sessions, connections and acknowledgements are the link's, which tells it of them.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "inter/link_frames.h"
#include "inter/loop.h"
#include "inter/planted_bug.h"
#include "inter/rate_limit.h"
#include "inter/wire.h"

namespace isthmus::inter {

// Bytes of framing and sealing that a wire adds to a message, for the rate limit.
inline constexpr std::size_t kFramingBytes = 64;

inline constexpr std::size_t kInFlightMax = 1024;  // chunks, whatever credit the peer grants

// One coded chunk, ready to send, with the sizes it stands for.
struct ChunkBytes {
  SharedBytes bytes;  // none: not there yet
  std::uint32_t parameter_bytes = 0;
  std::uint32_t codec_bytes = 0;
};

class ChunkSource {
 public:
  virtual ~ChunkSource() = default;
  virtual ChunkBytes chunk(std::uint32_t index) = 0;
};

class BulkSender {
 public:
  BulkSender(Loop& loop, Wire& wire, RateLimit& limit, GatewayId peer, PlantedBug bug);
  ~BulkSender();
  BulkSender(const BulkSender&) = delete;
  BulkSender& operator=(const BulkSender&) = delete;

  // Offers of an earlier session end with it; the owner makes them again where they still stand.
  void begin(std::uint64_t session);
  void end();
  // The connection that chunks leave on; 0: none now. What was on its way on another one may be
  // lost: it goes again.
  void use(ConnectionId connection);
  void writable();

  // As Link promises them.
  void offer(TransferId transfer, std::uint64_t priority, std::uint32_t chunks,
             std::shared_ptr<ChunkSource> source, bool resume);
  void withdraw(TransferId transfer);
  bool offers(TransferId transfer) const { return outgoing_.count(transfer) > 0; }
  bool sends(TransferId transfer) const {
    const auto found = outgoing_.find(transfer);
    return found != outgoing_.end() && found->second.acknowledged_count < found->second.chunks;
  }
  bool sends_any() const { return sending_since_.has_value(); }
  std::vector<std::pair<TransferId, std::uint32_t>> acknowledged_chunks() const;
  void pump();
  // The rate limit is another one: whose turn is yet to come gets a new place.
  void rate_changed();

  // What the peer says.
  void acknowledged(std::span<const std::pair<TransferId, std::uint32_t>> chunks,
                    std::uint64_t credit, bool stalled);
  void peer_has(const Have& have);

  // On every heartbeat: chunks without news for far longer than the line needs go again.
  void resend_overdue(Nanoseconds round_trip, double bytes_per_second);

  // Sequences up to here are acknowledged or given up.
  std::uint64_t floor() const;
  // "": nothing waits.
  std::string waits_for() const;

  struct Counters {
    std::uint64_t chunks_sent = 0, chunks_resent = 0, resumes = 0;
    std::uint64_t parameter_bytes = 0, codec_bytes = 0, zstd_bytes = 0;
  };
  const Counters& counters() const { return counters_; }
  // In which the peer had not acknowledged all that was offered to it. A chunk waits out its cost
  // at the rate limit before it leaves, so chunks never seem faster than that.
  double seconds_sending() const;
  // While the last transfer of some size went: bytes per second, and the share of the time in which
  // the line could have taken a chunk that was not coded yet. Nothing: none went yet.
  struct Flow {
    double bytes_per_second = 0;
    double starved = 0;
  };
  const std::optional<Flow>& last_flow() const { return last_flow_; }

 private:
  struct Outgoing {
    std::uint64_t priority = 0;
    std::uint32_t chunks = 0;
    std::shared_ptr<ChunkSource> source;  // shared by the links that send the same transfer
    std::vector<bool> acknowledged;
    std::vector<std::uint64_t> sequences;  // of the chunks in flight; 0: it is not
    std::deque<std::uint32_t> queue;
    std::uint32_t acknowledged_count = 0;
    bool wait_for_have = false;

    void acknowledge(std::uint32_t index);
    void lost(std::uint32_t index);
  };
  struct InFlight {
    TransferId transfer = 0;
    std::uint32_t index = 0;
    Nanoseconds sent = 0;
    std::size_t bytes = 0;
  };
  struct Reserved {  // a chunk whose turn at the rate limit is known
    TransferId transfer = 0;
    std::uint32_t index = 0;
    ChunkBytes chunk;
    std::size_t cost() const { return chunk.bytes.size() + kFramingBytes; }
  };

  bool reserve_next();
  void take_turn();
  bool send_reserved();
  void drop_reservation();
  void arrived(Outgoing& out, std::uint32_t index);
  void requeue(std::map<std::uint64_t, InFlight>::iterator entry);
  void requeue_all();
  void count_sending();
  void count_starving();

  Loop& loop_;
  Wire& wire_;
  RateLimit& limit_;
  const GatewayId peer_;
  const PlantedBug bug_;

  std::uint64_t session_ = 0;  // 0: none
  ConnectionId connection_ = 0;
  bool blocked_ = false;  // the wire said busy
  std::map<TransferId, Outgoing> outgoing_;
  std::map<std::uint64_t, InFlight> in_flight_;  // by sequence
  std::uint64_t next_sequence_ = 1;
  std::uint64_t credit_ = 0;   // may send sequences up to here
  bool peer_stalled_ = false;  // what it has cannot be acknowledged yet
  std::uint64_t highest_acknowledged_ = 0;
  Nanoseconds last_progress_ = 0;
  std::optional<Reserved> reserved_;
  std::optional<Loop::TimerId> release_timer_;  // the reserved chunk's turn
  Counters counters_;
  std::optional<Nanoseconds> sending_since_;  // nothing: all is acknowledged
  Nanoseconds sending_ = 0;                   // before that
  std::uint64_t sent_before_ = 0;             // bytes, when sending_since_ began
  std::optional<Nanoseconds> starving_since_;
  Nanoseconds starved_ = 0;  // since sending_since_, before that
  std::optional<Flow> last_flow_;
};

}  // namespace isthmus::inter
