#include "inter/attach_listener.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/error.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cerrno>
#include <cstring>
#include <deque>
#include <set>
#include <utility>

namespace isthmus::inter {
namespace {

namespace asio = boost::asio;
using asio::posix::stream_descriptor;

constexpr std::size_t kBodySliceBytes = 64 << 10;  // a body grows as it arrives
constexpr std::size_t kBodiesBytesMax = 64 << 20;  // of all unfinished messages longer than that
constexpr unsigned kBurst = 64;                    // messages of one connection without a pause
constexpr Nanoseconds kBurstPause = 10 * kMillisecond;

// Until a descriptor can be read or written: why not, if that ends first.
class Ready {
 public:
  Ready(stream_descriptor& of, stream_descriptor::wait_type what) : of_(of), what_(what) {}
  bool await_ready() const noexcept { return false; }
  void await_suspend(std::coroutine_handle<> waiting) {
    of_.async_wait(what_, [this, waiting](boost::system::error_code failure) {
      failure_ = failure;
      waiting.resume();
    });
  }
  boost::system::error_code await_resume() const noexcept { return failure_; }

 private:
  stream_descriptor& of_;
  const stream_descriptor::wait_type what_;
  boost::system::error_code failure_;
};

// Asio waits for the socket; bytes and descriptors move by system calls of our own.
class Connection final : public AttachConnection, public std::enable_shared_from_this<Connection> {
 public:
  Connection(Loop& loop, EventLog& log, FileDescriptor socket, LocalPeer peer, Nanoseconds timeout)
      : loop_(loop),
        log_(log),
        stream_(loop.io(), socket.release()),
        peer_(peer),
        timeout_(timeout),
        changed_(loop) {}

  bool is_open() const override { return stream_.is_open(); }
  bool has_hung_up() const override;
  const LocalPeer& peer() const override { return peer_; }
  std::optional<std::uint32_t> rank() const override { return rank_; }
  void set_rank(std::optional<std::uint32_t> rank) override { rank_ = rank; }
  void send(Bytes frame, std::shared_ptr<const SharedMemory> memory) override;
  void refuse(const Error& why) override;
  void decline(const Error& why) override;
  void close() override;

  bool is_refused() const { return refused_; }
  // Closes unless the deadline is set anew or lifted in time.
  void set_deadline();
  void lift_deadline();
  // False when the connection ends first.
  Task<bool> read_exactly(std::span<std::byte> out);
  // Until everything has been sent, or the connection is closed.
  Task<void> sent();

 private:
  struct Outgoing {
    Bytes bytes;
    std::size_t sent = 0;
    std::shared_ptr<const SharedMemory> memory;  // goes along with the first byte
  };
  static Task<void> write_rest(std::shared_ptr<Connection> self);
  void write_now();  // as much as the socket takes
  ssize_t write_some(const Outgoing& first);

  Loop& loop_;
  EventLog& log_;
  stream_descriptor stream_;
  LocalPeer peer_;
  Nanoseconds timeout_;
  std::optional<std::uint32_t> rank_;
  std::deque<Outgoing> out_;
  bool writing_ = false;  // write_rest() waits until the socket takes more
  bool refused_ = false;  // closes when `out_` is empty
  Signal changed_;        // `out_` is empty, or the connection is closed
  std::optional<Loop::TimerId> deadline_;
};

bool Connection::has_hung_up() const {
  pollfd looked{const_cast<stream_descriptor&>(stream_).native_handle(), POLLRDHUP, 0};
  return ::poll(&looked, 1, 0) > 0 && (looked.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

void Connection::close() {
  if (!is_open()) return;
  boost::system::error_code ignored;
  stream_.close(ignored);
  out_.clear();
  lift_deadline();
  changed_.notify();
}

void Connection::set_deadline() {
  lift_deadline();
  if (!is_open()) return;
  deadline_ = loop_.call_after(timeout_, [weak = weak_from_this()] {
    const auto late = weak.lock();
    if (!late) return;
    late->deadline_.reset();
    late->close();
  });
}

void Connection::lift_deadline() {
  if (deadline_) loop_.cancel(*deadline_);
  deadline_.reset();
}

Task<bool> Connection::read_exactly(std::span<std::byte> out) {
  while (!out.empty()) {
    if (!is_open()) co_return false;
    const ssize_t got = ::recv(stream_.native_handle(), out.data(), out.size(), MSG_DONTWAIT);
    if (got > 0) {
      out = out.subspan(static_cast<std::size_t>(got));
    } else if (got < 0 && errno == EAGAIN) {
      if (co_await Ready(stream_, stream_descriptor::wait_read)) co_return false;
    } else if (got == 0 || errno != EINTR) {
      co_return false;
    }
  }
  co_return true;
}

Task<void> Connection::sent() {
  while (is_open() && !out_.empty()) co_await changed_.wait();
}

void Connection::send(Bytes frame, std::shared_ptr<const SharedMemory> memory) {
  if (!is_open() || refused_) return;
  out_.push_back({std::move(frame), 0, std::move(memory)});
  if (writing_) return;
  write_now();
  if (!is_open() || out_.empty()) return;
  writing_ = true;
  loop_.spawn(write_rest(shared_from_this()));
}

Task<void> Connection::write_rest(std::shared_ptr<Connection> self) {
  while (self->is_open() && !self->out_.empty()) {
    const auto failure = co_await Ready(self->stream_, stream_descriptor::wait_write);
    // refuse() cancels all waiting, also this.
    if (failure && failure != asio::error::operation_aborted) self->close();
    self->write_now();
  }
  self->writing_ = false;
  self->changed_.notify();
}

void Connection::write_now() {
  while (is_open() && !out_.empty()) {
    Outgoing& first = out_.front();
    const ssize_t bytes = write_some(first);
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes < 0 && errno == EAGAIN) return;
    if (bytes < 0) return close();
    first.sent += static_cast<std::size_t>(bytes);
    if (first.sent == first.bytes.size()) out_.pop_front();
  }
}

ssize_t Connection::write_some(const Outgoing& first) {
  iovec buffer{const_cast<std::byte*>(first.bytes.data()) + first.sent,
               first.bytes.size() - first.sent};
  alignas(cmsghdr) std::byte control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &buffer;
  message.msg_iovlen = 1;
  if (first.memory && first.sent == 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* part = CMSG_FIRSTHDR(&message);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(sizeof(int));
    const int descriptor = first.memory->descriptor();
    std::memcpy(CMSG_DATA(part), &descriptor, sizeof(int));
  }
  return ::sendmsg(stream_.native_handle(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

void Connection::refuse(const Error& why) {
  if (refused_ || !is_open()) return;
  log_.warning("attach_refused", {},
               {{"pid", static_cast<std::int64_t>(peer_.pid)},
                {"rank", rank_ ? static_cast<std::int64_t>(*rank_) : -1},
                {"reason", why.text()}});
  decline(why);
}

void Connection::decline(const Error& why) {
  if (refused_ || !is_open()) return;
  send(attach::encode(attach::refused_of(why)), nullptr);
  refused_ = true;
  // Its coroutine may wait for a message that never comes; what is left is to send.
  boost::system::error_code ignored;
  stream_.cancel(ignored);
  if (out_.empty()) close();
}

}  // namespace

class AttachListener::Listener : public std::enable_shared_from_this<AttachListener::Listener> {
 public:
  Listener(Loop& loop, EventLog& log, std::string path, AttachReceiver& receiver,
           ListenerOptions options)
      : loop_(loop),
        log_(log),
        path_(std::move(path)),
        receiver_(receiver),
        options_(options),
        socket_(loop.io()) {}

  Result<void> listen();
  void stop();

 private:
  using Self = std::shared_ptr<Listener>;
  using ConnectionPointer = std::shared_ptr<Connection>;

  static Task<void> accept_all(Self self);
  void admit(FileDescriptor socket);
  static Task<void> serve(Self self, ConnectionPointer connection);
  // One message, received and handled; false: nothing more comes from this connection.
  Task<bool> serve_message(ConnectionPointer connection);
  Task<std::optional<Bytes>> read_body(ConnectionPointer connection, std::size_t bytes);

  Loop& loop_;
  EventLog& log_;
  std::string path_;
  AttachReceiver& receiver_;
  ListenerOptions options_;
  stream_descriptor socket_;
  bool stopped_ = false;
  std::set<ConnectionPointer> connections_;
  std::size_t bodies_bytes_ = 0;  // of long messages that are arriving
};

Result<void> AttachListener::Listener::listen() {
  ISTHMUS_TRY(FileDescriptor socket, listen_local(path_));
  socket_.assign(socket.release());
  loop_.spawn(accept_all(shared_from_this()));
  log_.info("attach_listening", {}, {{"path", path_}});
  return {};
}

void AttachListener::Listener::stop() {
  stopped_ = true;
  boost::system::error_code ignored;
  socket_.close(ignored);
  ::unlink(path_.c_str());
  for (const auto& connection : connections_) connection->close();
  connections_.clear();
}

Task<void> AttachListener::Listener::accept_all(Self self) {
  while (!self->stopped_) {
    const auto failure = co_await Ready(self->socket_, stream_descriptor::wait_read);
    if (self->stopped_ || failure) co_return;
    FileDescriptor socket(
        ::accept4(self->socket_.native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket.valid())
      self->admit(std::move(socket));
    else if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED)
      co_await self->loop_.sleep(100 * kMillisecond);  // no descriptors left: others may end
  }
}

void AttachListener::Listener::admit(FileDescriptor socket) {
  const auto peer = peer_of(socket.get());
  if (!peer || !is_trusted(*peer)) {
    log_.warning("attach_denied", {},
                 {{"uid", peer ? static_cast<std::int64_t>(peer->uid) : -1},
                  {"pid", peer ? static_cast<std::int64_t>(peer->pid) : -1}});
    return;
  }
  const auto visitors =
      std::ranges::count_if(connections_, [](const auto& c) { return !c->rank(); });
  if (static_cast<std::uint64_t>(visitors) >= options_.visitors_max) {
    const Error why{ErrorCode::busy, "too many connections that are no ranks; try again"};
    const Bytes frame = attach::encode(attach::refused_of(why));
    (void)::send(socket.get(), frame.data(), frame.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    return;
  }
  auto connection =
      std::make_shared<Connection>(loop_, log_, std::move(socket), *peer, options_.message_timeout);
  connections_.insert(connection);
  loop_.spawn(serve(shared_from_this(), std::move(connection)));
}

Task<void> AttachListener::Listener::serve(Self self, ConnectionPointer connection) {
  unsigned messages = 0;
  connection->set_deadline();
  while (!connection->is_refused()) {
    const bool goes_on = co_await self->serve_message(connection);
    if (!goes_on) break;
    // Who does not read its answers is not heard.
    co_await connection->sent();
    if (++messages % kBurst == 0) co_await self->loop_.sleep(kBurstPause);
  }
  if (connection->is_refused()) {
    connection->set_deadline();
    co_await connection->sent();
  }
  connection->close();
  if (self->stopped_) co_return;
  self->connections_.erase(connection);
  self->receiver_.on_closed(connection);
}

Task<bool> AttachListener::Listener::serve_message(ConnectionPointer connection) {
  std::array<std::byte, attach::kHeaderBytes> header_bytes;
  const bool got = co_await connection->read_exactly(header_bytes);
  if (!got || stopped_) co_return false;
  if (connection->rank()) connection->set_deadline();  // it has begun: it must end
  const attach::Header header = attach::read_header(header_bytes);
  const std::size_t bytes_max = attach::rank_message_bytes_max(header.kind);
  if (bytes_max == 0 || header.body_bytes > bytes_max) {
    connection->refuse(Error{ErrorCode::bad_frame,
                             fmt::format("a message of kind {} with {} bytes",
                                         static_cast<unsigned>(header.kind), header.body_bytes)});
    co_return true;
  }
  const auto body = co_await read_body(connection, header.body_bytes);
  if (!body || stopped_ || connection->is_refused()) co_return connection->is_refused();
  connection->lift_deadline();
  receiver_.on_message(connection, header.kind, *body);
  if (!connection->rank()) connection->set_deadline();
  co_return true;
}

Task<std::optional<Bytes>> AttachListener::Listener::read_body(ConnectionPointer connection,
                                                               std::size_t bytes) {
  const std::size_t budget = bytes > kBodySliceBytes ? bytes : 0;
  if (bodies_bytes_ + budget > kBodiesBytesMax) {
    connection->refuse(Error{ErrorCode::busy, "too many long messages at once; try again"});
    co_return std::nullopt;
  }
  bodies_bytes_ += budget;
  Bytes body;
  bool got = true;
  while (got && body.size() < bytes) {
    const std::size_t had = body.size();
    body.resize(std::min(bytes, had + kBodySliceBytes));
    got = co_await connection->read_exactly(std::span(body).subspan(had));
  }
  bodies_bytes_ -= budget;
  if (!got) co_return std::nullopt;
  co_return std::optional(std::move(body));
}

Result<std::unique_ptr<AttachListener>> AttachListener::listen(Loop& loop, EventLog& log,
                                                               const std::string& path,
                                                               AttachReceiver& receiver,
                                                               ListenerOptions options) {
  auto listener = std::make_shared<Listener>(loop, log, path, receiver, options);
  ISTHMUS_CHECK(listener->listen());
  return std::unique_ptr<AttachListener>(new AttachListener(std::move(listener)));
}

AttachListener::AttachListener(std::shared_ptr<Listener> listener)
    : listener_(std::move(listener)) {}
AttachListener::~AttachListener() { listener_->stop(); }

}  // namespace isthmus::inter
