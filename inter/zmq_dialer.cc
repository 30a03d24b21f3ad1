#include "inter/zmq_dialer.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/ip/address.hpp>
#include <cerrno>

#include "base/assert.h"
#include "inter/zap_handler.h"

namespace isthmus::inter {

namespace {

constexpr int kWatchedEvents =
    ZMQ_EVENT_CONNECTED | ZMQ_EVENT_CLOSED | ZMQ_EVENT_DISCONNECTED |
    ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL |
    ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH;

// An attempt that took this long met silence rather than a refusal.
constexpr Nanoseconds kSilence = kSecond;
// A connection that lived this long was a good one: the next is dialed without delay.
constexpr Nanoseconds kGoodConnection = 5 * kSecond;

}  // namespace

ZmqDialer::ZmqDialer(Loop& loop, EventLog& log, const ZmqContext& context,
                     const ZmqWireOptions& options, LaneEvents& events, const ZmqPeer& peer,
                     Lane lane, TcpAddress address)
    : loop_(loop),
      log_(log),
      context_(context),
      options_(options),
      events_(events),
      peer_(peer),
      lane_(lane),
      address_(std::move(address)),
      redial_delay_(options.redial_delay_min),
      resolver_(loop.io()),
      tasks_(loop) {}

ZmqDialer::~ZmqDialer() { close_socket(); }

void ZmqDialer::start() {
  redial_delay_ = options_.redial_delay_min;
  tasks_.post([this] { dial(); });
}

void ZmqDialer::dial() {
  dialed_at_ = loop_.now();
  ++attempts_;
  tasks_.start_timer(options_.dial_timeout, [this] { end("no handshake in time"); });
  boost::system::error_code no_literal;
  boost::asio::ip::make_address(address_.host, no_literal);
  if (!no_literal) return connect(address_.host);
  // libzmq would look names up on its I/O thread, and hold up every connection meanwhile.
  resolver_.async_resolve(
      address_.host, "",
      tasks_.guarded(
          [this, attempt = attempts_](boost::system::error_code error, const auto& addresses) {
            if (attempt != attempts_) return;
            if (error || addresses.empty())
              return end(fmt::format("no address for {}: {}", address_.host, error.message()));
            // Another one each time, should the first not be reachable from here.
            auto chosen = addresses.begin();
            std::advance(chosen, (attempts_ - 1) % addresses.size());
            connect(chosen->endpoint().address().to_string());
          }));
}

void ZmqDialer::connect(const std::string& numeric_host) {
  if (auto opened = open_socket({numeric_host, address_.port}); !opened) end(opened.error().text());
}

Result<void> ZmqDialer::open_socket(const TcpAddress& address) {
  ISTHMUS_TRY(socket_, ZmqSocket::open(context_, ZMQ_DEALER));
  ISTHMUS_CHECK(set_lane_options(socket_, lane_, options_));
  ISTHMUS_CHECK(use_curve_client(socket_, peer_.key, options_.public_key, options_.secret_key));
  ISTHMUS_CHECK(socket_.set(ZMQ_IPV6, address.is_ipv6() ? 1 : 0));
  ISTHMUS_CHECK(socket_.set(ZMQ_RECONNECT_IVL, -1));
  ISTHMUS_CHECK(
      socket_.set(ZMQ_CONNECT_TIMEOUT, static_cast<int>(options_.connect_timeout / kMillisecond)));
  ISTHMUS_TRY(monitor_, SocketMonitor::make(context_, socket_, kWatchedEvents));
  monitor_watch_ =
      std::make_unique<SocketWatch>(loop_, monitor_.socket(), [this] { take_events(); });
  socket_watch_ = std::make_unique<SocketWatch>(loop_, socket_, [this] { take_messages(); });
  return socket_.connect(address.endpoint());
}

void ZmqDialer::take_events() {
  while (const auto event = monitor_.next()) {
    if (event->event == ZMQ_EVENT_CONNECTED) {
      events_.connected(static_cast<int>(event->value));
    } else if (event->event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED) {
      if (connection_ == 0) handshake_succeeded();
    } else {
      // What arrived before the end is still delivered; the queue is short.
      if (connection_ != 0) take_messages();
      if (socket_) end(event_name(event->event));
      return;
    }
  }
}

void ZmqDialer::handshake_succeeded() {
  tasks_.stop_timer();
  up_at_ = loop_.now();
  logged_failure_.clear();
  ZmqMessage hello[2];
  if (socket_.send(hello[0], true) == 0) socket_.send(hello[1]);
  if (socket_watch_) socket_watch_->kick();
  connection_ = events_.next_connection();
  events_.opened(connection_, peer_.id, lane_, *this);
}

void ZmqDialer::take_messages() {
  ZmqMessage part;
  for (int taken = 0; taken < turn_messages_max(lane_); ++taken) {
    if (dropped_ || !socket_ || !socket_.receive(part)) break;
    if (connection_ == 0) take_events();  // the handshake's end was told before its first message
    if (connection_ == 0 || dropped_ || !socket_) break;
    if (part.more() || part.bytes().size() > message_bytes_max(lane_)) {
      log_.alarm("wire_violation", {peer_.name},
                 {{"lane", to_string(lane_)}, {"what", "a message that no gateway sends"}});
      return end("violation");
    }
    events_.received(connection_, part.bytes());
  }
  flush_overflow();
}

void ZmqDialer::flush_overflow() {
  if (connection_ == 0 || dropped_ || !overflow_.full()) return;
  if (socket_.send(overflow_.message()) != 0) return;
  overflow_.clear();
  if (overflow_.take_refused()) events_.writable(connection_);
}

Result<void> ZmqDialer::send(ConnectionId connection, Bytes message) {
  if (connection == 0 || connection != connection_ || dropped_)
    return Error{ErrorCode::unavailable, fmt::format("no such connection to {}", peer_.name)};
  if (overflow_.full()) {
    overflow_.refuse();
    return Error{ErrorCode::busy,
                 fmt::format("the {} lane to {} is full", to_string(lane_), peer_.name)};
  }
  ZmqMessage part(std::move(message));
  if (socket_.send(part) != 0) overflow_.put(std::move(part));
  socket_watch_->kick();
  return {};
}

void ZmqDialer::drop(ConnectionId connection, std::string_view reason) {
  if (connection == 0 || connection != connection_ || dropped_) return;
  dropped_ = true;
  tasks_.post([this, connection, why = std::string(reason)] {
    if (connection == connection_) end(why);
  });
}

void ZmqDialer::end(std::string_view reason) {
  const std::string why(reason);
  const auto now = loop_.now();
  const bool was_good = connection_ != 0 && now - up_at_ >= kGoodConnection;
  const bool silence = connection_ == 0 && now - dialed_at_ >= kSilence;
  const auto ended = std::exchange(connection_, 0);
  close_socket();
  if (ended == 0 && why != logged_failure_) {
    log_.warning("wire_unreachable", {peer_.name},
                 {{"lane", to_string(lane_)}, {"address", address_.endpoint()}, {"reason", why}});
    logged_failure_ = why;
  }
  if (was_good) redial_delay_ = options_.redial_delay_min;
  tasks_.start_timer(silence ? options_.redial_delay_min : redial_delay_, [this] { dial(); });
  if (!silence) redial_delay_ = std::min(2 * redial_delay_, options_.redial_delay_max);
  if (ended != 0) events_.closed(ended, why);
}

void ZmqDialer::close_socket() {
  tasks_.stop_timer();
  resolver_.cancel();
  socket_watch_.reset();
  monitor_watch_.reset();
  monitor_.close();
  socket_.close();
  overflow_ = {};
  dropped_ = false;
}

}  // namespace isthmus::inter
