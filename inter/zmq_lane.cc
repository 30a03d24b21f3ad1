#include "inter/zmq_lane.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

namespace isthmus::inter {

namespace {

// CURVE's box around a message, which libzmq counts against its limit.
constexpr std::size_t kBoxBytes = 33;

int milliseconds(Nanoseconds time) { return static_cast<int>(time / kMillisecond); }

}  // namespace

Result<void> set_lane_options(ZmqSocket& socket, Lane lane, const ZmqWireOptions& options) {
  const auto bytes_max = static_cast<std::int64_t>(message_bytes_max(lane) + kBoxBytes);
  ISTHMUS_CHECK(socket.set(ZMQ_MAXMSGSIZE, std::as_bytes(std::span(&bytes_max, 1))));
  const int queue = lane == Lane::control ? options.control_queue : options.bulk_queue;
  ISTHMUS_CHECK(socket.set(ZMQ_SNDHWM, queue));
  ISTHMUS_CHECK(socket.set(ZMQ_RCVHWM, queue));
  ISTHMUS_CHECK(socket.set(ZMQ_HANDSHAKE_IVL, milliseconds(options.handshake_timeout)));
  ISTHMUS_CHECK(socket.set(ZMQ_HEARTBEAT_IVL, milliseconds(options.heartbeat_interval)));
  ISTHMUS_CHECK(socket.set(
      ZMQ_HEARTBEAT_TIMEOUT,
      milliseconds(lane == Lane::control ? options.control_timeout : options.bulk_timeout)));
  // TCP_USER_TIMEOUT; the heartbeats are the bytes that an idle connection has to get through.
  // SNDBUF and RCVBUF are never set: that would switch off TCP's own tuning.
  return socket.set(ZMQ_TCP_MAXRT, milliseconds(options.stall_timeout));
}

bool set_congestion_control(int descriptor, const std::string& name) {
  return ::setsockopt(descriptor, IPPROTO_TCP, TCP_CONGESTION, name.data(),
                      static_cast<socklen_t>(name.size())) == 0;
}

}  // namespace isthmus::inter
