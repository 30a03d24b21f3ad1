#include "inter/sim/tcp_stream.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

namespace isthmus::inter::sim {
namespace {

constexpr std::uint64_t kPieceBytesMax = 16 << 10;
constexpr double kWindowMax = 16 << 20;
constexpr Nanoseconds kTimeoutMin = 200 * kMillisecond, kTimeoutMax = 120 * kSecond;
constexpr Nanoseconds kLostAgainMax = 5 * kSecond;
constexpr double kBbrWindowMin = 4.0 * kSegmentBytes;
constexpr std::uint64_t kBbrRounds = 10;  // longer than a round trip where little is sent
constexpr double kBbrStartGain = 2.885;
constexpr std::array<double, 8> kBbrGains = {1.25, 0.75, 1, 1, 1, 1, 1, 1};  // of each round trip

}  // namespace

void TcpStream::send(std::size_t bytes, std::function<void()> left, std::function<void()> arrived) {
  if (busy_since_ < 0) busy_since_ = simulation_.now();
  if (in_flight_ == 0) {
    rate_.began = simulation_.now();
    rate_.delivered = delivered_;
    rate_.idle = false;
  }
  end_ += bytes;
  leaving_.push_back({end_, std::move(left)});
  arriving_.push_back({end_, std::move(arrived)});
  pump();
}

void TcpStream::pump() {
  if (ended_) return;
  settle();
  while (sent_ < end_ || !lost_.empty()) {
    const auto free = window_ - static_cast<double>(in_flight_);
    if (free < kSegmentBytes && in_flight_ > 0) break;
    if (waits_for_pace()) return;
    Piece piece;
    if (!lost_.empty()) {
      piece = lost_.front();
      lost_.pop_front();
      if (timeouts_ > 0 && piece.end - piece.begin > kSegmentBytes) {
        lost_.push_front({piece.begin + kSegmentBytes, piece.end, piece.tries});
        piece.end = piece.begin + kSegmentBytes;
      }
      resent_ += (piece.end - piece.begin + kSegmentBytes - 1) / kSegmentBytes;
    } else {
      if (waits_for_turn()) return;
      auto bytes = std::min({end_ - sent_, piece_bytes_max(),
                             static_cast<std::uint64_t>(std::max<double>(free, kSegmentBytes))});
      if (turn_) {
        bytes = std::min(bytes, turn_->bytes);
        turn_->bytes -= bytes;
        if (turn_->bytes == 0) turn_.reset();
      }
      piece = {sent_, sent_ + bytes, 0};
      sent_ += bytes;
    }
    const auto bytes = piece.end - piece.begin;
    in_flight_ += bytes;
    if (const auto pace = pace_now())
      next_send_ = std::max(next_send_, simulation_.now()) +
                   static_cast<Nanoseconds>(static_cast<double>(bytes) / *pace * 1e9);
    transmit(piece);
  }
  rate_.idle |= sent_ == end_ && lost_.empty();
  pump_later();
}

std::optional<double> TcpStream::pace_now() const {
  if (kind_ != SimulatedTcp::bbr || rate_.most == 0) return pace_;
  auto rate = kBbrGains[rate_.round % kBbrGains.size()] * rate_.most;
  // At first never slower than the first window: little was sent because there was little to send.
  if (!rate_.filled)
    rate = kBbrStartGain * std::max(rate_.most, kWindowAtFirst / seconds_of(round_trip_min_));
  return std::min(rate, pace_.value_or(std::numeric_limits<double>::infinity()));
}

std::uint64_t TcpStream::piece_bytes_max() const {
  const auto pace = pace_now();
  if (!pace) return kPieceBytesMax;
  return std::clamp(static_cast<std::uint64_t>(std::min(*pace, 1e12) / 1000),
                    std::uint64_t{2 * kSegmentBytes}, kPieceBytesMax);
}

bool TcpStream::waits_for_turn() {
  if (!limit_ || limit_->bytes_per_second() <= 0) return false;
  const auto now = simulation_.now();
  if (!turn_) {
    turn_ = limit_->reserve_piece(now, end_ - sent_);
    turn_due_ = false;
  }
  if (now >= turn_->leaves) return false;
  rate_.idle = true;
  if (!std::exchange(turn_due_, true))
    simulation_.at(turn_->leaves, -1, [self = shared_from_this()] { self->pump(); });
  return true;
}

void TcpStream::limit_with(std::shared_ptr<RateLimit> limit) {
  limit_ = std::move(limit);
  turn_.reset();
  pump();
}

bool TcpStream::waits_for_pace() {
  if (simulation_.now() >= next_send_) return false;
  if (!std::exchange(pace_due_, true))
    simulation_.at(next_send_, -1, [self = shared_from_this()] {
      self->pace_due_ = false;
      self->pump();
    });
  return true;
}

// At the next acknowledgement, if there is something to send.
void TcpStream::pump_later() {
  if (pump_due_ || (sent_ == end_ && lost_.empty()) || acknowledged_.empty()) return;
  pump_due_ = true;
  simulation_.at(acknowledged_.front().when, -1, [self = shared_from_this()] {
    self->pump_due_ = false;
    self->pump();
  });
}

void TcpStream::settle() {
  while (!acknowledged_.empty() && acknowledged_.front().when <= simulation_.now()) {
    const auto acknowledged = acknowledged_.front();
    const auto& [when, piece, until] = acknowledged;
    const auto bytes = static_cast<double>(piece.end - piece.begin);
    acknowledged_.pop_front();
    delivered_ += piece.end - piece.begin;
    // A window that is not used says nothing about the path.
    const bool used = 2 * static_cast<double>(in_flight_) >= window_;
    if (used && (kind_ != SimulatedTcp::bbr || !rate_.filled))
      window_ = std::min(
          kWindowMax, window_ + (window_ < threshold_ ? bytes : kSegmentBytes * bytes / window_));
    in_flight_ -= piece.end - piece.begin;
    hear(acknowledged);
    if (in_flight_ == 0 && sent_ == end_ && lost_.empty() && busy_since_ >= 0)
      busy_ += when - std::exchange(busy_since_, -1);
  }
  const auto trip = round_trip();
  if (round_trip_min_ == 0 || trip < round_trip_min_)
    round_trip_min_ = std::max<Nanoseconds>(trip, 1);
  if (kind_ == SimulatedTcp::bbr) follow_rate();
}

void TcpStream::follow_rate() {
  const auto now = simulation_.now();
  const auto took = now - rate_.began;
  if (took < round_trip() || delivered_ == rate_.delivered) return;
  const double rate = static_cast<double>(delivered_ - rate_.delivered) / seconds_of(took);
  // What was not sent says nothing about the path.
  if (!rate_.idle || rate > rate_.most) rate_.lately.emplace_back(rate_.round, rate);
  while (rate_.lately.size() > 1 && rate_.lately.front().first + kBbrRounds < rate_.round)
    rate_.lately.pop_front();
  rate_.most = 0;
  for (const auto& [round, lately] : rate_.lately) rate_.most = std::max(rate_.most, lately);
  if (!rate_.filled && !rate_.idle) {
    if (rate_.most >= 1.25 * rate_.most_before) {
      rate_.most_before = rate_.most;
      rate_.rounds_without_more = 0;
    } else {
      rate_.filled = ++rate_.rounds_without_more == 3;
    }
  }
  // After a timeout it grows as it did at first.
  if (rate_.filled)
    window_ = std::clamp(2 * rate_.most * seconds_of(round_trip_min_), kBbrWindowMin,
                         std::clamp(2 * window_, kBbrWindowMin, kWindowMax));
  ++rate_.round;
  rate_.began = now;
  rate_.delivered = delivered_;
  rate_.idle = sent_ == end_ && lost_.empty();
}

TcpFacts TcpStream::facts() {
  if (!ended_) settle();
  TcpFacts facts;
  facts.congestion_control = kind_ == SimulatedTcp::bbr ? "bbr" : "reno";
  facts.round_trip = round_trip();
  facts.round_trip_min = round_trip_min_;
  facts.segment_bytes = kSegmentBytes;
  facts.window_bytes = static_cast<std::uint64_t>(window_);
  facts.slow_start = kind_ == SimulatedTcp::bbr ? !rate_.filled : window_ < threshold_;
  facts.unsent_bytes = turn_ ? 0 : end_ - sent_;
  facts.waiting_bytes = end_ - delivered_;
  facts.acknowledged_bytes = std::min(delivered_, heard_until_);
  facts.delivered_bytes = facts.arrived_bytes = delivered_;
  facts.segments_sent = sent_ / kSegmentBytes + resent_;
  facts.segments_resent = resent_;
  facts.busy = busy_ + (busy_since_ < 0 ? 0 : simulation_.now() - busy_since_);
  return facts;
}

TcpStream::Piece TcpStream::fitting(const Piece& piece, std::size_t room) {
  auto first = piece;
  if (const auto bytes = piece.end - piece.begin; bytes > room)
    first.end = piece.begin + room / kSegmentBytes * kSegmentBytes;
  return first;
}

void TcpStream::transmit(Piece piece) {
  if (there_.packet_loss > 0) {
    const auto packets = (piece.end - piece.begin + kSegmentBytes - 1) / kSegmentBytes;
    const double any = 1 - std::pow(1 - there_.packet_loss, static_cast<double>(packets));
    if (random_.chance(any)) {
      auto lost = piece;
      lost.begin += random_.below(packets) * kSegmentBytes;
      lost.end = std::min<std::uint64_t>(piece.end, lost.begin + kSegmentBytes);
      lose(lost);
      const Piece before{piece.begin, lost.begin, piece.tries};
      piece.begin = lost.end;
      if (before.begin < before.end) {
        const auto sent = fitting(before, up_.room());
        if (sent.end < before.end) lose({sent.end, before.end, piece.tries});
        if (sent.begin < sent.end)
          up_.push(sent.end - sent.begin, [self = shared_from_this(), sent] { self->leave(sent); });
      }
    }
  }
  if (piece.begin == piece.end) return;
  const auto sent = fitting(piece, up_.room());
  if (sent.end < piece.end) lose({sent.end, piece.end, piece.tries});
  if (sent.begin < sent.end)
    up_.push(sent.end - sent.begin, [self = shared_from_this(), sent] { self->leave(sent); });
}

void TcpStream::leave(const Piece& piece) {
  left_ = std::max(left_, piece.end);
  while (!leaving_.empty() && leaving_.front().end <= left_) {
    const auto left = std::move(leaving_.front().then);
    leaving_.pop_front();
    left();
  }
  if (there_.cut) return miss(piece);
  simulation_.after(there_.delay, -1, [self = shared_from_this(), piece] { self->arrive(piece); });
}

void TcpStream::arrive(const Piece& piece) {
  const auto taken = fitting(piece, down_.room());
  if (taken.end < piece.end) lose({taken.end, piece.end, piece.tries});
  if (taken.begin < taken.end)
    down_.push(taken.end - taken.begin,
               [self = shared_from_this(), taken] { self->receive(taken); });
}

void TcpStream::receive(const Piece& piece) {
  if (there_.cut) return miss(piece);
  auto& end = beyond_[piece.begin];
  end = std::max(end, piece.end);
  while (!beyond_.empty() && beyond_.begin()->first <= received_) {
    if (beyond_.begin()->second > received_) last_arrival_ = simulation_.now();
    received_ = std::max(received_, beyond_.begin()->second);
    beyond_.erase(beyond_.begin());
  }
  if (back_.cut) {
    miss(piece);
  } else {
    acknowledged_.push_back({simulation_.now() + back_.delay, piece, received_});
    if (!ended_) pump_later();
  }
  while (!arriving_.empty() && arriving_.front().end <= received_) {
    const auto arrived = std::move(arriving_.front().then);
    whole_until_ = arriving_.front().end;
    arriving_.pop_front();
    arrived();
  }
}

// The sender knows when what was behind it is acknowledged; of what is lost again, when nothing
// comes for a while.
void TcpStream::lose(const Piece& piece) {
  ++losses_;
  auto later = round_trip();
  if (piece.tries > 1) later += std::min(kLostAgainMax, kTimeoutMin << std::min(piece.tries, 10));
  simulation_.after(later, -1, [self = shared_from_this(), piece] {
    if (self->ended_) return;
    self->settle();
    self->slow_down(piece.tries > 1);
    self->in_flight_ -= piece.end - piece.begin;
    self->lost_.push_back({piece.begin, piece.end, piece.tries + 1});
    self->pump();
  });
}

// It, or its acknowledgement, fell into a cut.
void TcpStream::miss(const Piece& piece) {
  if (ended_) return;
  unheard_.push_back(piece);
  if (unheard_.size() > 1) return;
  simulation_.after(timeout(), -1,
                    [self = shared_from_this(), timer = ++timer_] { self->time_out(timer); });
}

Nanoseconds TcpStream::timeout() const {
  return std::min(kTimeoutMax, (round_trip() + kTimeoutMin) << std::min(timeouts_, 20));
}

void TcpStream::time_out(std::uint64_t timer) {
  if (ended_) return;
  settle();
  if (timer != timer_ || unheard_.empty()) return;
  if (timeouts_++ == 0) threshold_ = std::max(window_ / 2, 2.0 * kSegmentBytes);
  window_ = kSegmentBytes;
  for (const auto& piece : std::exchange(unheard_, {})) {
    in_flight_ -= piece.end - piece.begin;
    lost_.push_back(piece);
  }
  std::ranges::sort(lost_, {}, &Piece::begin);
  pump();
}

// What is before an acknowledged piece was lost; or its acknowledgement was, and this one says it
// too.
void TcpStream::hear(const Acknowledged& acknowledged) {
  heard_until_ = std::max(heard_until_, acknowledged.until);
  if (std::exchange(timeouts_, 0) > 0) {
    // The path is as it was when there was silence.
    rate_.began = simulation_.now();
    rate_.delivered = delivered_;
  }
  while (!lost_.empty() && lost_.front().end <= heard_until_) {
    delivered_ += lost_.front().end - lost_.front().begin;
    lost_.pop_front();
  }
  if (unheard_.empty()) return;
  bool lost = false;
  std::erase_if(unheard_, [&](const Piece& piece) {
    const bool arrived = piece.end <= heard_until_;
    if (!arrived && piece.end > acknowledged.piece.begin) return false;
    in_flight_ -= piece.end - piece.begin;
    if (arrived) {
      delivered_ += piece.end - piece.begin;
    } else {
      lost_.push_back(piece);
      lost = true;
    }
    return true;
  });
  if (lost) slow_down(false);
}

void TcpStream::slow_down(bool timed_out) {
  if (simulation_.now() < slowed_until_) return;
  if (kind_ == SimulatedTcp::bbr) {
    if (timed_out) window_ = kBbrWindowMin;
    return;
  }
  threshold_ = std::max(window_ / 2, 2.0 * kSegmentBytes);
  window_ = timed_out ? kSegmentBytes : threshold_;
  slowed_until_ = simulation_.now() + round_trip();
}

}  // namespace isthmus::inter::sim
