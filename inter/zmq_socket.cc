#include "inter/zmq_socket.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>

#include "base/assert.h"

namespace isthmus::inter {

namespace {

// Below this a copy is cheaper than the allocation that hands memory over.
constexpr std::size_t kCopyBytesMax = 512;

// Room for what a flood of handshakes reports while the loop is busy; beyond it, I/O threads wait.
constexpr int kMonitorEventsMax = 10'000;

}  // namespace

Error zmq_error(std::string sentence) {
  const int number = zmq_errno();
  const bool not_ours = number == EADDRNOTAVAIL || number == ENODEV;  // no address of this machine
  const auto code = number == EADDRINUSE           ? ErrorCode::in_use
                    : not_ours || number == EINVAL ? ErrorCode::invalid_argument
                    : number == EACCES             ? ErrorCode::permission
                                                   : ErrorCode::io;
  return {code, fmt::format("{}: {}", sentence, zmq_strerror(number))};
}

Result<std::unique_ptr<ZmqContext>> ZmqContext::make(int io_threads, int sockets_max) {
  void* context = zmq_ctx_new();
  if (context == nullptr) return zmq_error("no ZeroMQ context");
  std::unique_ptr<ZmqContext> made(new ZmqContext(context));
  if (zmq_ctx_set(context, ZMQ_IO_THREADS, io_threads) != 0 ||
      zmq_ctx_set(context, ZMQ_MAX_SOCKETS, sockets_max) != 0)
    return zmq_error("ZeroMQ context options");
  return made;
}

ZmqContext::~ZmqContext() {
  while (zmq_ctx_term(context_) != 0 && zmq_errno() == EINTR) {
  }
}

ZmqMessage::ZmqMessage(Bytes bytes) {
  if (bytes.size() <= kCopyBytesMax) {
    ISTHMUS_ASSERT(zmq_msg_init_size(&message_, bytes.size()) == 0);
    if (!bytes.empty()) std::memcpy(zmq_msg_data(&message_), bytes.data(), bytes.size());
    return;
  }
  auto* owned = new Bytes(std::move(bytes));
  const auto free_bytes = [](void*, void* hint) { delete static_cast<Bytes*>(hint); };
  ISTHMUS_ASSERT(zmq_msg_init_data(&message_, owned->data(), owned->size(), free_bytes, owned) ==
                 0);
}

ZmqMessage::ZmqMessage(std::string_view bytes) {
  ISTHMUS_ASSERT(zmq_msg_init_size(&message_, bytes.size()) == 0);
  if (!bytes.empty()) std::memcpy(zmq_msg_data(&message_), bytes.data(), bytes.size());
}

std::string ZmqMessage::property(const char* name) const {
  const char* value = zmq_msg_gets(&message_, name);
  return value == nullptr ? std::string() : std::string(value);
}

int ZmqMessage::descriptor() const { return zmq_msg_get(&message_, ZMQ_SRCFD); }

Result<ZmqSocket> ZmqSocket::open(const ZmqContext& context, int type) {
  void* raw = zmq_socket(context.get(), type);
  if (raw == nullptr) return zmq_error("no ZeroMQ socket");
  ZmqSocket socket(raw);
  ISTHMUS_CHECK(socket.set(ZMQ_LINGER, 0));
  return socket;
}

void ZmqSocket::close() {
  if (socket_ != nullptr) zmq_close(std::exchange(socket_, nullptr));
}

Result<void> ZmqSocket::set(int option, int value) {
  if (zmq_setsockopt(socket_, option, &value, sizeof value) != 0)
    return zmq_error(fmt::format("ZeroMQ option {} = {}", option, value));
  return {};
}

Result<void> ZmqSocket::set(int option, std::span<const std::byte> value) {
  if (zmq_setsockopt(socket_, option, value.data(), value.size()) != 0)
    return zmq_error(fmt::format("ZeroMQ option {}", option));  // the value may be a secret
  return {};
}

Result<void> ZmqSocket::bind(const std::string& endpoint) {
  if (zmq_bind(socket_, endpoint.c_str()) != 0)
    return zmq_error(fmt::format("cannot listen on {}", endpoint));
  return {};
}

Result<void> ZmqSocket::connect(const std::string& endpoint) {
  if (zmq_connect(socket_, endpoint.c_str()) != 0)
    return zmq_error(fmt::format("cannot dial {}", endpoint));
  return {};
}

Result<std::string> ZmqSocket::last_endpoint() const {
  char endpoint[256];
  std::size_t size = sizeof endpoint;
  if (zmq_getsockopt(socket_, ZMQ_LAST_ENDPOINT, endpoint, &size) != 0)
    return zmq_error("ZeroMQ endpoint");
  return std::string(endpoint);
}

int ZmqSocket::descriptor() const {
  int descriptor = -1;
  std::size_t size = sizeof descriptor;
  ISTHMUS_ASSERT(zmq_getsockopt(socket_, ZMQ_FD, &descriptor, &size) == 0);
  return descriptor;
}

int ZmqSocket::events() const {
  int events = 0;
  std::size_t size = sizeof events;
  return zmq_getsockopt(socket_, ZMQ_EVENTS, &events, &size) == 0 ? events : 0;
}

bool ZmqSocket::receive(ZmqMessage& part) {
  while (zmq_msg_recv(part.get(), socket_, ZMQ_DONTWAIT) < 0)
    if (zmq_errno() != EINTR) return false;
  return true;
}

int ZmqSocket::send(ZmqMessage& part, bool more) {
  while (zmq_msg_send(part.get(), socket_, ZMQ_DONTWAIT | (more ? ZMQ_SNDMORE : 0)) < 0)
    if (zmq_errno() != EINTR) return zmq_errno();
  return 0;
}

std::string_view event_name(int event) {
  switch (event) {
    case ZMQ_EVENT_CONNECTED:
      return "connected";
    case ZMQ_EVENT_ACCEPT_FAILED:
      return "accept_failed";
    case ZMQ_EVENT_CLOSED:
      return "no_connection";
    case ZMQ_EVENT_DISCONNECTED:
      return "disconnected";
    case ZMQ_EVENT_HANDSHAKE_SUCCEEDED:
      return "handshake_succeeded";
    case ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL:
      return "handshake_failed";
    case ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL:
      return "handshake_failed_protocol";
    case ZMQ_EVENT_HANDSHAKE_FAILED_AUTH:
      return "handshake_failed_auth";
  }
  return "other";
}

Result<SocketMonitor> SocketMonitor::make(const ZmqContext& context, ZmqSocket& watched,
                                          int events) {
  // Names of inproc endpoints are the context's; the counter makes them unique in the process.
  static std::atomic<std::uint64_t> last{0};
  const auto endpoint = fmt::format("inproc://isthmus.monitor.{}", ++last);
  // Its own end would be told to a reader that is not there if what follows fails.
  events &= ~ZMQ_EVENT_MONITOR_STOPPED;
  if (zmq_socket_monitor(watched.get(), endpoint.c_str(), events) != 0)
    return zmq_error("ZeroMQ monitor");
  SocketMonitor monitor;
  monitor.watched_ = watched.get();
  ISTHMUS_TRY(monitor.socket_, ZmqSocket::open(context, ZMQ_PAIR));
  ISTHMUS_CHECK(monitor.socket_.set(ZMQ_RCVHWM, kMonitorEventsMax));
  ISTHMUS_CHECK(monitor.socket_.connect(endpoint));
  return monitor;
}

// libzmq's I/O thread waits for whoever reads its events, and with it every connection of the
// context: for ever, once nobody does (libzmq issue 3575). It holds a lock meanwhile that ending
// the events takes, too, so they are read first.
void SocketMonitor::close() {
  while (next()) {
  }
  if (watched_ != nullptr) zmq_socket_monitor(std::exchange(watched_, nullptr), nullptr, 0);
  socket_.close();
}

std::optional<SocketEvent> SocketMonitor::next() {
  ZmqMessage head;
  if (!socket_ || !socket_.receive(head)) return std::nullopt;
  for (ZmqMessage rest; head.more() && socket_.receive(rest);)
    if (!rest.more()) break;
  ByteReader in(head.bytes());
  SocketEvent event;
  event.event = in.get<std::uint16_t>();
  event.value = in.get<std::uint32_t>();
  return event;
}

}  // namespace isthmus::inter

// Found before the C library's, by libzmq too, which asks with it how connecting went, and ends the
// process for ENOPROTOOPT (4.3.4, tcp_connecter.cpp): what Linux makes of ICMP's "protocol
// unreachable", from a firewall or from anybody on the path.
extern "C" int getsockopt(int descriptor, int level, int option, void* value,
                          socklen_t* size) noexcept {
  const auto result = ::syscall(SYS_getsockopt, descriptor, level, option, value, size);
  int error = 0;
  if (result == 0 && level == SOL_SOCKET && option == SO_ERROR && *size == sizeof error) {
    std::memcpy(&error, value, sizeof error);
    if (error == ENOPROTOOPT) error = EHOSTUNREACH;
    std::memcpy(value, &error, sizeof error);
  }
  return static_cast<int>(result);
}
