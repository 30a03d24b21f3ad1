// A simulated bottleneck for paces: one queue, first in, first out, that drops what finds no room;
// packets are handled a millisecond at a time. And who else may use it.
#pragma once

#include <algorithm>
#include <cmath>
#include <deque>
#include <vector>

namespace isthmus::inter {

inline constexpr double kSegment = 1448;
inline constexpr double kLine = 100e6 / 8;  // bytes per second
inline constexpr double kStep = 1e-3;       // seconds

class Sender {
 public:
  virtual ~Sender() = default;
  // Bytes per second, now.
  virtual double rate(double now) = 0;
  virtual void acknowledged(double now, double bytes, double round_trip) = 0;
  virtual void lost(double now, double bytes) = 0;

  double delivered = 0;
};

class Bottleneck {
 public:
  Bottleneck(double round_trip, double queue_seconds, double line = kLine)
      : round_trip_(round_trip), room_(queue_seconds * line), line_(line) {}

  void add(Sender& sender) { senders_.push_back(&sender); }
  void remove(Sender& sender) { std::erase(senders_, &sender); }
  double queue_seconds() const { return queued_ / line_; }
  // From now on; the queue holds as many bytes as before.
  void line(double bytes_per_second) { line_ = bytes_per_second; }
  void round_trip(double seconds) { round_trip_ = seconds; }
  // Acknowledgements wait behind what goes that way; it outlives this one.
  void acknowledged_by(const Bottleneck& back) { back_ = &back; }

  void run_for(double seconds) {
    for (const auto end = now_ + seconds; now_ < end; now_ += kStep) step();
  }

 private:
  struct Piece {
    Sender* sender;
    double bytes;
    double sent;
  };

  void step() {
    for (auto* sender : senders_) {
      const double bytes = sender->rate(now_) * kStep;
      const double fits = std::clamp(room_ - queued_, 0.0, bytes);
      if (fits < bytes) sender->lost(now_, bytes - fits);
      if (fits <= 0) continue;
      queue_.push_back({sender, fits, now_});
      queued_ += fits;
    }
    for (double left = line_ * kStep; left > 0 && !queue_.empty();) {
      auto& first = queue_.front();
      const double through = std::min(left, first.bytes);
      first.sender->delivered += through;
      on_the_way_.push_back({first.sender, through, first.sent});
      const double arrival = now_ + round_trip_ + (back_ ? back_->queue_seconds() : 0);
      arrivals_.push_back(arrivals_.empty() ? arrival : std::max(arrival, arrivals_.back()));
      first.bytes -= through;
      queued_ -= through;
      left -= through;
      if (first.bytes <= 1e-6) queue_.pop_front();
    }
    while (!arrivals_.empty() && arrivals_.front() <= now_) {
      const auto piece = on_the_way_.front();
      on_the_way_.pop_front();
      arrivals_.pop_front();
      piece.sender->acknowledged(now_, piece.bytes, now_ - piece.sent);
    }
  }

  double round_trip_;
  const double room_;
  double line_;
  double now_ = 0, queued_ = 0;
  const Bottleneck* back_ = nullptr;
  std::vector<Sender*> senders_;
  std::deque<Piece> queue_, on_the_way_;
  std::deque<double> arrivals_;
};

// Fills the queue until something is lost, as CUBIC does (RFC 8312, after its slow start).
class Greedy final : public Sender {
 public:
  double rate(double) override { return window_ * kSegment / round_trip_; }
  void acknowledged(double now, double bytes, double round_trip) override {
    round_trip_ = round_trip;
    if (starting_) {
      window_ += bytes / kSegment;
      return;
    }
    const double since = now - lost_at_ - std::cbrt(before_ * (1 - kBeta) / kScale);
    const double wanted = before_ + kScale * since * since * since;
    window_ += std::clamp((wanted - window_) / window_, 0.0, 0.5) * bytes / kSegment;
  }
  void lost(double now, double) override {
    starting_ = false;
    if (now < deaf_until_) return;
    before_ = window_;
    window_ = std::max(window_ * kBeta, 2.0);
    lost_at_ = now;
    deaf_until_ = now + 2 * round_trip_;
  }

 private:
  static constexpr double kBeta = 0.7, kScale = 0.4;
  double window_ = 10;  // segments
  double before_ = 0, lost_at_ = 0, round_trip_ = 0.04, deaf_until_ = 0;
  bool starting_ = true;
};

// Sends a share of the line, whatever becomes of it.
class Steady final : public Sender {
 public:
  explicit Steady(double share) : rate_(share * kLine) {}
  double rate(double) override { return rate_; }
  void acknowledged(double, double, double) override {}
  void lost(double, double) override {}

 private:
  double rate_;
};

}  // namespace isthmus::inter
