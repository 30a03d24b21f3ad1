// TcpStream: one direction of a simulated TCP connection, from one site's access link to another's.
// Bytes on their way are bounded by a congestion window that grows and, when a queue overflows or a
// packet is lost, halves; what is lost comes a round trip later, and what is behind it waits. A
// fluid model: pieces of many packets, not packets.
//
// After Jacobson, "Congestion avoidance and control", SIGCOMM '88; RFC 5681, RFC 6928 (first
// window). Acknowledgements take no room on the way back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>

#include "base/random.h"
#include "inter/sim/access_link.h"
#include "inter/sim/simulation.h"

namespace isthmus::inter::sim {

struct SimulatedPath {
  Nanoseconds delay = 0;   // one way, without the access links
  double packet_loss = 0;  // of one packet
};

inline constexpr std::size_t kSegmentBytes = 1460;

class TcpStream : public std::enable_shared_from_this<TcpStream> {
 public:
  // All references outlive what is on its way.
  TcpStream(Simulation& simulation, AccessLink& up, AccessLink& down, const SimulatedPath& path,
            Random random)
      : simulation_(simulation), up_(up), down_(down), path_(path), random_(random) {}

  // `left`: its last byte has left the sender's machine, or was lost there and will come again.
  // `arrived`: all of it has, and all that was sent before it.
  void send(std::size_t bytes, std::function<void()> left, std::function<void()> arrived);
  // The connection is dead: what is on its way still arrives, nothing is sent any more.
  void end() { ended_ = true; }

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
    std::uint64_t bytes = 0;
  };

  void pump();
  void pump_later();
  void settle();
  void transmit(Piece piece);
  void leave(const Piece& piece);
  void arrive(const Piece& piece);
  void receive(const Piece& piece);
  void lose(const Piece& piece);
  void slow_down(bool timed_out);
  Nanoseconds round_trip() const { return 2 * path_.delay + up_.wait() + down_.wait(); }
  // Of a piece, what fits: whole packets.
  static Piece fitting(const Piece& piece, std::size_t room);

  Simulation& simulation_;
  AccessLink& up_;
  AccessLink& down_;
  const SimulatedPath& path_;
  Random random_;
  bool ended_ = false;

  // The sender.
  std::deque<Message> leaving_;
  std::uint64_t end_ = 0, sent_ = 0, left_ = 0;  // places in the stream
  std::uint64_t in_flight_ = 0, losses_ = 0;
  double window_ = 10.0 * kSegmentBytes;
  double threshold_ = std::numeric_limits<double>::infinity();
  Nanoseconds slowed_until_ = 0;  // once in a round trip
  std::deque<Acknowledged> acknowledged_;
  std::deque<Piece> lost_;  // to be sent again, before anything new
  bool pump_due_ = false;

  // The receiver.
  std::deque<Message> arriving_;
  std::uint64_t received_ = 0;
  std::map<std::uint64_t, std::uint64_t> beyond_;  // begin and end of what came behind a gap
};

}  // namespace isthmus::inter::sim
