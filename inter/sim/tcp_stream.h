// TcpStream: one direction of a simulated TCP connection, from one site's access link to another's.
// Bytes on their way are bounded by a congestion window that grows and, when a queue overflows or a
// packet is lost, halves; what is lost comes a round trip later, and what is behind it waits. A
// fluid model: pieces of many packets, not packets. What falls into a cut, or whose acknowledgement
// does, nobody tells the sender of: it goes again when the timer ends, one packet alone and each
// time twice as late, until the first acknowledgement.
//
// After Jacobson, "Congestion avoidance and control", SIGCOMM '88; RFC 5681, RFC 6928 (first
// window); RFC 6298 (timer), with Linux's bounds. Or its window is two bandwidth-delay products,
// whatever is lost, with the most that was delivered in one of the last ten rounds: as BBR's
// (Cardwell et al., ACM Queue 14(5), 2016), without its looks for a shorter round trip.
// Acknowledgements take no room on the way back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/random.h"
#include "inter/rate_limit.h"
#include "inter/sim/access_link.h"
#include "inter/sim/simulation.h"
#include "inter/tcp_facts.h"

namespace isthmus::inter::sim {

// One way from a site to another.
struct SimulatedPath {
  Nanoseconds delay = 0;   // without the access links
  double packet_loss = 0;  // of one packet
  bool cut = false;        // nothing arrives
};

inline constexpr std::size_t kSegmentBytes = 1460;

// What follows from loss; and whether gateways see what TCP knows.
enum class SimulatedTcp : std::uint8_t { unseen, reno, bbr };

class TcpStream : public std::enable_shared_from_this<TcpStream> {
 public:
  // All references outlive what is on its way.
  TcpStream(Simulation& simulation, AccessLink& up, AccessLink& down, const SimulatedPath& there,
            const SimulatedPath& back, Random random, SimulatedTcp kind = SimulatedTcp::reno)
      : simulation_(simulation),
        up_(up),
        down_(down),
        there_(there),
        back_(back),
        random_(random),
        kind_(kind) {}

  // `left`: its last byte has left the sender's machine, or was lost there and will come again.
  // `arrived`: all of it has, and all that was sent before it.
  void send(std::size_t bytes, std::function<void()> left, std::function<void()> arrived);
  // The connection is dead: what is on its way still arrives, nothing is sent any more.
  void end() { ended_ = true; }
  // No faster from now on; nothing: as fast as the window allows. As the kernel does it: what waits
  // for its time by the pace of before goes on waiting.
  void pace(std::optional<double> bytes_per_second) { pace_ = bytes_per_second; }
  // What is handed to the kernel keeps to it from now on, with others; also after it has changed.
  void limit_with(std::shared_ptr<RateLimit> limit);

  // As the sender's kernel has them; not what came to it on the connection.
  TcpFacts facts();
  // At the receiver, of what it did not have, with nothing missing before it; 0: none yet.
  Nanoseconds last_arrival() const { return last_arrival_; }
  // Of a message that has not arrived whole, what the receiver could read.
  std::uint64_t bytes_of_a_part() const { return received_ - whole_until_; }

  double window() const { return window_; }
  std::uint64_t in_flight() const { return in_flight_; }
  std::uint64_t losses() const { return losses_; }

 private:
  struct Message {
    std::uint64_t end = 0;
    std::function<void()> then;
  };
  struct Piece {
    std::uint64_t begin = 0, end = 0;
    int tries = 0;  // before this one
  };
  struct Acknowledged {
    Nanoseconds when = 0;
    Piece piece;
    std::uint64_t until = 0;  // the receiver has all up to here
  };
  // What BBR knows of the path.
  struct Rate {
    std::deque<std::pair<std::uint64_t, double>> lately;  // round, bytes per second
    double most = 0;                                      // of them
    double most_before = 0;
    int rounds_without_more = 0;  // a quarter more; after three the line is full
    bool filled = false;
    bool idle = false;  // there was nothing to send in this round trip
    Nanoseconds began = 0;
    std::uint64_t delivered = 0;  // until then
    std::uint64_t round = 0;
  };

  void pump();
  void pump_later();
  bool waits_for_pace();
  bool waits_for_turn();
  std::optional<double> pace_now() const;  // bytes per second; nothing: none
  std::uint64_t piece_bytes_max() const;
  void follow_rate();
  void settle();
  void transmit(Piece piece);
  void leave(const Piece& piece);
  void arrive(const Piece& piece);
  void receive(const Piece& piece);
  void lose(const Piece& piece);
  void slow_down(bool timed_out);
  void miss(const Piece& piece);
  void time_out(std::uint64_t timer);
  void hear(const Acknowledged& acknowledged);
  Nanoseconds timeout() const;
  Nanoseconds round_trip() const { return there_.delay + back_.delay + up_.wait() + down_.wait(); }
  // Of a piece, what fits: whole packets.
  static Piece fitting(const Piece& piece, std::size_t room);

  Simulation& simulation_;
  AccessLink& up_;
  AccessLink& down_;
  const SimulatedPath& there_;
  const SimulatedPath& back_;
  Random random_;
  const SimulatedTcp kind_;
  bool ended_ = false;

  // The sender.
  std::deque<Message> leaving_;
  std::uint64_t end_ = 0, sent_ = 0, left_ = 0;  // places in the stream
  std::uint64_t in_flight_ = 0, losses_ = 0;
  static constexpr double kWindowAtFirst = 10.0 * kSegmentBytes;
  double window_ = kWindowAtFirst;
  double threshold_ = std::numeric_limits<double>::infinity();
  Nanoseconds slowed_until_ = 0;  // once in a round trip
  std::deque<Acknowledged> acknowledged_;
  std::deque<Piece> lost_;         // to be sent again, before anything new
  std::vector<Piece> unheard_;     // on their way as far as the sender knows, and cut off
  std::uint64_t timer_ = 0;        // the one that runs while there are any
  int timeouts_ = 0;               // since the last acknowledgement
  std::uint64_t heard_until_ = 0;  // all up to here is acknowledged
  bool pump_due_ = false;
  std::optional<double> pace_;
  Nanoseconds next_send_ = 0;  // by the pace
  bool pace_due_ = false;
  std::shared_ptr<RateLimit> limit_;      // null: none
  std::optional<RateLimit::Piece> turn_;  // what is left of the next one, at the limit
  bool turn_due_ = false;
  std::uint64_t delivered_ = 0, resent_ = 0;
  Nanoseconds round_trip_min_ = 0;          // 0: not known yet
  Nanoseconds busy_ = 0, busy_since_ = -1;  // -1: it is not
  Rate rate_;

  // The receiver.
  std::deque<Message> arriving_;
  std::uint64_t received_ = 0;
  std::uint64_t whole_until_ = 0;                  // the end of the last message that has arrived
  std::map<std::uint64_t, std::uint64_t> beyond_;  // begin and end of what came behind a gap
  Nanoseconds last_arrival_ = 0;
};

}  // namespace isthmus::inter::sim
