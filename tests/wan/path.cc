#include "tests/wan/path.h"

#include <algorithm>
#include <cmath>

namespace isthmus::wan {

namespace {

constexpr double kQueueSeconds = 0.1;
constexpr double kQueueBytesLeast = 65536;

}  // namespace

void Path::change(const PathSettings& settings, Nanoseconds now) {
  const auto busy = std::max<Nanoseconds>(idle_from_ - now, 0);
  const double queued = static_cast<double>(busy) * bytes_per_nanosecond();
  settings_ = settings;
  idle_from_ = now;
  if (limited())
    idle_from_ += std::min<Nanoseconds>(busy, std::llround(queued / bytes_per_nanosecond()));
}

double Path::queue_bytes_max() const {
  if (settings_.queue_bytes > 0) return settings_.queue_bytes;
  return std::max(kQueueBytesLeast, settings_.bits_per_second / 8 * kQueueSeconds);
}

std::optional<Nanoseconds> Path::enqueue(Nanoseconds now, std::size_t bytes, std::size_t packets) {
  if (!limited()) return now;
  const auto start = std::max(now, idle_from_);
  const double queued = static_cast<double>(start - now) * bytes_per_nanosecond();
  if (queued + static_cast<double>(bytes) > queue_bytes_max()) {
    counts.overflow += packets;
    return std::nullopt;
  }
  return idle_from_ = start + std::llround(static_cast<double>(bytes) / bytes_per_nanosecond());
}

bool Path::loses() {
  if (settings_.loss <= 0) return false;
  if (settings_.loss >= 1 || settings_.burst <= 1) {
    losing_ = random_.chance(settings_.loss);
  } else {
    // Of the two states' shares, that of losing is enter / (enter + leave) = loss.
    const double leave = 1 / settings_.burst;
    const double enter = std::min(1.0, settings_.loss * leave / (1 - settings_.loss));
    losing_ = losing_ ? !random_.chance(leave) : random_.chance(enter);
  }
  if (losing_) ++counts.lost;
  return losing_;
}

Nanoseconds Path::arrival(Nanoseconds left) {
  auto at = left + settings_.delay;
  if (settings_.jitter > 0)
    at += static_cast<Nanoseconds>(random_.uniform() * static_cast<double>(settings_.jitter));
  if (!settings_.reorder) at = std::max(at, last_arrival_);
  last_arrival_ = std::max(at, last_arrival_);
  return at;
}

}  // namespace isthmus::wan
