#include "inter/attach_server.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/error.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <cerrno>
#include <cstring>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "inter/attach_messages.h"
#include "inter/box_runs.h"
#include "inter/local_socket.h"
#include "inter/shared_memory.h"

namespace isthmus::inter {
namespace {

namespace asio = boost::asio;

constexpr std::size_t kBodySliceBytes = 64 << 10;  // a body grows as it arrives
constexpr std::size_t kBodiesBytesMax = 64 << 20;  // of all unfinished messages longer than that
constexpr std::uint64_t kSliceElements = 4 << 20;  // copied before others have a turn
constexpr std::uint64_t kSliceBytes = 64 << 20;    // of memory reserved likewise
constexpr std::uint64_t kPageBytes = 4096;
constexpr unsigned kBurst = 64;  // messages of one connection without a pause
constexpr Nanoseconds kBurstPause = 10 * kMillisecond;

std::uint64_t machine_memory_bytes() {
  return static_cast<std::uint64_t>(sysconf(_SC_PHYS_PAGES)) *
         static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
}

std::uint64_t whole_pages(std::uint64_t bytes) {
  return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

// The other end is gone, although we have not read as far as its end yet.
bool has_hung_up(int socket) {
  pollfd looked{socket, POLLRDHUP, 0};
  return ::poll(&looked, 1, 0) > 0 && (looked.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

// What runs on the loop and waits there for a socket.
struct Connection {
  struct Outgoing {
    Bytes bytes;
    std::size_t sent = 0;
    std::shared_ptr<const SharedMemory> memory;  // whose descriptor goes along with the first byte;
                                                 // kept alive until it has left
  };

  Connection(Loop& on, FileDescriptor socket, LocalPeer other)
      : loop(on), stream(on.io(), socket.release()), peer(other), changed(on) {}

  bool is_open() const { return stream.is_open(); }
  void close() {
    if (!is_open()) return;
    boost::system::error_code ignored;
    stream.close(ignored);
    out.clear();
    disarm();
    changed.notify();
  }
  void disarm() {
    if (deadline) loop.cancel(*deadline);
    deadline.reset();
  }

  Loop& loop;
  asio::posix::stream_descriptor stream;
  LocalPeer peer;
  std::deque<Outgoing> out;
  bool writing = false;  // a coroutine waits until the socket takes more
  bool ending = false;   // closes when `out` has left
  Signal changed;        // `out` has left, or the connection is closed
  std::optional<Loop::TimerId> deadline;
  std::optional<std::uint32_t> rank;
};
using ConnectionPointer = std::shared_ptr<Connection>;  // of its coroutines, the server and a rank

struct Rank {
  enum class InitialState { none, offered, taken };

  ConnectionPointer connection;
  std::vector<Box> boxes;
  std::uint64_t elements = 0;
  std::shared_ptr<SharedMemory> memory;  // none until the ranks are complete, or without elements
  bool has_memory = false;
  std::uint64_t state_offset = 0;
  InitialState initial = InitialState::none;
  std::optional<attach::Contribute> contribution;
  std::optional<std::uint64_t> told;  // the publication in its state area, until it took it
  bool state_waits = false;           // for that area
  RankStatus status;
};

}  // namespace

class AttachServer::Server : public std::enable_shared_from_this<AttachServer::Server> {
 public:
  Server(Loop& loop, EventLog& log, std::string path, OuterSteps& outer,
         std::function<GatewayStatus()> status, AttachOptions options)
      : loop_(loop),
        log_(log),
        path_(std::move(path)),
        outer_(outer),
        gateway_status_(std::move(status)),
        options_(options),
        listener_(loop.io()) {
    if (options_.memory_bytes_max == 0) options_.memory_bytes_max = machine_memory_bytes() / 4 * 3;
  }

  Result<void> listen();
  void stop();
  void publish(const Published& state);
  void refuse(const Error& why);
  std::vector<RankStatus> rank_status() const;

 private:
  using Self = std::shared_ptr<Server>;

  // Connections.
  static Task<void> accept_all(Self self);
  void admit(FileDescriptor socket);
  static Task<void> serve(Self self, ConnectionPointer connection);
  Task<bool> read_message(ConnectionPointer connection);
  static Task<bool> read_exactly(ConnectionPointer connection, std::span<std::byte> out);
  static Task<void> write_rest(ConnectionPointer connection);
  static void flush(const ConnectionPointer& connection);
  void send(const ConnectionPointer& connection, Bytes frame,
            std::shared_ptr<const SharedMemory> memory = nullptr);
  void arm(const ConnectionPointer& connection);
  // Says why, and closes when that has left.
  void end(const ConnectionPointer& connection, const Error& why);
  std::size_t visitors() const;

  // Messages.
  void handle(const ConnectionPointer& connection, attach::Kind kind,
              std::span<const std::byte> body);
  void handle_of_rank(Rank& rank, attach::Kind kind, std::span<const std::byte> body);
  Result<void> on_attach(const ConnectionPointer& connection, attach::Attach message);
  Result<void> check_size(const std::vector<TensorInfo>& tensors) const;
  Result<Rank> check_attach(const ConnectionPointer& connection, const attach::Attach& message,
                            const ModelLayout& layout);
  void on_initial(Rank& rank);
  void on_contribute(Rank& rank, const attach::Contribute& message);
  void on_took(Rank& rank, const attach::Took& message);
  void on_progress(Rank& rank, const attach::Progress& message);

  // The ranks as one.
  using Era = std::pair<std::uint64_t, std::uint64_t>;
  static Task<void> complete(Self self, std::uint64_t generation);
  Task<Result<void>> give_memory();
  void remove_rank(std::uint32_t number);
  void refuse_all(const Error& why);
  void tell(Rank& rank, std::span<const float> parameters);
  void gather_initial_if_all();
  void gather_contribution_if_all();
  static Task<void> gather_initial(Self self, Era began);
  static Task<void> gather_contribution(Self self, Era began, std::uint64_t step,
                                        std::uint64_t tokens);
  // All contribution areas as one canonical vector; nothing when ranks or states changed meanwhile.
  Task<std::optional<std::vector<float>>> gather(Era began);
  // Changes when what a gather is about does.
  Era era() const { return {generation_, publication_}; }

  Loop& loop_;
  EventLog& log_;
  std::string path_;
  OuterSteps& outer_;
  std::function<GatewayStatus()> gateway_status_;
  AttachOptions options_;
  asio::posix::stream_descriptor listener_;
  bool stopped_ = false;
  std::set<ConnectionPointer> connections_;
  std::size_t bodies_bytes_ = 0;

  std::optional<Error> refused_;
  std::uint32_t world_ = 0;  // of the ranks that are attached, or were last
  std::string model_;
  ModelLayout layout_;
  std::map<std::uint32_t, Rank> ranks_;
  bool complete_ = false;
  std::uint64_t generation_ = 0;  // counts changes of ranks_
  bool gathering_ = false;

  std::uint64_t publication_ = 0;
  bool published_ = false;  // since the ranks are complete
  attach::State latest_;
  std::vector<float> waiting_values_;  // for ranks whose area was not free
  bool holds_states_ = false;          // States leave after the Taken that is due
  std::vector<std::pair<ConnectionPointer, Bytes>> held_states_;
};

Result<void> AttachServer::Server::listen() {
  ISTHMUS_TRY(FileDescriptor socket, listen_local(path_));
  listener_.assign(socket.release());
  loop_.spawn(accept_all(shared_from_this()));
  log_.info("attach_listening", {}, {{"path", path_}});
  return {};
}

void AttachServer::Server::stop() {
  stopped_ = true;
  if (listener_.is_open()) {
    boost::system::error_code ignored;
    listener_.close(ignored);
    ::unlink(path_.c_str());
  }
  for (const auto& connection : connections_) connection->close();
  connections_.clear();
  ranks_.clear();
  complete_ = false;
  ++generation_;
}

// ---- Connections

Task<void> AttachServer::Server::accept_all(Self self) {
  while (!self->stopped_) {
    boost::system::error_code failure;
    co_await self->listener_.async_wait(asio::posix::stream_descriptor::wait_read,
                                        asio::redirect_error(asio::use_awaitable, failure));
    if (self->stopped_ || failure) co_return;
    FileDescriptor socket(
        ::accept4(self->listener_.native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket.valid())
      self->admit(std::move(socket));
    else if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED)
      co_await self->loop_.sleep(100 * kMillisecond);  // no descriptors left: others may end
  }
}

void AttachServer::Server::admit(FileDescriptor socket) {
  const auto peer = peer_of(socket.get());
  if (!peer || !is_trusted(*peer)) {
    log_.warning("attach_denied", {},
                 {{"uid", peer ? static_cast<std::int64_t>(peer->uid) : -1},
                  {"pid", peer ? static_cast<std::int64_t>(peer->pid) : -1}});
    return;
  }
  if (visitors() >= options_.visitors_max) {
    const Error why{ErrorCode::busy, "too many connections that are no ranks; try again"};
    const Bytes frame = attach::encode(attach::refused_of(why));
    (void)::send(socket.get(), frame.data(), frame.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    return;
  }
  auto connection = std::make_shared<Connection>(loop_, std::move(socket), *peer);
  connections_.insert(connection);
  loop_.spawn(serve(shared_from_this(), std::move(connection)));
}

std::size_t AttachServer::Server::visitors() const {
  return static_cast<std::size_t>(
      std::ranges::count_if(connections_, [](const auto& c) { return !c->rank; }));
}

Task<void> AttachServer::Server::serve(Self self, ConnectionPointer connection) {
  unsigned messages = 0;
  self->arm(connection);
  while (!connection->ending) {
    const bool goes_on = co_await self->read_message(connection);
    if (!goes_on) break;
    // Who does not read its answers is not heard.
    while (connection->is_open() && !connection->out.empty()) co_await connection->changed.wait();
    if (++messages % kBurst == 0) co_await self->loop_.sleep(kBurstPause);
  }
  if (connection->ending) {
    self->arm(connection);
    while (connection->is_open() && !connection->out.empty()) co_await connection->changed.wait();
  }
  connection->close();
  if (self->stopped_) co_return;
  self->connections_.erase(connection);
  if (connection->rank) self->remove_rank(*connection->rank);
}

// One message, handled; false: nothing more comes from this connection.
Task<bool> AttachServer::Server::read_message(ConnectionPointer connection) {
  std::array<std::byte, attach::kHeaderBytes> header_bytes;
  bool got = co_await read_exactly(connection, header_bytes);
  if (!got || stopped_) co_return false;
  if (connection->rank) arm(connection);

  const attach::Header header = attach::read_header(header_bytes);
  const std::size_t bytes_max = attach::rank_message_bytes_max(header.kind);
  if (bytes_max == 0 || header.body_bytes > bytes_max) {
    end(connection, Error{ErrorCode::bad_frame,
                          fmt::format("a message of kind {} with {} bytes",
                                      static_cast<unsigned>(header.kind), header.body_bytes)});
    co_return true;
  }
  const bool is_long = header.body_bytes > kBodySliceBytes;
  if (is_long && bodies_bytes_ + header.body_bytes > kBodiesBytesMax) {
    end(connection, Error{ErrorCode::busy, "too many long messages at once; try again"});
    co_return true;
  }
  if (is_long) bodies_bytes_ += header.body_bytes;
  Bytes body;
  while (got && body.size() < header.body_bytes) {
    const std::size_t had = body.size();
    body.resize(std::min<std::size_t>(header.body_bytes, had + kBodySliceBytes));
    got = co_await read_exactly(connection, std::span(body).subspan(had));
  }
  if (is_long) bodies_bytes_ -= header.body_bytes;
  if (!got || stopped_ || connection->ending) co_return false;
  connection->disarm();
  handle(connection, header.kind, body);
  if (!connection->rank && !connection->deadline) arm(connection);
  co_return true;
}

Task<bool> AttachServer::Server::read_exactly(ConnectionPointer connection,
                                              std::span<std::byte> out) {
  while (!out.empty()) {
    if (!connection->is_open()) co_return false;
    const ssize_t got =
        ::recv(connection->stream.native_handle(), out.data(), out.size(), MSG_DONTWAIT);
    if (got > 0) {
      out = out.subspan(static_cast<std::size_t>(got));
    } else if (got < 0 && errno == EAGAIN) {
      boost::system::error_code failure;
      co_await connection->stream.async_wait(asio::posix::stream_descriptor::wait_read,
                                             asio::redirect_error(asio::use_awaitable, failure));
      if (failure) co_return false;
    } else if (got == 0 || errno != EINTR) {
      co_return false;
    }
  }
  co_return true;
}

// A connection that does not do its part by then is closed.
void AttachServer::Server::arm(const ConnectionPointer& connection) {
  connection->disarm();
  if (!connection->is_open()) return;
  connection->deadline =
      loop_.call_after(options_.message_timeout, [weak = std::weak_ptr(connection)] {
        const auto late = weak.lock();
        if (!late) return;
        late->deadline.reset();
        late->close();
      });
}

void AttachServer::Server::send(const ConnectionPointer& connection, Bytes frame,
                                std::shared_ptr<const SharedMemory> memory) {
  if (!connection->is_open() || connection->ending) return;
  connection->out.push_back({std::move(frame), 0, std::move(memory)});
  if (!connection->writing) flush(connection);
  if (connection->is_open() && !connection->out.empty() && !connection->writing) {
    connection->writing = true;
    loop_.spawn(write_rest(connection));
  }
}

Task<void> AttachServer::Server::write_rest(ConnectionPointer connection) {
  while (connection->is_open() && !connection->out.empty()) {
    boost::system::error_code failure;
    co_await connection->stream.async_wait(asio::posix::stream_descriptor::wait_write,
                                           asio::redirect_error(asio::use_awaitable, failure));
    if (failure && failure != asio::error::operation_aborted) break;
    flush(connection);  // after end(), too, which cancels all waiting
  }
  connection->writing = false;
  connection->changed.notify();
}

// As much as the socket takes.
void AttachServer::Server::flush(const ConnectionPointer& connection) {
  while (connection->is_open() && !connection->out.empty()) {
    Connection::Outgoing& first = connection->out.front();
    iovec buffer{first.bytes.data() + first.sent, first.bytes.size() - first.sent};
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
    const ssize_t sent =
        ::sendmsg(connection->stream.native_handle(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
      if (errno == EINTR) continue;
      if (errno != EAGAIN) connection->close();
      return;
    }
    first.sent += static_cast<std::size_t>(sent);
    if (first.sent == first.bytes.size()) connection->out.pop_front();
  }
}

void AttachServer::Server::end(const ConnectionPointer& connection, const Error& why) {
  if (connection->ending || !connection->is_open()) return;
  log_.warning("attach_refused", {},
               {{"pid", static_cast<std::int64_t>(connection->peer.pid)},
                {"rank", connection->rank ? static_cast<std::int64_t>(*connection->rank) : -1},
                {"reason", why.text()}});
  send(connection, attach::encode(attach::refused_of(why)));
  connection->ending = true;
  // Its coroutine may wait for a message that never comes; all that is left is to send.
  boost::system::error_code ignored;
  connection->stream.cancel(ignored);
  if (connection->writing) return;
  if (connection->out.empty()) connection->close();
}

// ---- Messages

void AttachServer::Server::handle(const ConnectionPointer& connection, attach::Kind kind,
                                  std::span<const std::byte> body) {
  const Error garbage{ErrorCode::bad_frame, fmt::format("a message of kind {} does not decode",
                                                        static_cast<unsigned>(kind))};
  if (kind == attach::Kind::status) {
    if (!attach::decode<attach::Status>(body)) return end(connection, garbage);
    return send(connection, attach::encode(attach::StatusJson{to_json(gateway_status_())}));
  }
  if (kind == attach::Kind::attach) {
    auto message = attach::decode<attach::Attach>(body);
    if (!message) return end(connection, garbage);
    if (auto attached = on_attach(connection, std::move(*message)); !attached)
      end(connection, attached.error());
    return;
  }
  if (!connection->rank)
    return end(connection, Error{ErrorCode::bad_frame, "attach must come first"});
  handle_of_rank(ranks_.at(*connection->rank), kind, body);
}

void AttachServer::Server::handle_of_rank(Rank& rank, attach::Kind kind,
                                          std::span<const std::byte> body) {
  const auto with = [&]<class Message>(std::optional<Message> message, auto&& act) {
    if (message) return act(*message);
    end(rank.connection, Error{ErrorCode::bad_frame, fmt::format("a message of kind {} does not "
                                                                 "decode",
                                                                 static_cast<unsigned>(kind))});
  };
  switch (kind) {
    case attach::Kind::initial:
      return with(attach::decode<attach::Initial>(body), [&](auto&) { on_initial(rank); });
    case attach::Kind::contribute:
      return with(attach::decode<attach::Contribute>(body),
                  [&](auto& message) { on_contribute(rank, message); });
    case attach::Kind::took:
      return with(attach::decode<attach::Took>(body),
                  [&](auto& message) { on_took(rank, message); });
    case attach::Kind::progress:
      return with(attach::decode<attach::Progress>(body),
                  [&](auto& message) { on_progress(rank, message); });
    case attach::Kind::leaving:
      return with(attach::decode<attach::Leaving>(body), [&](auto&) {
        rank.status.state = "leaving";
        if (complete_) outer_.leaving();
      });
    default:
      ISTHMUS_ASSERT(!"a kind that rank_message_bytes_max() knows and handle() does not");
  }
}

Result<void> AttachServer::Server::on_attach(const ConnectionPointer& connection,
                                             attach::Attach message) {
  if (message.version != attach::kVersion)
    return Error{ErrorCode::unsupported,
                 fmt::format("this rank speaks version {} of the attach protocol, this gateway {}",
                             message.version, attach::kVersion)};
  if (refused_) return *refused_;
  const bool ascending = std::ranges::is_sorted(message.tensors, {}, &TensorInfo::name);
  if (!ascending)
    return Error{ErrorCode::invalid_argument, "tensors must be in ascending order of their names"};
  ISTHMUS_CHECK(check_size(message.tensors));
  ISTHMUS_TRY(ModelLayout layout, ModelLayout::make(message.tensors));
  ISTHMUS_TRY(Rank rank, check_attach(connection, message, layout));
  if (ranks_.empty()) {
    world_ = message.world;
    model_ = std::move(message.model);
    layout_ = std::move(layout);
  }
  connection->rank = message.rank;
  ranks_.emplace(message.rank, std::move(rank));
  ++generation_;
  log_.info("rank_attached", {}, {{"rank", message.rank}, {"world", world_}, {"pid", message.pid}});
  if (ranks_.size() == world_) loop_.spawn(complete(shared_from_this(), generation_));
  return {};
}

// The ranks hold all of the model between them, twice: what cannot fit needs no further look, and
// nothing of its size.
Result<void> AttachServer::Server::check_size(const std::vector<TensorInfo>& tensors) const {
  const std::uint64_t elements_max = options_.memory_bytes_max / (2 * sizeof(float));
  std::uint64_t left = elements_max;
  for (const TensorInfo& tensor : tensors) {
    std::uint64_t elements = 1;
    for (const std::int64_t size : tensor.shape.sizes()) {
      if (size <= 0)
        return Error{ErrorCode::invalid_argument,
                     fmt::format("tensor {} has an impossible shape", tensor.name)};
      elements = static_cast<std::uint64_t>(size) > left / elements
                     ? left + 1
                     : elements * static_cast<std::uint64_t>(size);
      if (elements > left)
        return Error{ErrorCode::too_large,
                     fmt::format("the model has more than the {} elements that this gateway may "
                                 "share memory for",
                                 elements_max)};
    }
    left -= elements;
  }
  return {};
}

Result<Rank> AttachServer::Server::check_attach(const ConnectionPointer& connection,
                                                const attach::Attach& message,
                                                const ModelLayout& layout) {
  if (connection->rank) return Error{ErrorCode::bad_frame, "attached twice on one connection"};
  if (message.world == 0 || message.world > options_.world_max || message.rank >= message.world)
    return Error{ErrorCode::invalid_argument,
                 fmt::format("rank {} of a world of {} (at most {})", message.rank, message.world,
                             options_.world_max)};
  Rank rank;
  for (const Box& box : message.boxes) {
    ISTHMUS_TRY(const std::uint64_t elements, check_box(layout.tensors(), box));
    rank.elements += elements;
    if (rank.elements > layout.elements())
      return Error{ErrorCode::invalid_argument, "the boxes of one rank overlap"};
  }
  // A process that has died may not have been read to its end yet.
  if (const auto old = ranks_.find(message.rank); old != ranks_.end()) {
    const auto held = old->second.connection;
    if (held->is_open() && !has_hung_up(held->stream.native_handle()))
      return Error{ErrorCode::already_exists,
                   fmt::format("rank {} is attached by process {}", message.rank, held->peer.pid)};
    held->close();
    remove_rank(message.rank);
  }
  if (!ranks_.empty() &&
      (message.world != world_ || message.model != model_ || layout.tensors() != layout_.tensors()))
    return Error{ErrorCode::mismatch,
                 fmt::format("rank {} has another {} than the ranks that are attached",
                             message.rank, message.world != world_ ? "world size" : "model")};
  rank.connection = connection;
  rank.boxes = message.boxes;
  rank.status.rank = message.rank;
  rank.status.world = message.world;
  rank.status.pid = connection->peer.pid;
  rank.status.state = "attached";
  return rank;
}

void AttachServer::Server::on_progress(Rank& rank, const attach::Progress& message) {
  rank.status.inner_step = message.inner_step;
  rank.status.loss = message.loss;
  rank.status.tokens_per_second = message.tokens_per_second;
  rank.status.state = message.state;
  if (complete_) outer_.progressing();
}

void AttachServer::Server::on_initial(Rank& rank) {
  // A state that has been told answers it.
  if (complete_ && published_) return;
  rank.initial = Rank::InitialState::offered;
  gather_initial_if_all();
}

void AttachServer::Server::on_contribute(Rank& rank, const attach::Contribute& message) {
  // Overtaken by a state, which answers it.
  if (!complete_ || !published_ || message.publication != publication_) return;
  if (rank.contribution)
    return end(rank.connection, Error{ErrorCode::bad_frame, "a second contribution to one state"});
  rank.contribution = message;
  gather_contribution_if_all();
}

void AttachServer::Server::on_took(Rank& rank, const attach::Took& message) {
  if (rank.told != message.publication) return;
  rank.told.reset();
  if (!rank.state_waits) return;
  rank.state_waits = false;
  tell(rank, waiting_values_);
  const bool any =
      std::ranges::any_of(ranks_, [](const auto& entry) { return entry.second.state_waits; });
  if (!any) waiting_values_ = {};
}

// ---- The ranks as one

Task<void> AttachServer::Server::complete(Self self, std::uint64_t generation) {
  if (self->stopped_ || self->generation_ != generation) co_return;
  std::vector<Box> boxes;
  for (const auto& [number, rank] : self->ranks_)
    boxes.insert(boxes.end(), rank.boxes.begin(), rank.boxes.end());
  auto ready = self->layout_.check_cover(boxes);
  if (ready) {
    auto given = co_await self->give_memory();
    ready = std::move(given);
  }
  if (self->stopped_ || self->generation_ != generation) co_return;
  if (!ready) {
    self->refuse_all(ready.error());
    co_return;
  }
  self->complete_ = true;
  self->published_ = false;
  self->log_.info("ranks_complete", {},
                  {{"world", self->world_}, {"elements", self->layout_.elements()}});
  const auto accepted = self->outer_.attached(self->layout_, self->model_);
  if (self->stopped_ || self->generation_ != generation) co_return;
  if (!accepted)
    self->refuse_all(accepted.error());
  else if (!self->published_)
    self->gather_initial_if_all();
}

// A contribution area and a state area for each rank that has none yet:
//
//   0                       contribution   whole pages
//   state_offset            state          whole pages
Task<Result<void>> AttachServer::Server::give_memory() {
  const std::uint64_t generation = generation_;
  std::uint64_t needed = 0;
  for (const auto& [number, rank] : ranks_)
    needed += 2 * whole_pages(rank.elements * sizeof(float));
  if (needed > options_.memory_bytes_max)
    co_return Error{ErrorCode::too_large,
                    fmt::format("the ranks need {} bytes of shared memory, the limit is {}", needed,
                                options_.memory_bytes_max)};
  for (std::uint32_t number = 0; number < world_; ++number) {
    // Looked up anew: ranks may come and go while others have their turn.
    if (generation_ != generation) co_return Result<void>();
    Rank& rank = ranks_.at(number);
    if (rank.has_memory) continue;
    attach::Memory message;
    message.elements = rank.elements;
    message.state_offset = whole_pages(rank.elements * sizeof(float));
    message.bytes = 2 * message.state_offset;
    std::shared_ptr<SharedMemory> memory;  // shared: a queue keeps it until the descriptor has left
    if (rank.elements > 0) {
      auto made = SharedMemory::make(message.bytes);
      if (!made) co_return std::move(made).error();
      memory = std::make_shared<SharedMemory>(std::move(*made));
      for (std::uint64_t first = 0; first < message.bytes; first += kSliceBytes) {
        auto reserved = memory->reserve(first, std::min(kSliceBytes, message.bytes - first));
        if (!reserved) co_return std::move(reserved).error();
        if (first + kSliceBytes < message.bytes) co_await loop_.sleep(0);
        if (stopped_ || generation_ != generation) co_return Result<void>();
      }
    }
    rank.memory = memory;
    rank.has_memory = true;
    rank.state_offset = message.state_offset;
    send(rank.connection, attach::encode(message), std::move(memory));
  }
  co_return Result<void>();
}

void AttachServer::Server::remove_rank(std::uint32_t number) {
  const auto found = ranks_.find(number);
  if (found == ranks_.end()) return;
  log_.info("rank_gone", {},
            {{"rank", number}, {"pid", static_cast<std::int64_t>(found->second.status.pid)}});
  found->second.connection->rank.reset();
  ranks_.erase(found);
  ++generation_;
  complete_ = false;
  // The others are told a state when the ranks are complete again, and go on from there.
  for (auto& [other, rank] : ranks_) {
    rank.contribution.reset();
    rank.state_waits = false;
  }
  waiting_values_ = {};
}

void AttachServer::Server::refuse_all(const Error& why) {
  auto ranks = std::move(ranks_);
  ranks_.clear();
  ++generation_;
  complete_ = false;
  waiting_values_ = {};
  for (auto& [number, rank] : ranks) {
    end(rank.connection, why);
    rank.connection->rank.reset();
  }
}

void AttachServer::Server::refuse(const Error& why) {
  refused_ = why;
  refuse_all(why);
}

std::vector<RankStatus> AttachServer::Server::rank_status() const {
  std::vector<RankStatus> all;
  for (std::uint32_t number = 0; number < world_; ++number) {
    const auto found = ranks_.find(number);
    if (found != ranks_.end())
      all.push_back(found->second.status);
    else
      all.push_back({.rank = number,
                     .world = world_,
                     .pid = 0,
                     .inner_step = 0,
                     .loss = 0,
                     .tokens_per_second = 0,
                     .state = "not attached"});
  }
  return all;
}

void AttachServer::Server::publish(const Published& state) {
  ++publication_;
  if (!complete_) return;
  ISTHMUS_ASSERT(state.parameters.size() == layout_.elements());
  published_ = true;
  latest_.publication = publication_;
  latest_.step = state.step;
  latest_.record = state.record;
  latest_.merge = state.merge;
  latest_.final_step = state.final_step;
  latest_.contribution_open = state.contribution_open;
  waiting_values_.clear();
  bool waits = false;
  for (auto& [number, rank] : ranks_) {
    rank.contribution.reset();
    if (rank.initial == Rank::InitialState::offered) rank.initial = Rank::InitialState::none;
    rank.state_waits = rank.told.has_value();
    waits |= rank.state_waits;
    if (!rank.state_waits) tell(rank, state.parameters);
  }
  if (waits) waiting_values_.assign(state.parameters.begin(), state.parameters.end());
}

void AttachServer::Server::tell(Rank& rank, std::span<const float> parameters) {
  if (rank.elements > 0)
    copy_to_boxes(layout_, rank.boxes, parameters,
                  rank.memory->floats(rank.state_offset, rank.elements));
  rank.told = latest_.publication;
  if (holds_states_)
    held_states_.emplace_back(rank.connection, attach::encode(latest_));
  else
    send(rank.connection, attach::encode(latest_));
}

void AttachServer::Server::gather_initial_if_all() {
  using enum Rank::InitialState;
  if (!complete_ || published_ || gathering_) return;
  bool all = true;
  bool any = false;
  for (const auto& [number, rank] : ranks_) {
    if (rank.initial == none) return;
    all &= rank.initial == offered;
    any |= rank.initial == offered;
  }
  if (!any) return;
  if (all) {
    gathering_ = true;
    return loop_.spawn(gather_initial(shared_from_this(), era()));
  }
  // Some ranks came later than those whose parameters the gateway has.
  for (auto& [number, rank] : ranks_) {
    if (rank.initial == offered) send(rank.connection, attach::encode(attach::Taken{0}));
    rank.initial = taken;
  }
}

Task<void> AttachServer::Server::gather_initial(Self self, Era began) {
  auto parameters = co_await self->gather(began);
  if (!parameters) co_return;
  for (auto& [number, rank] : self->ranks_) {
    rank.initial = Rank::InitialState::taken;
    self->send(rank.connection, attach::encode(attach::Taken{0}));
  }
  self->outer_.offer_initial(std::move(*parameters));
}

void AttachServer::Server::gather_contribution_if_all() {
  if (!complete_ || gathering_) return;
  std::uint64_t tokens = 0;
  const auto& first = ranks_.begin()->second.contribution;
  for (const auto& [number, rank] : ranks_) {
    if (!rank.contribution) return;
    if (rank.contribution->step != first->step)
      return refuse_all({ErrorCode::mismatch, "the ranks contributed to different steps"});
    if (rank.contribution->tokens > ~tokens)
      return refuse_all({ErrorCode::invalid_argument, "too many tokens"});
    tokens += rank.contribution->tokens;
  }
  gathering_ = true;
  loop_.spawn(gather_contribution(shared_from_this(), era(), first->step, tokens));
}

Task<void> AttachServer::Server::gather_contribution(Self self, Era began, std::uint64_t step,
                                                     std::uint64_t tokens) {
  auto parameters = co_await self->gather(began);
  if (!parameters) co_return;
  const std::uint64_t generation = self->generation_;
  // A state that follows from within must not overtake the answer.
  self->holds_states_ = true;
  const auto accepted = self->outer_.contribute(step, std::move(*parameters), tokens);
  self->holds_states_ = false;
  const auto held = std::exchange(self->held_states_, {});
  if (self->stopped_ || self->generation_ != generation) co_return;
  if (accepted) {
    for (auto& [number, rank] : self->ranks_)
      self->send(rank.connection, attach::encode(attach::Taken{step}));
  } else if (accepted.error().code != ErrorCode::mismatch) {
    self->refuse_all(accepted.error());
    co_return;
  } else {
    // Late: the state of that step is on its way, and says so by coming without an answer.
    self->log_.info("contribution_not_taken", {{}, static_cast<std::int64_t>(step)},
                    {{"reason", accepted.error().text()}});
  }
  for (const auto& [connection, frame] : held) self->send(connection, frame);
}

Task<std::optional<std::vector<float>>> AttachServer::Server::gather(Era began) {
  std::vector<float> whole(layout_.elements());
  std::uint64_t budget = kSliceElements;
  bool current = !stopped_ && era() == began;
  // By number: a rank that goes takes its memory along, and ends this.
  for (std::uint32_t number = 0; current && number < world_; ++number) {
    std::uint64_t before = 0;  // elements of the boxes before this one
    for (std::size_t b = 0; current && b < ranks_.at(number).boxes.size(); ++b) {
      BoxRuns runs(layout_, ranks_.at(number).boxes[b]);
      std::uint64_t copied = 0;
      while (current) {
        const auto run = runs.next(budget);
        if (!run) break;
        const Rank& rank = ranks_.at(number);
        const auto area = rank.memory->floats(0, rank.elements);
        std::ranges::copy(area.subspan(before + run->dense, run->count),
                          whole.begin() + static_cast<std::ptrdiff_t>(run->canonical));
        copied += run->count;
        budget -= run->count;
        if (budget > 0) continue;
        co_await loop_.sleep(0);
        budget = kSliceElements;
        current = !stopped_ && era() == began;
      }
      before += copied;
    }
  }
  gathering_ = false;
  if (current) co_return std::optional(std::move(whole));
  // What came meanwhile has waited for this.
  if (!stopped_ && published_)
    gather_contribution_if_all();
  else if (!stopped_)
    gather_initial_if_all();
  co_return std::nullopt;
}

// ----

AttachServer::AttachServer(Loop& loop, EventLog& log, std::string path, OuterSteps& outer,
                           std::function<GatewayStatus()> status, AttachOptions options)
    : server_(std::make_shared<Server>(loop, log, std::move(path), outer, std::move(status),
                                       options)) {}
AttachServer::~AttachServer() { server_->stop(); }
Result<void> AttachServer::listen() { return server_->listen(); }
void AttachServer::publish(const Published& state) { server_->publish(state); }
void AttachServer::refuse(const Error& why) { server_->refuse(why); }
std::vector<RankStatus> AttachServer::status() const { return server_->rank_status(); }

}  // namespace isthmus::inter
