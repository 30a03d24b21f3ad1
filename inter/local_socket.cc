#include "inter/local_socket.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/disk.h"

namespace isthmus::inter {
namespace {

constexpr std::size_t kReceiveBytes = 64 << 10;
constexpr std::size_t kDescriptorsMax = 4;  // in one message, and kept

// The address of a path. One that is too long is named through a descriptor of its folder, which
// must stay open while the address is used.
struct Address {
  sockaddr_un value{};
  FileDescriptor folder;
};

Result<Address> address_of(const std::string& path) {
  Address address;
  address.value.sun_family = AF_UNIX;
  std::string name = path;
  if (name.size() >= sizeof(address.value.sun_path)) {
    const std::string folder = folder_of(path);
    address.folder = FileDescriptor(
        ::open(folder.empty() ? "." : folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (!address.folder.valid())
      return error_of_errno(errno, fmt::format("open the folder of {}", path));
    name =
        fmt::format("/proc/self/fd/{}/{}", address.folder.get(), path.substr(path.rfind('/') + 1));
  }
  if (name.size() >= sizeof(address.value.sun_path))
    return Error{ErrorCode::invalid_argument, fmt::format("{}: the name is too long", path)};
  std::memcpy(address.value.sun_path, name.c_str(), name.size() + 1);
  return address;
}

// How long poll() may wait, rounded up so that it does not spin at the end.
int poll_ms(Nanoseconds deadline) {
  const Nanoseconds left = std::max<Nanoseconds>(deadline - local_now(), 0);
  return static_cast<int>(
      std::min<Nanoseconds>((left + kMillisecond - 1) / kMillisecond, 1'000'000));
}

}  // namespace

Nanoseconds local_now() { return make_system_clock()->now(); }

Result<LocalPeer> peer_of(int socket) {
  ucred credentials{};
  socklen_t bytes = sizeof(credentials);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &bytes) != 0)
    return error_of_errno(errno, "ask for the credentials of a local socket's other end");
  return LocalPeer{credentials.uid, credentials.pid};
}

bool is_trusted(const LocalPeer& peer) { return peer.uid == 0 || peer.uid == geteuid(); }

Result<FileDescriptor> listen_local(const std::string& path) {
  const std::string fresh = path + ".new";
  FileDescriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid()) return error_of_errno(errno, "make a local socket");
  // bind() gives the file the mode of the socket (less the umask), so it is never open to others,
  // not even for an instant. Renamed when it listens: nobody meets a socket that refuses.
  if (fchmod(socket.get(), 0600) != 0) return error_of_errno(errno, "protect a local socket");
  ISTHMUS_TRY(const Address address, address_of(fresh));
  ::unlink(fresh.c_str());
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address.value),
             sizeof(address.value)) != 0 ||
      ::chmod(fresh.c_str(), 0600) != 0 || ::listen(socket.get(), 64) != 0 ||
      std::rename(fresh.c_str(), path.c_str()) != 0) {
    const int why = errno;
    ::unlink(fresh.c_str());
    return error_of_errno(why, fmt::format("listen on {}", path));
  }
  return socket;
}

Result<LocalStream> LocalStream::connect(const std::string& path) {
  FileDescriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid()) return error_of_errno(errno, "make a local socket");
  ISTHMUS_TRY(const Address address, address_of(path));
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address.value),
                sizeof(address.value)) != 0) {
    // EAGAIN: its queue of connections is full.
    if (errno == ENOENT || errno == ECONNREFUSED || errno == EAGAIN)
      return Error{ErrorCode::unavailable,
                   fmt::format("no gateway listens at {}: is the site running?", path)};
    if (errno == EACCES)
      return Error{ErrorCode::permission,
                   fmt::format("{} is another user's: run this as the user who runs the site, or "
                               "as root",
                               path)};
    return error_of_errno(errno, fmt::format("connect to {}", path));
  }
  ISTHMUS_TRY(const LocalPeer peer, peer_of(socket.get()));
  if (!is_trusted(peer))
    return Error{ErrorCode::permission, fmt::format("{} belongs to process {} of user {}, not ours",
                                                    path, peer.pid, peer.uid)};
  return LocalStream(std::move(socket));
}

Result<void> LocalStream::send(std::span<const std::byte> bytes, Nanoseconds deadline) {
  while (!bytes.empty()) {
    const ssize_t sent =
        ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(sent));
      continue;
    }
    if (errno == EINTR) continue;
    if (errno == EPIPE || errno == ECONNRESET)
      return Error{ErrorCode::closed, "the gateway has closed the connection"};
    if (errno != EAGAIN) return error_of_errno(errno, "send to the gateway");
    if (local_now() >= deadline) return Error{ErrorCode::timeout, "the gateway does not read"};
    pollfd waited{socket_.get(), POLLOUT, 0};
    ::poll(&waited, 1, poll_ms(deadline));
  }
  return {};
}

Result<bool> LocalStream::send_now(std::span<const std::byte> bytes) {
  for (;;) {
    const ssize_t sent =
        ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    // The kernel takes a short message whole or not at all; finish it, should that ever change.
    if (sent >= 0) {
      if (static_cast<std::size_t>(sent) < bytes.size())
        ISTHMUS_CHECK(
            send(bytes.subspan(static_cast<std::size_t>(sent)), local_now() + 10 * kSecond));
      return true;
    }
    if (errno == EINTR) continue;
    if (errno == EAGAIN) return false;
    if (errno == EPIPE || errno == ECONNRESET)
      return Error{ErrorCode::closed, "the gateway has closed the connection"};
    return error_of_errno(errno, "send to the gateway");
  }
}

Result<bool> LocalStream::receive(Nanoseconds deadline) {
  pollfd waited{socket_.get(), POLLIN, 0};
  const int ready = ::poll(&waited, 1, poll_ms(deadline));
  if (ready == 0 || (ready < 0 && errno == EINTR)) return false;
  if (ready < 0) return error_of_errno(errno, "wait for the gateway");

  in_.erase(in_.begin(), in_.begin() + static_cast<std::ptrdiff_t>(taken_));
  taken_ = 0;
  const std::size_t had = in_.size();
  in_.resize(had + kReceiveBytes);
  iovec buffer{in_.data() + had, kReceiveBytes};
  alignas(cmsghdr) std::byte control[CMSG_SPACE(kDescriptorsMax * sizeof(int))];
  msghdr message{};
  message.msg_iov = &buffer;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const ssize_t got = ::recvmsg(socket_.get(), &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  const int why = errno;
  in_.resize(had + static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  if (got < 0 && (why == EAGAIN || why == EINTR)) return false;
  if (got == 0 || (got < 0 && why == ECONNRESET))
    return Error{ErrorCode::closed, "the gateway has closed the connection"};
  if (got < 0) return error_of_errno(why, "receive from the gateway");
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr;
       part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int number = -1;
      std::memcpy(&number, CMSG_DATA(part) + i * sizeof(int), sizeof(int));
      FileDescriptor descriptor(number);
      if (descriptors_.size() < kDescriptorsMax) descriptors_.push_back(std::move(descriptor));
    }
  }
  return true;
}

std::optional<FileDescriptor> LocalStream::take_descriptor() {
  if (descriptors_.empty()) return std::nullopt;
  FileDescriptor first = std::move(descriptors_.front());
  descriptors_.pop_front();
  return first;
}

}  // namespace isthmus::inter
