#include "tests/inter/tcp_proxy.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <span>
#include <stdexcept>

namespace isthmus::inter {

namespace {

sockaddr_in loopback(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return address;
}

int tcp_socket() {
  const int descriptor = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  ::setsockopt(descriptor, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  return descriptor;
}

void set_up_stream(int descriptor) {
  const int on = 1;
  ::setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  ::fcntl(descriptor, F_SETFL, ::fcntl(descriptor, F_GETFL) | O_NONBLOCK);
}

}  // namespace

struct TcpProxy::Pipe {
  // Bytes read from one end that the other has not taken yet.
  struct Buffer {
    std::array<char, 65536> bytes;
    std::size_t first = 0;
    std::size_t last = 0;
  };
  int ends[2];  // what the dialer opened, what we opened to the listener
  Buffer buffers[2];
  std::int64_t passed[2] = {0, 0};
  bool ended = false;

  ~Pipe() {
    for (const int end : ends) {
      // A reset, not an orderly end: what a broken network leaves.
      const linger abort{1, 0};
      ::setsockopt(end, SOL_SOCKET, SO_LINGER, &abort, sizeof abort);
      ::close(end);
    }
  }
};

TcpProxy::TcpProxy(std::uint16_t listen_port, std::uint16_t target_port)
    : target_port_(target_port), listener_(tcp_socket()) {
  const auto address = loopback(listen_port);
  if (::bind(listener_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(listener_, 64) != 0)
    throw std::runtime_error("the proxy's port is taken");
  set_up_stream(listener_);
  thread_ = std::thread([this] { run(); });
}

TcpProxy::~TcpProxy() {
  ending_ = true;
  thread_.join();
  ::close(listener_);
}

void TcpProxy::run() {
  auto last = std::chrono::steady_clock::now();
  while (!ending_) {
    std::vector<pollfd> polled{{listener_, POLLIN, 0}};
    const bool open = !stalled_ && (rate_ == 0 || allowance_ > 0);
    for (const auto& pipe : pipes_)
      for (std::size_t i : {0, 1})
        if (open)
          polled.push_back({pipe->ends[i],
                            static_cast<short>((pipe->buffers[i].last == 0 ? POLLIN : 0) |
                                               (pipe->buffers[1 - i].last != 0 ? POLLOUT : 0)),
                            0});
    ::poll(polled.data(), polled.size(), 5);

    const auto now = std::chrono::steady_clock::now();
    const std::chrono::duration<double> passed = now - last;
    last = now;
    const auto gained = static_cast<std::int64_t>(passed.count() * static_cast<double>(rate_));
    allowance_ = std::min<std::int64_t>(allowance_ + gained, std::max<std::int64_t>(rate_ / 50, 1));

    if (cut_.exchange(false)) pipes_.clear();
    if ((polled[0].revents & POLLIN) != 0 && !stalled_) accept_one();
    if (stalled_) continue;
    for (auto& pipe : pipes_)
      for (std::size_t direction : {0, 1})
        if (!pump(*pipe, direction)) pipe->ended = true;
    std::erase_if(pipes_, [](const auto& pipe) { return pipe->ended; });
  }
  pipes_.clear();
}

void TcpProxy::accept_one() {
  const int dialer = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
  if (dialer < 0) return;
  ++accepted_;
  const int target = tcp_socket();
  const auto address = loopback(target_port_);
  if (::connect(target, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    ::close(dialer);
    ::close(target);
    return;
  }
  set_up_stream(dialer);
  set_up_stream(target);
  auto pipe = std::make_unique<Pipe>();
  pipe->ends[0] = dialer;
  pipe->ends[1] = target;
  pipes_.push_back(std::move(pipe));
}

// From ends[direction] to the other; false when the connection has ended.
bool TcpProxy::pump(Pipe& pipe, std::size_t direction) {
  auto& buffer = pipe.buffers[direction];
  if (buffer.last == 0) {
    auto room = static_cast<std::int64_t>(buffer.bytes.size());
    if (rate_ != 0) room = std::min(room, allowance_);
    if (direction == static_cast<std::size_t>(Direction::to_listener))
      room = std::min(room, held_after_ - pipe.passed[direction]);
    if (room <= 0) return true;
    const auto got =
        ::recv(pipe.ends[direction], buffer.bytes.data(), static_cast<std::size_t>(room), 0);
    if (got == 0) return false;
    if (got < 0) return errno == EAGAIN || errno == EINTR;
    buffer.first = 0;
    buffer.last = static_cast<std::size_t>(got);
    allowance_ -= got;
    pipe.passed[direction] += got;
    passed_[direction] += static_cast<std::uint64_t>(got);
    auto& flip_in = flip_in_[direction];
    if (flip_in != kNoFlip && flip_in >= 0) {
      if (flip_in < got) buffer.bytes[static_cast<std::size_t>(flip_in)] ^= 0x10;
      flip_in -= got;
    }
  }
  const auto sent = ::send(pipe.ends[1 - direction], buffer.bytes.data() + buffer.first,
                           buffer.last - buffer.first, MSG_NOSIGNAL);
  if (sent < 0) return errno == EAGAIN || errno == EINTR;
  buffer.first += static_cast<std::size_t>(sent);
  if (buffer.first == buffer.last) buffer.last = 0;
  return true;
}

}  // namespace isthmus::inter
