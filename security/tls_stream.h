// TlsStream: one end of a TLS 1.3 connection over a TCP socket, which never waits. Each end shows
// one Ed25519 key and believes nothing of the other but its key: the certificate around it is form.
// Whose keys may come, sockets, time limits and what the bytes mean are the caller's.
//
// AES-256-GCM, or ChaCha20-Poly1305 where one end has no instructions for AES; X25519; no earlier
// version, no resumption, no tickets, no early data. security/HANDSHAKE.md draws it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "base/result.h"
#include "security/keys.h"

struct ssl_st;
struct ssl_ctx_st;

namespace isthmus::security {

// An end that has sealed this much with one key takes the next (RFC 8446, 5.5 allows more
// than five times that).
inline constexpr std::uint64_t kTlsKeyBytesMax = std::uint64_t{64} << 30;

// One record, and what sealing adds to it.
inline constexpr std::size_t kTlsRecordBytesMax = 16384;
inline constexpr std::size_t kTlsRecordOverhead = 5 + 1 + 16;

// The key that this end shows, for all its connections. Any thread.
class TlsContext {
 public:
  // `seed`: the 32 secret bytes of an Ed25519 key. OpenSSL keeps its own copy for as long as the
  // context or a stream of it lives: in locked, guarded memory (its secure heap), wiped when freed.
  static Result<TlsContext> make(std::span<const std::byte> seed,
                                 std::uint64_t key_bytes_max = kTlsKeyBytesMax);

 private:
  friend class TlsStream;
  struct Free {
    void operator()(ssl_ctx_st* context) const;
  };
  TlsContext(std::unique_ptr<ssl_ctx_st, Free> context, std::uint64_t key_bytes_max)
      : context_(std::move(context)), key_bytes_max_(key_bytes_max) {}

  std::unique_ptr<ssl_ctx_st, Free> context_;
  std::uint64_t key_bytes_max_;
};

enum class TlsRole { dialing, listening };

// What the socket must be before the call is repeated; `nothing`: the call did something.
enum class TlsWants { nothing, read, write };

// One thread at a time. Any error ends the stream: nothing more may be asked of it.
class TlsStream {
 public:
  // Whether a peer with this key may connect. Asked once, before the peer has proven that the key
  // is its own; handshake() fails if it has not.
  using Admits = std::function<bool(const PublicKey&)>;

  // `socket`: connected, non-blocking, and open for as long as the stream lives; the caller's.
  static Result<std::unique_ptr<TlsStream>> make(const TlsContext& context, TlsRole role,
                                                 int socket, Admits admits);
  ~TlsStream();
  TlsStream(const TlsStream&) = delete;
  TlsStream& operator=(const TlsStream&) = delete;

  // Errors: unauthenticated (its key is not admitted, or not its own), bad_frame (no TLS 1.3 as we
  // speak it), closed. At the dialing end it is done before the other has judged our key: the first
  // read() tells.
  Result<TlsWants> handshake();
  // After handshake().
  const PublicKey& peer() const { return *peer_; }

  struct Moved {
    std::size_t bytes = 0;
    TlsWants wants = TlsWants::nothing;
  };
  // Bytes of one record at most. Errors: closed (the other end, or the network), unauthenticated
  // (the other end refuses our key), bad_frame (what came was not sealed by the other end, or its
  // key changes without end).
  Result<Moved> read(std::span<std::byte> into);
  // Seals and sends one record at most. Whoever is told to wait comes back with the same bytes.
  // `more`: others follow at once, so that the kernel may fill its segments.
  Result<Moved> write(std::span<const std::byte> bytes, bool more);

  // On the socket, with everything that TLS adds.
  std::uint64_t bytes_sent() const { return bytes_sent_; }
  std::uint64_t bytes_received() const { return bytes_received_; }

 private:
  friend struct TlsCallbacks;
  struct Free {
    void operator()(ssl_st* ssl) const;
  };
  TlsStream(TlsRole role, int socket, Admits admits, std::uint64_t key_bytes_max)
      : role_(role), socket_(socket), admits_(std::move(admits)), key_bytes_max_(key_bytes_max) {}

  Result<TlsWants> wants_or_error(int status);
  bool judge(const PublicKey& key);
  bool plausible_hello(std::span<const std::byte> received);
  bool changes_keys_too_often() const;

  const TlsRole role_;
  const int socket_;
  Admits admits_;
  const std::uint64_t key_bytes_max_;
  std::optional<PublicKey> shown_;  // not proven
  std::optional<PublicKey> peer_;
  bool refused_ = false;
  bool ended_ = false;  // the other end said so
  int socket_error_ = 0;
  bool more_ = false;
  bool write_pending_ = false;
  std::array<std::byte, 9> first_bytes_{};
  std::size_t first_bytes_known_ = 0;
  std::uint64_t bytes_sent_ = 0;
  std::uint64_t bytes_received_ = 0;
  std::uint64_t sealed_ = 0;  // with the present key
  std::uint64_t opened_ = 0, keys_received_ = 0;
  std::unique_ptr<ssl_st, Free> ssl_;
};

}  // namespace isthmus::security
