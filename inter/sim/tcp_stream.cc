#include "inter/sim/tcp_stream.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace isthmus::inter::sim {
namespace {

constexpr std::uint64_t kPieceBytesMax = 16 << 10;
constexpr double kWindowMax = 16 << 20;
constexpr Nanoseconds kTimeout = 200 * kMillisecond, kTimeoutMax = 5 * kSecond;

}  // namespace

void TcpStream::send(std::size_t bytes, std::function<void()> left, std::function<void()> arrived) {
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
    if (!lost_.empty()) {
      const auto again = lost_.front();
      lost_.pop_front();
      in_flight_ += again.end - again.begin;
      transmit(again);
      continue;
    }
    const auto bytes =
        std::min({end_ - sent_, kPieceBytesMax,
                  static_cast<std::uint64_t>(std::max<double>(free, kSegmentBytes))});
    const Piece piece{sent_, sent_ + bytes, 0};
    sent_ += bytes;
    in_flight_ += bytes;
    transmit(piece);
  }
  pump_later();
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
    const auto bytes = static_cast<double>(acknowledged_.front().bytes);
    acknowledged_.pop_front();
    // A window that is not used says nothing about the path.
    if (2 * static_cast<double>(in_flight_) >= window_)
      window_ = std::min(
          kWindowMax, window_ + (window_ < threshold_ ? bytes : kSegmentBytes * bytes / window_));
    in_flight_ -= static_cast<std::uint64_t>(bytes);
  }
}

TcpStream::Piece TcpStream::fitting(const Piece& piece, std::size_t room) {
  auto first = piece;
  if (const auto bytes = piece.end - piece.begin; bytes > room)
    first.end = piece.begin + room / kSegmentBytes * kSegmentBytes;
  return first;
}

void TcpStream::transmit(Piece piece) {
  if (path_.packet_loss > 0) {
    const auto packets = (piece.end - piece.begin + kSegmentBytes - 1) / kSegmentBytes;
    const double any = 1 - std::pow(1 - path_.packet_loss, static_cast<double>(packets));
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
  simulation_.after(path_.delay, -1, [self = shared_from_this(), piece] { self->arrive(piece); });
}

void TcpStream::arrive(const Piece& piece) {
  const auto taken = fitting(piece, down_.room());
  if (taken.end < piece.end) lose({taken.end, piece.end, piece.tries});
  if (taken.begin < taken.end)
    down_.push(taken.end - taken.begin,
               [self = shared_from_this(), taken] { self->receive(taken); });
}

void TcpStream::receive(const Piece& piece) {
  beyond_.emplace(piece.begin, piece.end);
  while (!beyond_.empty() && beyond_.begin()->first <= received_) {
    received_ = std::max(received_, beyond_.begin()->second);
    beyond_.erase(beyond_.begin());
  }
  acknowledged_.push_back({simulation_.now() + path_.delay, piece.end - piece.begin});
  if (!ended_) pump_later();
  while (!arriving_.empty() && arriving_.front().end <= received_) {
    const auto arrived = std::move(arriving_.front().then);
    arriving_.pop_front();
    arrived();
  }
}

// The sender knows when what was behind it is acknowledged; of what is lost again, when nothing
// comes for a while.
void TcpStream::lose(const Piece& piece) {
  ++losses_;
  auto later = round_trip();
  if (piece.tries > 1) later += std::min(kTimeoutMax, kTimeout << std::min(piece.tries, 10));
  simulation_.after(later, -1, [self = shared_from_this(), piece] {
    if (self->ended_) return;
    self->settle();
    self->slow_down(piece.tries > 1);
    self->in_flight_ -= piece.end - piece.begin;
    self->lost_.push_back({piece.begin, piece.end, piece.tries + 1});
    self->pump();
  });
}

void TcpStream::slow_down(bool timed_out) {
  if (simulation_.now() < slowed_until_) return;
  threshold_ = std::max(window_ / 2, 2.0 * kSegmentBytes);
  window_ = timed_out ? kSegmentBytes : threshold_;
  slowed_until_ = simulation_.now() + round_trip();
}

}  // namespace isthmus::inter::sim
