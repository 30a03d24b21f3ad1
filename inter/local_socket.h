// Unix sockets of this machine's processes: a listening socket that nobody but its owner (and root)
// reaches, and a stream to it that carries bytes and descriptors. What the bytes mean is
// inter/attach_messages.h.
#pragma once

#include <sys/types.h>

#include <deque>
#include <optional>
#include <string>
#include <utility>

#include "base/byte_stream.h"
#include "base/clock.h"
#include "base/file_descriptor.h"
#include "base/result.h"

namespace isthmus::inter {

// Who made the other end, as the kernel says.
struct LocalPeer {
  uid_t uid = 0;
  pid_t pid = 0;
};
Result<LocalPeer> peer_of(int socket);
// Ours, or root's.
bool is_trusted(const LocalPeer& peer);

// Listening, not blocking, mode 0600 from its first moment, whatever the umask; takes the place of
// what was at `path`. Paths may be longer than a socket address. Errors: io, permission, not_found.
Result<FileDescriptor> listen_local(const std::string& path);

// The connecting end of a stream, for a process that may wait. Not thread-safe.
class LocalStream {
 public:
  // Errors: unavailable (nobody listens there), permission (not ours, or its process is not), io.
  static Result<LocalStream> connect(const std::string& path);

  // Sends all of it. Errors: closed, timeout (the stream is spoilt then: part may have left), io.
  Result<void> send(std::span<const std::byte> bytes, Nanoseconds deadline);
  // Sends all of a short message or nothing; false: no room now.
  Result<bool> send_now(std::span<const std::byte> bytes);

  // Received and not yet taken.
  std::span<const std::byte> received() const { return {in_.data() + taken_, in_.size() - taken_}; }
  void take(std::size_t bytes) { taken_ += bytes; }
  // Waits until something has been added to received(): false when the time came first or a signal
  // arrived. Errors: closed, io.
  Result<bool> receive(Nanoseconds deadline);
  // The descriptors that came along, in their order.
  std::optional<FileDescriptor> take_descriptor();

 private:
  explicit LocalStream(FileDescriptor socket) : socket_(std::move(socket)) {}
  FileDescriptor socket_;
  Bytes in_;
  std::size_t taken_ = 0;
  std::deque<FileDescriptor> descriptors_;
};

// The time that deadlines here are in: the system clock's now().
Nanoseconds local_now();

}  // namespace isthmus::inter
