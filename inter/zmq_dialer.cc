#include "inter/zmq_dialer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>

#include "base/assert.h"
#include "inter/zap_handler.h"

namespace isthmus::inter {

namespace {

constexpr int kDialerEvents = ZMQ_EVENT_CONNECTED | ZMQ_EVENT_CLOSED | ZMQ_EVENT_DISCONNECTED |
                              ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL |
                              ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH;

}  // namespace

ZmqDialer::ZmqDialer(Loop& loop, EventLog& log, const ZmqContext& context,
                     const ZmqWireOptions& options, LaneEvents& events,
                     CongestionControl& congestion, UnreachableLog& unreachable, HostNames& names,
                     const ZmqPeer& peer, TcpAddress address)
    : loop_(loop),
      log_(log),
      context_(context),
      options_(options),
      events_(events),
      congestion_(congestion),
      unreachable_(unreachable),
      peer_(peer),
      address_(std::move(address)),
      delay_(options.redial_delay_min, options.redial_delay_max),
      look_up_(loop, names, address_.host),
      tasks_(loop),
      looks_(loop) {}

ZmqDialer::~ZmqDialer() { close_socket(); }

void ZmqDialer::start() {
  tasks_.post([this] { dial(); });
}

void ZmqDialer::dial() {
  delay_.looking_up(loop_.now());
  tasks_.start_timer(options_.dial_timeout, [this] { end("no handshake in time"); });
  // libzmq would look names up on its I/O thread, and hold up every connection meanwhile.
  look_up_.next([this](Result<std::string> host) {
    if (host)
      connect(*host);
    else
      end(host.error().message);
  });
}

void ZmqDialer::connect(const std::string& numeric_host) {
  if (auto opened = open_socket({numeric_host, address_.port}); !opened) end(opened.error().text());
}

Result<void> ZmqDialer::open_socket(const TcpAddress& address) {
  ISTHMUS_TRY(socket_, ZmqSocket::open(context_, ZMQ_DEALER));
  ISTHMUS_CHECK(set_control_options(socket_, options_));
  ISTHMUS_CHECK(use_curve_client(socket_, peer_.key, options_.identity->public_part().curve_key,
                                 options_.identity->curve_secret()));
  ISTHMUS_CHECK(socket_.set(ZMQ_IPV6, address.is_ipv6() ? 1 : 0));
  ISTHMUS_CHECK(socket_.set(ZMQ_RECONNECT_IVL, -1));
  const auto patience = delay_.dialing(loop_.now(), options_.connect_timeout);
  ISTHMUS_CHECK(socket_.set(ZMQ_CONNECT_TIMEOUT, static_cast<int>(patience / kMillisecond)));
  ISTHMUS_TRY(monitor_, SocketMonitor::make(context_, socket_, kDialerEvents));
  monitor_watch_ =
      std::make_unique<SocketWatch>(loop_, monitor_.socket(), [this] { take_events(); });
  socket_watch_ = std::make_unique<SocketWatch>(loop_, socket_, [this] { take_messages(); });
  return socket_.connect(address.endpoint());
}

void ZmqDialer::take_events() {
  while (const auto event = monitor_.next()) {
    if (event->event == ZMQ_EVENT_CONNECTED) {
      delay_.connected(loop_.now());
      // libzmq's I/O thread may close it at any time.
      tcp_ = LaneSocket(static_cast<int>(event->value));
      congestion_.ask(static_cast<int>(event->value));
      congestion_.note(static_cast<int>(event->value));
    } else if (event->event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED) {
      if (connection_ == 0) handshake_succeeded();
    } else {
      // What arrived before the end is still delivered, as far as a turn goes.
      if (connection_ != 0) take_messages();
      if (socket_) end(event_name(event->event));
      return;
    }
  }
}

void ZmqDialer::handshake_succeeded() {
  delay_.up(loop_.now());
  look_up_.reached();
  unreachable_.up(Lane::control, loop_.now());
  pulse_.heard(loop_.now());
  beat();  // the greeting
  // Not at once: what a late loop would find ends the connection, which is not one yet.
  looks_.start_timer(UnfinishedMessage::kLookEvery, [this] { look(); });
  connection_ = events_.next_connection();
  meter_ = std::make_shared<LaneMeter>();
  meter_->sent = kZmqHandshakeBytesDialing;
  meter_->received = kZmqHandshakeBytesListening;
  events_.opened(connection_, peer_.id, Lane::control, *this, meter_);
}

void ZmqDialer::beat() {
  const auto now = loop_.now();
  const auto patience = pulse_.patience(now, tcp_, options_, events_, peer_.id);
  if (patience == 0) return end("silence");
  // Where a message waits for room, that is a sign of life as good.
  if (!overflow_.full()) LanePulse::send(socket_);
  if (socket_watch_) socket_watch_->kick();
  const auto interval = options_.heartbeat_interval;
  tasks_.start_timer(std::min(next_beat(now, interval) - now, patience), [this] { beat(); });
}

void ZmqDialer::look() {
  if (unfinished_.is_too_long(tcp_)) return end_violating("a message without end");
  looks_.start_timer(UnfinishedMessage::kLookEvery, [this] { look(); });
}

bool ZmqDialer::is_heartbeat(const ZmqMessage& first) {
  ZmqMessage second;
  return first.more() && first.bytes().empty() && socket_.receive(second) && !second.more() &&
         second.bytes().empty();
}

void ZmqDialer::take_messages() {
  ZmqMessage part;
  for (int taken = 0; taken < Inbox::kTakenMax; ++taken) {
    if (dropped_ || !socket_ || !socket_.receive(part)) break;
    if (connection_ == 0) take_events();  // the handshake's end was told before its first message
    if (connection_ == 0 || dropped_ || !socket_) break;
    pulse_.heard(loop_.now());
    unfinished_.ended();
    if (is_heartbeat(part)) continue;
    if (part.more() || part.bytes().size() > kControlMessageBytesMax)
      return end_violating("a message that no gateway sends");
    meter_->received += zmq_wire_bytes(part.bytes().size());
    if (!inbox_.put(connection_, std::move(part)))
      return end_violating("more at once than a gateway sends");
  }
  if (!dropped_) inbox_.give_to(events_);
  flush_overflow();
  if (!inbox_.empty() && socket_watch_) socket_watch_->kick();
}

void ZmqDialer::end_violating(std::string_view what) {
  if (const auto unlogged = violations_.due(loop_.now()))
    log_.alarm(
        "wire_violation", {peer_.name},
        {{"lane", to_string(Lane::control)}, {"what", what}, {"more_since_last", *unlogged}});
  end("violation");
}

void ZmqDialer::flush_overflow() {
  if (connection_ == 0 || dropped_ || !overflow_.full()) return;
  if (socket_.send(overflow_.message()) != 0) return;
  overflow_.clear();
  if (overflow_.take_refused()) events_.writable(connection_);
}

Result<void> ZmqDialer::send(ConnectionId connection, WireMessage message) {
  if (connection == 0 || connection != connection_ || dropped_)
    return Error{ErrorCode::unavailable, fmt::format("no such connection to {}", peer_.name)};
  if (overflow_.full()) {
    overflow_.refuse();
    return Error{ErrorCode::busy, fmt::format("the control lane to {} is full", peer_.name)};
  }
  meter_->sent += zmq_wire_bytes(message.size());
  ZmqMessage part(std::move(message).whole());
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
  const auto ended = std::exchange(connection_, 0);
  close_socket();
  if (ended == 0)
    unreachable_.failed(Lane::control, loop_.now(), address_.endpoint(), why);
  else
    unreachable_.down(Lane::control, loop_.now());
  tasks_.start_timer(delay_.ended(loop_.now(), ended != 0), [this] { dial(); });
  if (ended != 0) events_.closed(ended, why);
}

void ZmqDialer::close_socket() {
  tasks_.stop_timer();
  looks_.stop_timer();
  look_up_.give_up();
  socket_watch_.reset();
  monitor_watch_.reset();
  monitor_.close();
  socket_.close();
  overflow_ = {};
  inbox_ = {};
  dropped_ = false;
  tcp_ = {};
  unfinished_ = {};
}

}  // namespace isthmus::inter
