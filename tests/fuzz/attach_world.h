// A folder of this process for sockets, and the raw end of one: what the two targets of attach
// share.
#pragma once

#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <string>
#include <utility>

#include "base/assert.h"
#include "inter/attach_messages.h"
#include "inter/local_socket.h"

namespace isthmus::inter {

// Removed when the process ends well.
class SocketFolder {
 public:
  SocketFolder() { ISTHMUS_ASSERT(::mkdtemp(path_.data()) != nullptr); }
  ~SocketFolder() {
    ::unlink(socket().c_str());
    ::rmdir(path_.c_str());
  }
  SocketFolder(const SocketFolder&) = delete;
  SocketFolder& operator=(const SocketFolder&) = delete;
  std::string socket() const { return path_ + "/socket"; }

 private:
  std::string path_ = "/tmp/isthmus-fuzz-XXXXXX";
};

// An end of an attach connection that sends anything and reads whatever comes.
class RawEnd {
 public:
  explicit RawEnd(FileDescriptor socket) : socket_(std::move(socket)) {}
  static RawEnd connect(const std::string& path) {
    RawEnd end(FileDescriptor(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
    ISTHMUS_ASSERT(
        ::connect(end.socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
    return end;
  }

  // What does not fit the socket is lost. `descriptor`: goes along; -1: none.
  void send(std::span<const std::byte> bytes, int descriptor = -1) {
    iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
    alignas(cmsghdr) std::byte control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    if (descriptor >= 0) {
      message.msg_control = control;
      message.msg_controllen = sizeof(control);
      auto* const head = CMSG_FIRSTHDR(&message);
      head->cmsg_level = SOL_SOCKET;
      head->cmsg_type = SCM_RIGHTS;
      head->cmsg_len = CMSG_LEN(sizeof(int));
      std::memcpy(CMSG_DATA(head), &descriptor, sizeof(int));
    }
    (void)!::sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  }

  // All that has come; descriptors are kept in `memory`.
  void read() {
    std::array<std::byte, 4096> buffer;
    for (;;) {
      iovec part{buffer.data(), buffer.size()};
      alignas(cmsghdr) std::byte control[CMSG_SPACE(sizeof(int))] = {};
      msghdr message{};
      message.msg_iov = &part;
      message.msg_iovlen = 1;
      message.msg_control = control;
      message.msg_controllen = sizeof(control);
      const auto got = ::recvmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
      if (got <= 0) {
        closed = got == 0 || errno == ECONNRESET;
        return;
      }
      received.insert(received.end(), buffer.begin(), buffer.begin() + got);
      if (const auto* head = CMSG_FIRSTHDR(&message); head != nullptr) {
        int descriptor = -1;
        std::memcpy(&descriptor, CMSG_DATA(head), sizeof(int));
        memory = FileDescriptor(descriptor);
      }
    }
  }

  // Of what has come: the next whole message.
  std::optional<std::pair<attach::Kind, Bytes>> next() {
    if (received.size() < attach::kHeaderBytes) return std::nullopt;
    const auto header = attach::read_header(std::span(received).first(attach::kHeaderBytes));
    const auto end = attach::kHeaderBytes + header.body_bytes;
    if (received.size() < end) return std::nullopt;
    const auto front = received.begin();
    std::pair message(
        header.kind, Bytes(front + attach::kHeaderBytes, front + static_cast<std::ptrdiff_t>(end)));
    received.erase(front, front + static_cast<std::ptrdiff_t>(end));
    return message;
  }

  Bytes received;
  FileDescriptor memory;
  bool closed = false;

 private:
  FileDescriptor socket_;
};

// A body with the header that belongs to it; the first byte of `bytes` is the kind.
inline Bytes framed(std::span<const std::byte> bytes) {
  if (bytes.empty()) return {};
  ByteWriter body;
  body.raw(bytes.subspan(1));
  return attach::finish_frame(static_cast<attach::Kind>(bytes[0]), std::move(body));
}
template <class Message>
Bytes unframed(const Message& message) {
  ByteWriter body;
  body.put(Message::kind);
  message.write(body);
  return body.take();
}

}  // namespace isthmus::inter
