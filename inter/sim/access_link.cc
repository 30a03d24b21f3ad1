#include "inter/sim/access_link.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace isthmus::inter::sim {

std::size_t AccessLink::room() const {
  if (queue_.empty()) return std::numeric_limits<std::size_t>::max();
  return queue_bytes_ - std::min(queue_bytes_, queued_);
}

void AccessLink::push(std::size_t bytes, std::function<void()> through) {
  queue_.push_back({bytes, std::move(through)});
  queued_ += bytes;
  if (queue_.size() > 1) return;
  left_ = static_cast<double>(bytes);
  send_first();
}

void AccessLink::send_first() {
  since_ = simulation_.now();
  const auto time = static_cast<Nanoseconds>(left_ / bytes_per_second_ * 1e9);
  simulation_.after(time, -1, [this, sending = ++sending_] {
    if (sending != sending_) return;  // its rate was changed
    auto piece = std::move(queue_.front());
    queue_.pop_front();
    queued_ -= piece.bytes;
    if (!queue_.empty()) {
      left_ = static_cast<double>(queue_.front().bytes);
      send_first();
    }
    piece.through();
  });
}

void AccessLink::set_rate(double bytes_per_second) {
  if (bytes_per_second == bytes_per_second_) return;
  if (!queue_.empty())
    left_ = std::max(0.0, left_ - seconds_of(simulation_.now() - since_) * bytes_per_second_);
  bytes_per_second_ = bytes_per_second;
  if (!queue_.empty()) send_first();
}

Nanoseconds AccessLink::wait() const {
  return static_cast<Nanoseconds>(static_cast<double>(queued_) / bytes_per_second_ * 1e9);
}

}  // namespace isthmus::inter::sim
