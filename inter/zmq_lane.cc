#include "inter/zmq_lane.h"

#include <sys/stat.h>

#include <algorithm>

#include "inter/tcp_facts.h"

namespace isthmus::inter {

namespace {

// CURVE's box around a message, which libzmq counts against its limit.
constexpr std::size_t kBoxBytes = 33;

int milliseconds(Nanoseconds time) { return static_cast<int>(time / kMillisecond); }

std::optional<ino_t> inode_of(int descriptor) {
  struct stat status {};
  if (descriptor < 0 || ::fstat(descriptor, &status) != 0 || !S_ISSOCK(status.st_mode))
    return std::nullopt;
  return status.st_ino;
}

}  // namespace

LaneSocket::LaneSocket(int descriptor) {
  const auto inode = inode_of(descriptor);
  if (!inode) return;
  descriptor_ = descriptor;
  inode_ = *inode;
}

bool LaneSocket::is_open() const { return descriptor_ >= 0 && inode_of(descriptor_) == inode_; }

Nanoseconds LanePulse::patience(Nanoseconds now, const LaneSocket& socket,
                                const ZmqWireOptions& options, const LaneEvents& events,
                                GatewayId peer) {
  const auto bulk_bytes = events.bulk_bytes_received(peer);
  const bool bulk_comes = bulk_bytes - bulk_bytes_ >= kBulkBytesMin;
  if (bulk_comes) bulk_came_ = now;
  if (bulk_comes || now - bulk_since_ >= options.control_timeout) {
    bulk_since_ = now;
    bulk_bytes_ = bulk_bytes;
  }
  auto silence = now - heard_;
  const auto facts = socket.is_open() ? read_tcp_facts(socket.descriptor()) : std::nullopt;
  if (facts && facts->silence) silence = std::min(silence, *facts->silence);
  auto left = options.control_timeout - silence;
  // Behind a lost packet what comes counts late, and tells by its time alone.
  if (left <= 0 && bulk_came_ && now - *bulk_came_ < options.control_timeout_beside_bulk)
    if (const auto beside = events.bulk_silence(peer))
      left = std::min(options.control_timeout - *beside,
                      options.control_timeout_beside_bulk - silence);
  return std::max<Nanoseconds>(left, 0);
}

int LanePulse::send(ZmqSocket& socket, ZmqMessage* routing_id) {
  if (routing_id != nullptr)
    if (const int failed = socket.send(*routing_id, true)) return failed;
  ZmqMessage parts[2];
  const int failed = socket.send(parts[0], true);
  // After its first part a message is always taken.
  if (failed == 0) socket.send(parts[1]);
  return failed;
}

bool UnfinishedMessage::is_too_long(const LaneSocket& socket) {
  const auto bytes = socket.is_open() ? tcp_bytes_received(socket.descriptor()) : std::nullopt;
  if (!bytes) return false;
  if (std::exchange(ended_, false)) before_ = *bytes;
  bytes_ = *bytes - before_;
  return bytes_ > kBytesMax;
}

bool Inbox::put(ConnectionId connection, ZmqMessage message) {
  auto& bytes = bytes_[connection];
  bytes += cost(message);
  messages_.push_back({connection, std::move(message)});
  return bytes <= kBytesMax;
}

void Inbox::give_to(LaneEvents& events) {
  for (int given = 0; given < kGivenMax && !messages_.empty();) {
    auto [connection, message] = std::move(messages_.front());
    messages_.pop_front();
    const auto bytes = bytes_.find(connection);
    if (bytes == bytes_.end()) continue;
    bytes->second -= cost(message);
    ++given;
    const auto shared = std::make_shared<ZmqMessage>(std::move(message));
    events.received(connection, {shared, shared->bytes()});
  }
}

void Inbox::forget(ConnectionId connection) { bytes_.erase(connection); }

Result<void> set_control_options(ZmqSocket& socket, const ZmqWireOptions& options) {
  const auto bytes_max = static_cast<std::int64_t>(kControlMessageBytesMax + kBoxBytes);
  ISTHMUS_CHECK(socket.set(ZMQ_MAXMSGSIZE, std::as_bytes(std::span(&bytes_max, 1))));
  ISTHMUS_CHECK(socket.set(ZMQ_SNDHWM, options.control_queue));
  ISTHMUS_CHECK(socket.set(ZMQ_RCVHWM, 0));  // Inbox says why
  ISTHMUS_CHECK(socket.set(ZMQ_HANDSHAKE_IVL, milliseconds(options.handshake_timeout)));
  // TCP_USER_TIMEOUT; the heartbeats are the bytes that an idle connection has to get through.
  // SNDBUF and RCVBUF are never set: that would switch off TCP's own tuning.
  return socket.set(ZMQ_TCP_MAXRT, milliseconds(options.control_timeout_beside_bulk));
}

}  // namespace isthmus::inter
