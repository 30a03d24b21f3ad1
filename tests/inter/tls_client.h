// TlsClient: a program of somebody's that speaks TLS on the bulk lane, and waits for everything it
// does. Beside it, what gateways say there: which of its site it is, and messages with their
// length.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <span>

#include "inter/encoding.h"
#include "inter/wire.h"
#include "security/tls_stream.h"
#include "tests/inter/zmq_pair.h"

namespace isthmus::inter {

inline constexpr int kPatienceMs = 5000;

inline Bytes id_bytes(GatewayId id) { return ByteWriter().put(id.site).put(id.index).take(); }

inline Bytes frame(std::uint32_t size, std::size_t bytes) {
  return ByteWriter().put(size).raw(Bytes(bytes, std::byte{0x5a})).take();
}

class TlsClient {
 public:
  TlsClient(std::uint16_t port, std::span<const std::byte> seed, const security::PublicKey& server)
      : socket_(connect_tcp(port)), context_(*security::TlsContext::make(seed)) {
    ::fcntl(socket_, F_SETFL, ::fcntl(socket_, F_GETFL) | O_NONBLOCK);
    stream_ = *security::TlsStream::make(context_, security::TlsRole::dialing, socket_,
                                         [=](const auto& key) { return key == server; });
    for (;;) {
      const auto done = stream_->handshake();
      if (!done || *done == security::TlsWants::nothing) break;
      if (!wait(*done)) break;
    }
  }
  ~TlsClient() {
    stream_.reset();
    ::close(socket_);
  }

  // Until `size` bytes have come, or the end; nothing: silence.
  std::optional<Bytes> read(std::size_t size) {
    Bytes got;
    while (got.size() < size) {
      std::byte some[4096];
      const auto read =
          stream_->read(std::span(some).first(std::min(sizeof some, size - got.size())));
      if (!read) {
        ended_ = read.error();
        break;
      }
      got.insert(got.end(), some, some + read->bytes);
      if (read->wants != security::TlsWants::nothing && !wait(read->wants)) return std::nullopt;
    }
    return got;
  }
  bool write(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const auto sent = stream_->write(bytes, false);
      if (!sent || (sent->wants != security::TlsWants::nothing && !wait(sent->wants))) return false;
      bytes = bytes.subspan(sent->bytes);
    }
    return true;
  }
  // As a gateway does it.
  bool come_up(GatewayId self) {
    return read(8).value_or(Bytes()).size() == 8 && write(id_bytes(self));
  }
  // It was cut off within a moment.
  bool ended() {
    const auto got = read(1);
    return got && ended_.has_value();
  }
  const std::optional<Error>& why() const { return ended_; }

 private:
  bool wait(security::TlsWants wants) {
    pollfd polled{socket_, static_cast<short>(wants == security::TlsWants::read ? POLLIN : POLLOUT),
                  0};
    return ::poll(&polled, 1, kPatienceMs) > 0;
  }

  int socket_;
  security::TlsContext context_;
  std::unique_ptr<security::TlsStream> stream_;
  std::optional<Error> ended_;
};

}  // namespace isthmus::inter
