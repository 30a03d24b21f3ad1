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
#include <string_view>
#include <utility>
#include <vector>

#include "inter/bulk_pace.h"
#include "inter/bulk_width.h"
#include "inter/link_frames.h"
#include "inter/loop.h"
#include "inter/planted_bug.h"
#include "inter/rate_limit.h"
#include "inter/wire.h"

namespace isthmus::inter {

// Bytes of framing and sealing that a wire adds to a message, for the rate limit.
inline constexpr std::size_t kFramingBytes = 64;

inline constexpr std::size_t kInFlightMax = 4096;  // chunks, whatever credit the peer grants

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
  BulkSender(Loop& loop, Wire& wire, RateLimit& limit, GatewayId peer,
             std::uint32_t connections_max, PlantedBug bug);
  ~BulkSender();
  BulkSender(const BulkSender&) = delete;
  BulkSender& operator=(const BulkSender&) = delete;

  // Offers of an earlier session end with it; the owner makes them again where they still stand.
  void begin(std::uint64_t session);
  void end();
  // The connections that chunks leave on. What was on its way on others may be lost: it goes again.
  void use(std::span<const ConnectionId> connections);
  void writable(ConnectionId connection);
  // How many of them may carry more than one.
  void widen_to(BulkWidth::Most most) { width_.widen_to(most); }
  void limit_width(std::uint32_t most) { width_.limit_to(most); }
  std::uint32_t width_wanted() const { return width_.wanted(); }
  std::string_view width_why() const { return width_.why(); }

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
                    std::uint64_t credit, bool stalled, Nanoseconds round_trip);
  void peer_has(const Have& have);
  // What left at a time by our clock arrived at one by the peer's; and whether it helps to know
  // that a few times a second: not below a rate limit, of which it would take too much.
  void note_way(Nanoseconds left, Nanoseconds arrived, Nanoseconds round_trip) {
    pace_.note_way(left, arrived, round_trip);
  }
  bool asks_when_it_arrives() const { return limit_.bytes_per_second() <= 0 && pace_.asks(); }

  // On every heartbeat: chunks without news for far longer than the line needs go again. How long
  // it needs is learnt from what arrived lately. While TCP brings bytes to the other end, the line
  // is slow and nothing lost.
  void heartbeat(Nanoseconds round_trip, const BulkTotals& totals);

  // When something of chunks came to the other end, as its acknowledgements or TCP's tell; 0:
  // never.
  Nanoseconds last_arrival() const { return last_arrival_; }

  // Sequences up to here are acknowledged or given up.
  std::uint64_t floor() const;
  // "": nothing waits.
  std::string waits_for() const;

  struct Counters {
    std::uint64_t chunks_sent = 0, chunks_resent = 0, chunks_copied = 0, resumes = 0;
    std::uint64_t parameter_bytes = 0, codec_bytes = 0, zstd_bytes = 0;
  };
  const Counters& counters() const { return counters_; }
  // In which the peer had not acknowledged all that was offered to it.
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
    std::vector<std::uint64_t> sequences;  // of the chunks in flight, the first one; 0: it is not
    std::deque<std::uint32_t> queue;
    std::uint32_t acknowledged_count = 0;
    std::uint32_t copies = 0;
    bool wait_for_have = false;

    void acknowledge(std::uint32_t index);
    void lost(std::uint32_t index);
  };
  struct Path {            // one connection
    bool blocked = false;  // the wire said busy
    std::size_t bytes_in_flight = 0;
    // Chunks are numbered on each, since each keeps to its own order and pace.
    std::uint64_t last_number = 0, highest_acknowledged = 0;
  };
  struct InFlight {
    TransferId transfer = 0;
    std::uint32_t index = 0;
    Nanoseconds sent = 0;
    std::size_t bytes = 0;
    ConnectionId connection = 0;
    std::uint64_t number = 0;
    // The other one of the two that are on their way, where the chunk was copied; 0: it was not.
    std::uint64_t twin = 0;
  };
  struct Late {  // a chunk that another connection may bring sooner
    std::uint64_t sequence = 0;
    Nanoseconds time = 0;  // that it still takes where it is
  };
  struct Reserved {  // a chunk whose turn at the rate limit is known
    TransferId transfer = 0;
    std::uint32_t index = 0;
    ChunkBytes chunk;
    bool charged = false;  // at the rate of now
    std::size_t cost() const { return chunk.bytes.size() + kFramingBytes; }
  };

  bool reserve_next();
  std::optional<Reserved> take_next(std::uint64_t than);
  void prefer_older();
  void take_turn();
  bool send_reserved();
  void drop_reservation();
  std::map<ConnectionId, Path>::iterator send_on_emptiest(const WireMessage& message);
  WireMessage message_of(TransferId transfer, std::uint32_t index, SharedBytes bytes) const;
  std::map<ConnectionId, Path>::const_iterator used_end() const;
  bool any_writable() const;
  bool may_send() const;
  bool all_is_sent() const;
  void copy_late_ones();
  std::vector<Late> late_ones(const std::map<ConnectionId, BulkPath>& paths) const;
  bool copy(std::uint64_t sequence, ConnectionId connection);
  void sent_on(Path& path, const InFlight& chunk);
  void arrived(Outgoing& out, std::uint32_t index, Nanoseconds round_trip);
  void forget(std::map<std::uint64_t, InFlight>::iterator entry);
  void forget_with_twin(std::map<std::uint64_t, InFlight>::iterator entry);
  void requeue(std::map<std::uint64_t, InFlight>::iterator entry);
  void requeue_overtaken();
  void count_sending();
  void count_starving();

  Loop& loop_;
  Wire& wire_;
  RateLimit& limit_;
  const GatewayId peer_;
  const PlantedBug bug_;

  std::uint64_t session_ = 0;  // 0: none
  std::map<ConnectionId, Path> paths_;
  BulkWidth width_;
  BulkPace pace_;
  std::map<TransferId, Outgoing> outgoing_;
  std::map<std::uint64_t, InFlight> in_flight_;  // by sequence
  std::uint64_t next_sequence_ = 1;
  std::uint64_t credit_ = 0;   // may send sequences up to here
  bool peer_stalled_ = false;  // what it has cannot be acknowledged yet
  Nanoseconds last_arrival_ = 0;
  Nanoseconds last_progress_ = 0;         // that, or another reason to wait from then on
  std::uint64_t acknowledged_bytes_ = 0;  // by TCP, as of the last heartbeat
  // Of arrivals, lately: rises at once and falls by half.
  double goodput_ = 0;               // bytes per second; 0: not known yet
  std::uint64_t arrived_bytes_ = 0;  // since the last heartbeat
  Nanoseconds last_heartbeat_ = 0;
  std::optional<Reserved> reserved_;
  std::optional<Loop::TimerId> release_timer_;  // the reserved chunk's turn
  std::optional<Loop::TimerId> copy_timer_;     // late ones are looked for again, not before
  bool look_again_ = false;                     // then
  Nanoseconds round_trip_ = 0;                  // as of the last acknowledgement
  Counters counters_;
  std::optional<Nanoseconds> sending_since_;  // nothing: all is acknowledged
  Nanoseconds sending_ = 0;                   // before that
  std::uint64_t sent_before_ = 0;             // bytes, when sending_since_ began
  std::optional<Nanoseconds> starving_since_;
  Nanoseconds starved_ = 0;  // since sending_since_, before that
  std::optional<Flow> last_flow_;
};

}  // namespace isthmus::inter
