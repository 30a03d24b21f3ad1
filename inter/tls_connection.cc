#include "inter/tls_connection.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <chrono>
#include <cstring>

#include "base/assert.h"
#include "base/copy_to.h"

namespace isthmus::inter {

namespace asio = boost::asio;
using asio::ip::tcp;
using security::TlsRole;
using security::TlsStream;
using security::TlsWants;

namespace {

// What one connection moves before others of its thread have their turn; and in how many pieces,
// as each record costs something however short it is.
constexpr std::size_t kTurnBytes = 1 << 20;
constexpr int kTurnReads = 2 * kTurnBytes / security::kTlsRecordBytesMax;

std::chrono::nanoseconds duration(Nanoseconds time) { return std::chrono::nanoseconds(time); }

}  // namespace

// ---- Both ends come up.

void TlsConnection::dial(const tcp::endpoint& to, Nanoseconds connect_timeout) {
  asio::post(io_, [self = shared_from_this(), to, connect_timeout] {
    if (self->stage_ == Stage::ended) return;
    self->role_ = TlsRole::dialing;
    self->dialed_ = std::chrono::steady_clock::now();
    boost::system::error_code failed;
    self->socket_.open(to.protocol(), failed);
    if (failed) return self->fail({ErrorCode::io, failed.message()});
    self->lane_.set_up_unconnected(self->socket_.native_handle());
    self->limit(connect_timeout, "no connection in time");
    self->socket_.async_connect(to, [self](boost::system::error_code error) {
      if (self->stage_ == Stage::ended) return;
      if (error) return self->fail({ErrorCode::unavailable, error.message()});
      self->connected_at_ = self->lane_.loop().now();
      self->connected();
      if (self->stage_ != Stage::ended) self->open_stream();
    });
  });
}

void TlsConnection::accept(tcp::socket socket) {
  socket_ = std::move(socket);
  asio::post(io_, [self = shared_from_this()] {
    if (self->stage_ == Stage::ended) return;
    self->connected();
    // Who says nothing costs a descriptor, and none of OpenSSL's memory.
    if (self->stage_ != Stage::ended) self->wait(TlsWants::read, &TlsConnection::open_stream);
  });
}

void TlsConnection::connected() {
  boost::system::error_code failed;
  socket_.non_blocking(true, failed);
  if (failed) return fail({ErrorCode::io, failed.message()});
  lane_.set_up_connected(socket_.native_handle());
  stage_ = Stage::handshaking;
  const auto& options = lane_.options();
  if (role_ == TlsRole::listening) return limit(options.handshake_timeout, "no handshake in time");
  const std::chrono::nanoseconds passed = std::chrono::steady_clock::now() - dialed_;
  limit(options.dial_timeout - passed.count(), "no handshake in time");
}

void TlsConnection::open_stream() {
  silent_ = false;
  auto stream = TlsStream::make(lane_.tls(), role_, socket_.native_handle(),
                                [this](const auto& key) { return gate_.admits(key); });
  if (!stream) return fail(stream.error());
  stream_ = std::move(*stream);
  handshake();
}

void TlsConnection::handshake() {
  const auto wants = stream_->handshake();
  if (!wants) return fail(wants.error());
  if (*wants != TlsWants::nothing) return wait(*wants, &TlsConnection::handshake);
  stage_ = Stage::greeting;
  const auto self = lane_.options().self;
  std::memcpy(id_out_.data(), &self.site, 4);
  std::memcpy(id_out_.data() + 4, &self.index, 4);
  greet();
}

void TlsConnection::greet() {
  const bool both = role_ == TlsRole::listening ? say_id() && hear_id() : hear_id() && say_id();
  if (both) come_up();
}

// False: waits, or has failed.
bool TlsConnection::say_id() {
  while (id_sent_ < id_out_.size()) {
    const auto sent = stream_->write(std::span(id_out_).subspan(id_sent_), false);
    if (!sent) return fail(sent.error()), false;
    if (sent->wants != TlsWants::nothing) return wait(sent->wants, &TlsConnection::greet), false;
    id_sent_ += sent->bytes;
  }
  return true;
}

bool TlsConnection::hear_id() {
  if (id_got_ == id_in_.size()) return true;
  while (id_got_ < id_in_.size()) {
    const auto got = stream_->read(std::span(id_in_).subspan(id_got_));
    if (!got) return fail(got.error()), false;
    if (got->wants != TlsWants::nothing) return wait(got->wants, &TlsConnection::greet), false;
    id_got_ += got->bytes;
  }
  std::memcpy(&peer_.site, id_in_.data(), 4);
  std::memcpy(&peer_.index, id_in_.data() + 4, 4);
  if (!gate_.admits(shared_from_this(), stream_->peer(), peer_))
    return fail({ErrorCode::mismatch,
                 fmt::format("it calls itself gateway {}/{}", peer_.site, peer_.index)}),
           false;
  return true;
}

void TlsConnection::come_up() {
  stage_ = Stage::up;
  ++limits_;
  deadline_.cancel();
  note_bytes();
  incoming_ = lane_.options().bulk_queue;  // reads once the loop knows of it
  lane_.mailbox().put([self = shared_from_this()] { self->user_.up(self); });
  if (lane_.options().polite) keep_pace();
}

// While there is something to send or to acknowledge: write_on() begins it again.
void TlsConnection::keep_pace() {
  const int descriptor = socket_.native_handle();
  const auto facts = read_tcp_facts(descriptor);
  if (facts) {
    const std::lock_guard lock(path_mutex_);
    polite_.look({.now = std::chrono::steady_clock::now().time_since_epoch().count(),
                  .round_trip = facts->round_trip,
                  .round_trip_min = facts->round_trip_min,
                  .segment_bytes = facts->segment_bytes,
                  .acknowledged_bytes = facts->acknowledged_bytes,
                  .segments_sent = facts->segments_sent,
                  .segments_resent = facts->segments_resent});
    set_pace_max(descriptor, polite_.bytes_per_second());
  }
  keeps_pace_ = facts && (facts->waiting_bytes > 0 || !out_.empty());
  if (!keeps_pace_) return;
  pace_timer_.expires_after(duration(polite_.next_look()));
  pace_timer_.async_wait([self = shared_from_this()](boost::system::error_code error) {
    if (!error && self->stage_ == Stage::up) self->keep_pace();
  });
}

void TlsConnection::pace(std::optional<double> bytes_per_second) {
  if (lane_.options().polite) return;
  const std::lock_guard lock(path_mutex_);
  if (socket_.is_open()) set_pace_max(socket_.native_handle(), bytes_per_second);
}

std::optional<BulkPath> TlsConnection::path() const {
  const std::lock_guard lock(path_mutex_);
  if (!socket_.is_open()) return std::nullopt;
  // The number of a descriptor is read alone: the rest of the socket is the connection's thread's.
  auto facts = read_tcp_facts(const_cast<tcp::socket&>(socket_).native_handle());
  if (!facts) return std::nullopt;
  BulkPath path{.connection = 0,
                .tcp = std::move(*facts),
                .unwritten_bytes = outgoing_bytes_,
                .dialed = role_ == TlsRole::dialing,
                .congestion_control_why = {},
                .polite = std::nullopt};
  path.congestion_control_why = lane_.congestion().why(path.tcp.congestion_control);
  if (lane_.options().polite)
    path.polite = {.bytes_per_second = polite_.bytes_per_second(),
                   .queueing_delay = polite_.queueing_delay(),
                   .target = polite_.target()};
  return path;
}

// ---- Messages in.

void TlsConnection::start_reading() {
  incoming_ = 0;
  asio::post(io_, [self = shared_from_this()] {
    if (self->stage_ != Stage::up || self->reading_) return;
    self->reading_ = true;
    self->read_on();
  });
}

void TlsConnection::read_on() {
  std::size_t moved = 0;
  int reads = 0;
  for (;;) {
    if (message_ == nullptr) {
      for (; header_got_ < header_.size(); ++reads) {
        if (!read_some(std::span(header_).subspan(header_got_), header_got_)) return;
      }
      std::uint32_t size = 0;
      std::memcpy(&size, header_.data(), sizeof size);
      if (size > kBulkMessageBytesMax) {
        lane_.log_violation(peer_, fmt::format("a message of {} bytes", size));
        return fail({ErrorCode::too_large, "violation"});
      }
      message_ = lane_.buffers().take(size);
      message_bytes_ = size;
      message_got_ = 0;
    }
    const auto before = message_got_;
    for (; message_got_ < message_bytes_ && moved + message_got_ - before < kTurnBytes &&
           reads < kTurnReads;
         ++reads)
      if (!read_some(
              {&message_[static_cast<std::ptrdiff_t>(message_got_)], message_bytes_ - message_got_},
              message_got_))
        return;
    moved += message_got_ - before + kFrameHeaderBytes;
    if (message_got_ == message_bytes_) {
      deliver();
      if (!reading_) return;
    }
    if (moved >= kTurnBytes || reads >= kTurnReads) {
      asio::post(io_, [self = shared_from_this()] {
        if (self->stage_ == Stage::up) self->read_on();
      });
      return;
    }
  }
}

// False: nothing there, and it waits; or it has failed.
bool TlsConnection::read_some(std::span<std::byte> into, std::size_t& got) {
  const auto moved = stream_->read(into);
  note_bytes();
  if (!moved) return fail(moved.error()), false;
  if (moved->wants != TlsWants::nothing) {
    watch_silence();
    wait(moved->wants, &TlsConnection::read_on);
    return false;
  }
  got += moved->bytes;
  last_byte_ = std::chrono::steady_clock::now();
  return true;
}

void TlsConnection::deliver() {
  header_got_ = 0;
  const std::span<const std::byte> bytes(message_.get(), message_bytes_);
  const SharedBytes message(std::exchange(message_, nullptr), bytes);
  // Whoever takes the one that filled the queue sets reading going again.
  reading_ = incoming_.fetch_add(1) + 1 < lane_.options().bulk_queue;
  lane_.mailbox().put([self = shared_from_this(), message] {
    self->user_.received(*self, message);
    self->taken();
  });
}

// The loop's thread.
void TlsConnection::taken() {
  if (incoming_.fetch_sub(1) != lane_.options().bulk_queue) return;
  asio::post(io_, [self = shared_from_this()] {
    if (self->stage_ != Stage::up || self->reading_) return;
    self->reading_ = true;
    self->read_on();
  });
}

// Who begins a message goes on with it: a part of one holds memory.
void TlsConnection::watch_silence() {
  if (!within_message() || std::exchange(silence_watched_, true)) return;
  deadline_.expires_at(last_byte_ + duration(lane_.options().bulk_timeout));
  deadline_.async_wait([self = shared_from_this()](boost::system::error_code error) {
    self->silence_watched_ = false;
    if (error || self->stage_ != Stage::up) return;
    const auto silence = std::chrono::steady_clock::now() - self->last_byte_;
    if (self->within_message() && silence >= duration(self->lane_.options().bulk_timeout))
      self->fail({ErrorCode::timeout, "silence within a message"});
    else
      self->watch_silence();
  });
}

// ---- Messages out.

Result<void> TlsConnection::send(WireMessage message) {
  const auto full = [this] { return outgoing_ >= queue_; };
  if (full()) {
    said_busy_ = true;
    // The last one may have left before that was written.
    if (full()) return Error{ErrorCode::busy, "the bulk lane is full"};
    said_busy_ = false;
  }
  ++outgoing_;
  outgoing_bytes_ += kFrameHeaderBytes + message.size();
  asio::post(io_, [self = shared_from_this(), message = std::move(message)]() mutable {
    if (self->stage_ != Stage::up) return;
    self->out_.push_back(std::move(message));
    if (std::exchange(self->writing_, true)) return;
    self->write_on();
    if (self->stage_ == Stage::up && self->lane_.options().polite && !self->keeps_pace_)
      self->keep_pace();
  });
  return {};
}

void TlsConnection::share(std::uint32_t connections) {
  queue_ = std::max(1, lane_.options().bulk_queue / static_cast<int>(std::max(connections, 1u)));
  const std::lock_guard lock(path_mutex_);
  if (socket_.is_open()) lane_.share_unsent(socket_.native_handle(), connections);
}

void TlsConnection::limit_changed() {
  asio::post(io_, [self = shared_from_this()] {
    if (self->stage_ != Stage::up || !self->turn_waits_) return;
    self->turn_timer_.cancel();
    self->turn_bytes_ = 0;
    self->turn_waits_ = false;
    self->write_on();
  });
}

void TlsConnection::write_on() {
  std::size_t moved = 0;
  while (!out_.empty()) {
    const auto frame_bytes = kFrameHeaderBytes + out_.front().size();
    while (frame_sent_ < frame_bytes) {
      if (moved >= kTurnBytes) {
        asio::post(io_, [self = shared_from_this()] {
          if (self->stage_ == Stage::up) self->write_on();
        });
        return;
      }
      if (!take_turn(frame_bytes - frame_sent_)) return;
      const auto sent = write_piece();
      note_bytes();
      if (!sent) return fail(sent.error());
      if (sent->wants != TlsWants::nothing) return wait(sent->wants, &TlsConnection::write_on);
      turn_bytes_ = 0;
      frame_sent_ += sent->bytes;
      outgoing_bytes_ -= sent->bytes;
      moved += sent->bytes;
    }
    frame_sent_ = 0;
    out_.pop_front();
    --outgoing_;
    if (said_busy_.exchange(false))
      lane_.mailbox().put([self = shared_from_this()] { self->user_.writable(*self); });
  }
  writing_ = false;
}

// Of so many bytes that are left, the next piece. False: it waits for its turn at the limit.
bool TlsConnection::take_turn(std::size_t bytes) {
  if (turn_bytes_ > 0) return true;
  const auto piece = lane_.next_piece(bytes);
  turn_bytes_ = piece.bytes;
  const auto wait = piece.leaves - lane_.loop().now();
  if (wait <= 0) return true;
  turn_waits_ = true;
  turn_timer_.expires_after(duration(wait));
  turn_timer_.async_wait(
      [self = shared_from_this(), turn = ++turns_](boost::system::error_code error) {
        if (error || self->stage_ != Stage::up || !self->turn_waits_ || turn != self->turns_)
          return;
        self->turn_waits_ = false;
        self->write_on();
      });
  return false;
}

// A record's worth of the first message. Header and head go with the front of the body, put
// together anew each time, so that the rest is sealed from where it lies.
Result<TlsStream::Moved> TlsConnection::write_piece() {
  const auto& message = out_.front();
  const auto body = message.body.bytes();
  const auto front = kFrameHeaderBytes + message.head.size();
  const auto left = kFrameHeaderBytes + message.size() - frame_sent_;
  const bool more = left > turn_bytes_ || out_.size() > 1;
  if (frame_sent_ >= front) {
    const auto rest = body.subspan(frame_sent_ - front);
    return stream_->write(rest.first(std::min(rest.size(), turn_bytes_)), more);
  }
  std::array<std::byte, security::kTlsRecordBytesMax> record;
  const auto size = static_cast<std::uint32_t>(message.size());
  std::size_t filled = 0, skipped = 0;
  const auto add = [&](std::span<const std::byte> part) {
    const auto skip = std::min(part.size(), frame_sent_ - skipped);
    skipped += skip;
    part = part.subspan(skip).first(std::min(part.size() - skip, turn_bytes_ - filled));
    filled += part.size();
    copy_to(part, record.begin() + static_cast<std::ptrdiff_t>(filled - part.size()));
  };
  add(std::as_bytes(std::span(&size, 1)));
  add(message.head);
  add(body);
  return stream_->write(std::span(record).first(filled), more);
}

// ---- Waiting, and the end.

void TlsConnection::wait(TlsWants wants, Step next) {
  const auto what = wants == TlsWants::read ? tcp::socket::wait_read : tcp::socket::wait_write;
  socket_.async_wait(what, [self = shared_from_this(), next](boost::system::error_code error) {
    if (self->stage_ == Stage::ended) return;
    if (error) return self->fail({ErrorCode::io, error.message()});
    (self.get()->*next)();
  });
}

void TlsConnection::limit(Nanoseconds time, std::string what) {
  deadline_.expires_after(duration(time));
  deadline_.async_wait([self = shared_from_this(), number = ++limits_,
                        what = std::move(what)](boost::system::error_code error) {
    if (error || number != self->limits_ || self->stage_ == Stage::ended) return;
    self->fail({ErrorCode::timeout, what});
  });
}

void TlsConnection::end(ErrorCode code, std::string why) {
  asio::post(io_, [self = shared_from_this(), code, why = std::move(why)]() mutable {
    if (self->stage_ != Stage::ended) self->fail({code, std::move(why)});
  });
}

void TlsConnection::fail(Error why) {
  const bool was_up = stage_ == Stage::up;
  stage_ = Stage::ended;
  gate_.gone(*this, why, was_up);
  ++limits_;
  deadline_.cancel();
  if (stream_ != nullptr) note_bytes();
  stream_.reset();
  // What was not read would make the kernel forget our last word, which may say why.
  char rest[4096];
  for (int i = 0; i < 4 && socket_.is_open(); ++i)
    if (::recv(socket_.native_handle(), rest, sizeof rest, MSG_DONTWAIT) <= 0) break;
  pace_timer_.cancel();
  turn_timer_.cancel();
  {
    const std::lock_guard lock(path_mutex_);
    boost::system::error_code ignored;
    socket_.close(ignored);
  }
  out_.clear();
  message_.reset();
  if (was_up || role_ == TlsRole::dialing)
    lane_.mailbox().put(
        [self = shared_from_this(), why = std::move(why)] { self->user_.ended(*self, why); });
}

void TlsConnection::note_bytes() {
  meter_->sent.store(stream_->bytes_sent(), std::memory_order_relaxed);
  meter_->received.store(stream_->bytes_received(), std::memory_order_relaxed);
}

std::string TlsConnection::address() const {
  boost::system::error_code failed;
  const auto peer = socket_.remote_endpoint(failed);
  return failed ? std::string() : peer.address().to_string();
}

}  // namespace isthmus::inter
