#include "inter/zmq_lane.h"

namespace isthmus::inter {

namespace {

// CURVE's box around a message, which libzmq counts against its limit.
constexpr std::size_t kBoxBytes = 33;

int milliseconds(Nanoseconds time) { return static_cast<int>(time / kMillisecond); }

}  // namespace

Result<void> set_control_options(ZmqSocket& socket, const ZmqWireOptions& options) {
  const auto bytes_max = static_cast<std::int64_t>(kControlMessageBytesMax + kBoxBytes);
  ISTHMUS_CHECK(socket.set(ZMQ_MAXMSGSIZE, std::as_bytes(std::span(&bytes_max, 1))));
  ISTHMUS_CHECK(socket.set(ZMQ_SNDHWM, options.control_queue));
  ISTHMUS_CHECK(socket.set(ZMQ_RCVHWM, options.control_queue));
  ISTHMUS_CHECK(socket.set(ZMQ_HANDSHAKE_IVL, milliseconds(options.handshake_timeout)));
  ISTHMUS_CHECK(socket.set(ZMQ_HEARTBEAT_IVL, milliseconds(options.heartbeat_interval)));
  ISTHMUS_CHECK(socket.set(ZMQ_HEARTBEAT_TIMEOUT, milliseconds(options.control_timeout)));
  // TCP_USER_TIMEOUT; the heartbeats are the bytes that an idle connection has to get through.
  // SNDBUF and RCVBUF are never set: that would switch off TCP's own tuning.
  return socket.set(ZMQ_TCP_MAXRT, milliseconds(options.stall_timeout));
}

}  // namespace isthmus::inter
