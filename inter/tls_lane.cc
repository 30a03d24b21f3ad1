#include "inter/tls_lane.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/ip/address.hpp>

namespace isthmus::inter {

namespace {

// Chunks wait with their sender, who may still choose others, rather than in the kernel: it takes
// no more than it can send soon.
constexpr int kUnsentBytesMax = 1 << 20;
constexpr int kUnsentBytesMin = 1 << 16;  // of one: less would leave gaps
// Below a limit, what the kernel holds while the line stands still leaves at once afterwards.
constexpr double kUnsentSeconds = 0.05;
constexpr int kUnsentBytesLimited = 1 << 14;
// What leaves later than its place, as timers end late, makes the next one no later.
constexpr Nanoseconds kTimersLate = 2 * kMillisecond;

// Without any of these a connection is slower, or its end is noticed later.
void set(int descriptor, int level, int option, int value) {
  (void)::setsockopt(descriptor, level, option, &value, sizeof value);
}

}  // namespace

Result<std::unique_ptr<TlsLane>> TlsLane::make(Loop& loop, EventLog& log,
                                               const ZmqWireOptions& options,
                                               CongestionControl& congestion) {
  ISTHMUS_TRY(auto tls, security::TlsContext::make(options.identity->identity_seed(),
                                                   options.bulk_key_bytes_max));
  ISTHMUS_TRY(auto mailbox, LoopMailbox::make(loop));
  std::unique_ptr<TlsLane> lane(
      new TlsLane(loop, log, options, congestion, std::move(tls), std::move(mailbox)));
  for (int i = 0; i < std::max(options.io_threads, 1); ++i) {
    auto& thread = *lane->threads_.emplace_back(std::make_unique<Thread>());
    thread.thread = std::thread([&io = thread.io] { io.run(); });
  }
  return lane;
}

void TlsLane::stop() {
  for (auto& thread : threads_) thread->io.stop();
  for (auto& thread : threads_)
    if (thread->thread.joinable()) thread->thread.join();
  mailbox_.reset();
}

boost::asio::io_context& TlsLane::next_thread() {
  return threads_[next_thread_++ % threads_.size()]->io;
}

void TlsLane::set_up_unconnected(int descriptor) {
  (void)::fcntl(descriptor, F_SETFD, FD_CLOEXEC);
  congestion_.ask(descriptor);
}

void TlsLane::set_up_connected(int descriptor) {
  const auto seconds = [](Nanoseconds time) {
    return static_cast<int>(std::max<Nanoseconds>(time / kSecond, 1));
  };
  (void)::fcntl(descriptor, F_SETFD, FD_CLOEXEC);
  congestion_.note(descriptor);
  set(descriptor, IPPROTO_TCP, TCP_NODELAY, 1);
  share_unsent(descriptor, 1);
  // SNDBUF and RCVBUF are never set: that would switch off TCP's own tuning.
  set(descriptor, IPPROTO_TCP, TCP_USER_TIMEOUT,
      static_cast<int>(options_.stall_timeout / kMillisecond));
  // An idle connection is asked for a sign of life. TCP_USER_TIMEOUT decides here too when it is
  // dead: so early and so often that one probe or answer may be lost.
  set(descriptor, SOL_SOCKET, SO_KEEPALIVE, 1);
  const auto dead = std::min(options_.stall_timeout, options_.bulk_timeout);
  set(descriptor, IPPROTO_TCP, TCP_KEEPIDLE, seconds(dead / 4));
  set(descriptor, IPPROTO_TCP, TCP_KEEPINTVL, seconds(dead / 8));
  set(descriptor, IPPROTO_TCP, TCP_KEEPCNT, 8);
}

void TlsLane::share_unsent(int descriptor, std::uint32_t connections) {
  const auto count = static_cast<int>(std::max(connections, 1u));
  auto share = std::max(kUnsentBytesMax / count, kUnsentBytesMin);
  if (limited_) {
    const std::lock_guard lock(limit_mutex_);
    const auto soon = limit_.bytes_per_second() * kUnsentSeconds / count;
    share = std::max(kUnsentBytesLimited, static_cast<int>(std::min<double>(share, soon)));
  }
  set(descriptor, IPPROTO_TCP, TCP_NOTSENT_LOWAT, share);
}

void TlsLane::limit(double bytes_per_second) {
  const std::lock_guard lock(limit_mutex_);
  limit_.set_rate(loop_.now(), bytes_per_second);
  limited_ = bytes_per_second > 0;
}

void TlsLane::pay(std::size_t bytes) {
  if (!limited_) return;
  const std::lock_guard lock(limit_mutex_);
  limit_.pay(loop_.now(), bytes);
}

RateLimit::Piece TlsLane::next_piece(std::size_t bytes) {
  bytes = std::min(bytes, security::kTlsRecordBytesMax);
  if (!limited_) return {0, bytes};
  const auto now = loop_.now() - kTimersLate;
  const std::lock_guard lock(limit_mutex_);
  const auto piece = limit_.reserve_piece(now, bytes);
  limit_.reserve(now, security::kTlsRecordOverhead);
  return piece;
}

void TlsLane::log_violation(GatewayId peer, std::string_view what) {
  std::optional<std::uint64_t> unlogged;
  {
    const std::lock_guard lock(violations_mutex_);
    unlogged = violations_.due(loop_.now());
  }
  if (unlogged)
    log_.alarm("wire_violation", {options_.name_of(peer)},
               {{"lane", to_string(Lane::bulk)}, {"what", what}, {"more_since_last", *unlogged}});
}

Result<boost::asio::ip::tcp::endpoint> tcp_endpoint(const TcpAddress& address) {
  boost::system::error_code failed;
  const auto host = boost::asio::ip::make_address(address.host, failed);
  if (failed)
    return Error{ErrorCode::invalid_argument,
                 fmt::format("'{}' is no address in numbers", address.host)};
  return boost::asio::ip::tcp::endpoint(host, address.port);
}

}  // namespace isthmus::inter
