// What we need of libzmq, with lifetimes as objects and errors as Results. Internal to the
// wire (inter/zmq_wire.h), which alone knows what the sockets are for.
//
// A socket belongs to one thread; closing never waits (LINGER 0).
#pragma once

#include <zmq.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/byte_stream.h"
#include "base/result.h"

namespace isthmus::inter {

class ZmqContext {
 public:
  static Result<std::unique_ptr<ZmqContext>> make(int io_threads, int sockets_max);
  ~ZmqContext();  // waits until every socket is closed
  ZmqContext(const ZmqContext&) = delete;
  ZmqContext& operator=(const ZmqContext&) = delete;

  void* get() const { return context_; }

 private:
  explicit ZmqContext(void* context) : context_(context) {}
  void* context_;
};

class ZmqMessage {
 public:
  ZmqMessage() { zmq_msg_init(&message_); }
  // Takes the bytes over, without a copy where that pays.
  explicit ZmqMessage(Bytes bytes);
  explicit ZmqMessage(std::string_view bytes);
  ~ZmqMessage() { zmq_msg_close(&message_); }
  ZmqMessage(ZmqMessage&& other) : ZmqMessage() { zmq_msg_move(&message_, &other.message_); }
  ZmqMessage& operator=(ZmqMessage&& other) {
    if (this != &other) zmq_msg_move(&message_, &other.message_);
    return *this;
  }

  std::span<const std::byte> bytes() const {
    auto* message = const_cast<zmq_msg_t*>(&message_);
    return {static_cast<const std::byte*>(zmq_msg_data(message)), zmq_msg_size(message)};
  }
  std::string_view text() const { return text_of(bytes()); }
  bool more() const { return zmq_msg_more(&message_) != 0; }
  // A property of the connection it came on ("User-Id", "Peer-Address"); "" when there is none.
  std::string property(const char* name) const;
  // Descriptor of the TCP connection it came on; -1 when unknown. libzmq's I/O thread may close it
  // at any time.
  int descriptor() const;
  zmq_msg_t* get() { return &message_; }

 private:
  zmq_msg_t message_;
};

class ZmqSocket {
 public:
  ZmqSocket() = default;
  static Result<ZmqSocket> open(const ZmqContext& context, int type);
  ~ZmqSocket() { close(); }
  ZmqSocket(ZmqSocket&& other) noexcept : socket_(std::exchange(other.socket_, nullptr)) {}
  ZmqSocket& operator=(ZmqSocket&& other) noexcept {
    if (this != &other) {
      close();
      socket_ = std::exchange(other.socket_, nullptr);
    }
    return *this;
  }
  void close();
  explicit operator bool() const { return socket_ != nullptr; }

  Result<void> set(int option, int value);
  Result<void> set(int option, std::span<const std::byte> value);
  Result<void> set(int option, std::string_view value) { return set(option, bytes_of(value)); }
  // Errors: in_use (somebody has the address), invalid_argument (this machine has no such one).
  Result<void> bind(const std::string& endpoint);
  Result<void> connect(const std::string& endpoint);
  // Where bind() has bound it, in numbers: "tcp://127.0.0.1:7000".
  Result<std::string> last_endpoint() const;

  // Readable when events() may have changed: edge-triggered.
  int descriptor() const;
  // ZMQ_POLLIN | ZMQ_POLLOUT, after taking in what other threads signalled.
  int events() const;

  // False: would block (EAGAIN) or the socket's context has ended. Never waits.
  bool receive(ZmqMessage& part);
  // Zero, or zmq's errno: EAGAIN (queue full), EHOSTUNREACH (no such route). The message is kept
  // when not sent. Never waits.
  int send(ZmqMessage& part, bool more = false);

  void* get() const { return socket_; }

 private:
  explicit ZmqSocket(void* socket) : socket_(socket) {}
  void* socket_ = nullptr;
};

struct SocketEvent {
  int event = 0;            // ZMQ_EVENT_…
  std::uint32_t value = 0;  // a descriptor, an errno or a status, as zmq_socket_monitor(3) says
};

// "handshake_failed_auth", …
std::string_view event_name(int event);

// What happens on a socket's connections. Made before bind or connect, closed before the socket.
class SocketMonitor {
 public:
  SocketMonitor() = default;
  static Result<SocketMonitor> make(const ZmqContext& context, ZmqSocket& watched, int events);
  ~SocketMonitor() { close(); }
  SocketMonitor(SocketMonitor&& other) noexcept
      : watched_(std::exchange(other.watched_, nullptr)), socket_(std::move(other.socket_)) {}
  SocketMonitor& operator=(SocketMonitor&& other) noexcept {
    if (this != &other) {
      close();
      watched_ = std::exchange(other.watched_, nullptr);
      socket_ = std::move(other.socket_);
    }
    return *this;
  }

  std::optional<SocketEvent> next();
  ZmqSocket& socket() { return socket_; }
  void close();

 private:
  void* watched_ = nullptr;
  ZmqSocket socket_;
};

// What the last failed call of libzmq on this thread said.
Error zmq_error(std::string sentence);

}  // namespace isthmus::inter
