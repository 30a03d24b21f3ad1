// AccessLink: one direction of the line that a site has to everybody: it sends one piece after the
// other at its rate, and drops what finds no room in its queue.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>

#include "inter/sim/simulation.h"

namespace isthmus::inter::sim {

class AccessLink {
 public:
  AccessLink(Simulation& simulation, double bytes_per_second, std::size_t queue_bytes)
      : simulation_(simulation), bytes_per_second_(bytes_per_second), queue_bytes_(queue_bytes) {}
  AccessLink(const AccessLink&) = delete;
  AccessLink& operator=(const AccessLink&) = delete;

  // Also of what is under way.
  void set_rate(double bytes_per_second);
  void set_queue(std::size_t bytes) { queue_bytes_ = bytes; }

  // Bytes that push() takes now. An idle line takes any piece.
  std::size_t room() const;
  // `through`: when the last byte is. No more than room().
  void push(std::size_t bytes, std::function<void()> through);
  // What a byte that is pushed now waits for.
  Nanoseconds wait() const;

 private:
  struct Piece {
    std::size_t bytes = 0;
    std::function<void()> through;
  };
  void send_first();

  Simulation& simulation_;
  double bytes_per_second_;
  std::size_t queue_bytes_, queued_ = 0;
  std::deque<Piece> queue_;  // the first one is being sent
  double left_ = 0;          // bytes of it, when its rate was last changed
  Nanoseconds since_ = 0;
  std::uint64_t sending_ = 0;  // counts what send_first() began
};

}  // namespace isthmus::inter::sim
