#include "inter/socket_check.h"

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/ip/address.hpp>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <future>
#include <memory>
#include <system_error>
#include <thread>
#include <utility>

#include "base/assert.h"
#include "inter/zap_handler.h"
#include "inter/zmq_socket.h"
#include "security/tls_stream.h"

namespace isthmus::inter {

namespace {

constexpr Nanoseconds kOwnAddressTimeout = kSecond;

std::array<std::byte, 32> decode_z85(const char* text) {
  std::array<std::byte, 32> bytes;
  ISTHMUS_ASSERT(zmq_z85_decode(reinterpret_cast<std::uint8_t*>(bytes.data()), text) != nullptr);
  return bytes;
}

std::optional<ProbeOutcome> outcome_of(int event) {
  switch (event) {
    case ZMQ_EVENT_HANDSHAKE_SUCCEEDED:
      return ProbeOutcome::accepted;
    case ZMQ_EVENT_HANDSHAKE_FAILED_AUTH:
      return ProbeOutcome::refused_key;
    case ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL:
      return ProbeOutcome::refused_protocol;
    case ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL:
    case ZMQ_EVENT_DISCONNECTED:
      return ProbeOutcome::closed;
    case ZMQ_EVENT_CLOSED:
      return ProbeOutcome::unreachable;
  }
  return std::nullopt;
}

// Silence proves nothing, so nothing is served; but another start may find a machine less busy.
Error unsafe(const std::string& endpoint, std::string_view who, ProbeOutcome expected,
             ProbeOutcome outcome) {
  if (outcome == ProbeOutcome::silent)
    return {
        ErrorCode::timeout,
        fmt::format("refusing to serve yet: on {}, {} should have been {}, and got no answer in "
                    "time; this machine may be too busy, or keep connections to itself away",
                    endpoint, who, to_string(expected))};
  return {ErrorCode::unauthenticated,
          fmt::format("refusing to serve: on {}, {} should have been {}, but was {}", endpoint, who,
                      to_string(expected), to_string(outcome))};
}

}  // namespace

std::string_view to_string(ProbeOutcome outcome) {
  switch (outcome) {
    case ProbeOutcome::accepted:
      return "accepted";
    case ProbeOutcome::refused_key:
      return "refused by key";
    case ProbeOutcome::refused_protocol:
      return "refused by protocol";
    case ProbeOutcome::closed:
      return "closed";
    case ProbeOutcome::unreachable:
      return "unreachable";
    case ProbeOutcome::silent:
      return "silent";
  }
  return "?";
}

CurveKeyPair make_curve_key_pair() {
  char public_text[41];
  char secret_text[41];
  ISTHMUS_ASSERT(zmq_curve_keypair(public_text, secret_text) == 0);
  CurveKeyPair pair;
  pair.public_key.bytes = decode_z85(public_text);
  pair.secret_key = decode_z85(secret_text);
  ::explicit_bzero(secret_text, sizeof secret_text);
  return pair;
}

Result<ProbeOutcome> probe_socket(const std::string& endpoint, ProbeAs mechanism,
                                  const security::CurveKey& server, const CurveKeyPair& own,
                                  Nanoseconds timeout) {
  ISTHMUS_TRY(const auto context, ZmqContext::make(1, 8));
  ISTHMUS_TRY(auto socket, ZmqSocket::open(*context, ZMQ_DEALER));
  ISTHMUS_CHECK(socket.set(ZMQ_RECONNECT_IVL, -1));
  ISTHMUS_CHECK(socket.set(ZMQ_IPV6, endpoint.find('[') != std::string::npos ? 1 : 0));
  switch (mechanism) {
    case ProbeAs::null:
      break;
    case ProbeAs::plain:
      ISTHMUS_CHECK(socket.set(ZMQ_PLAIN_USERNAME, "probe"));
      ISTHMUS_CHECK(socket.set(ZMQ_PLAIN_PASSWORD, "probe"));
      break;
    case ProbeAs::curve:
      ISTHMUS_CHECK(use_curve_client(socket, server, own.public_key, own.secret_key));
      break;
  }
  ISTHMUS_TRY(auto monitor, SocketMonitor::make(*context, socket, ZMQ_EVENT_ALL));
  ISTHMUS_CHECK(socket.connect(endpoint));

  const auto clock = make_system_clock();
  const auto deadline = clock->now() + timeout;
  auto outcome = ProbeOutcome::silent;
  while (outcome == ProbeOutcome::silent && clock->now() < deadline) {
    zmq_pollitem_t item{monitor.socket().get(), 0, ZMQ_POLLIN, 0};
    const auto wait_ms = (deadline - clock->now()) / kMillisecond + 1;
    zmq_poll(&item, 1, static_cast<long>(std::max<Nanoseconds>(wait_ms, 0)));
    while (const auto event = monitor.next())
      if (const auto known = outcome_of(event->event)) {
        outcome = *known;
        break;
      }
  }
  monitor.close();
  socket.close();
  return outcome;
}

Result<void> check_listening_socket(const std::string& endpoint, const security::CurveKey& server,
                                    const CurveKeyPair& listed, Nanoseconds timeout) {
  struct Probe {
    ProbeAs mechanism;
    CurveKeyPair key;
    std::string_view who;
    ProbeOutcome expected;
  };
  const Probe probes[] = {
      {ProbeAs::curve, make_curve_key_pair(), "a key of no gateway", ProbeOutcome::refused_key},
      {ProbeAs::curve, listed, "a listed key", ProbeOutcome::accepted},
      {ProbeAs::null, {}, "a client without a key", ProbeOutcome::refused_protocol},
      {ProbeAs::plain, {}, "a client with a password", ProbeOutcome::refused_protocol},
  };
  const auto clock = make_system_clock();
  const auto deadline = clock->now() + timeout;
  for (const auto& probe : probes) {
    ISTHMUS_TRY(const auto outcome,
                probe_socket(endpoint, probe.mechanism, server, probe.key,
                             std::max<Nanoseconds>(deadline - clock->now(), 0)));
    // Who notices first that the mechanisms differ ends the connection: us or the socket.
    const bool as_good =
        probe.expected == ProbeOutcome::refused_protocol && outcome == ProbeOutcome::closed;
    if (outcome != probe.expected && !as_good)
      return unsafe(endpoint, probe.who, probe.expected, outcome);
  }
  return {};
}

namespace {

// A non-blocking socket, and the time that one probe has.
class ProbeConnection {
 public:
  static Result<ProbeConnection> open(const TcpAddress& address, Nanoseconds timeout) {
    addrinfo hints{};
    hints.ai_family = AF_UNSPEC;
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
    addrinfo* found = nullptr;
    const auto port = std::to_string(address.port);
    if (::getaddrinfo(address.host.c_str(), port.c_str(), &hints, &found) != 0)
      return Error{ErrorCode::invalid_argument,
                   fmt::format("'{}' is no address in numbers", address.host)};
    const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owned(found, &::freeaddrinfo);
    ProbeConnection probe(timeout);
    probe.socket_ =
        ::socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP);
    // A machine without IPv6 has no way there, as one without a route. What it lacks for the
    // moment, such as descriptors, tells nothing of the address: another start may know.
    if (probe.socket_ < 0 && errno == EAFNOSUPPORT) {
      probe.connected_ = false;
      return probe;
    }
    if (probe.socket_ < 0) return error_of_errno(errno, "no socket");
    if (::connect(probe.socket_, found->ai_addr, found->ai_addrlen) != 0 && errno != EINPROGRESS)
      probe.connected_ = false;
    int failed = 0;
    socklen_t size = sizeof failed;
    if (!probe.wait(POLLOUT) ||
        ::getsockopt(probe.socket_, SOL_SOCKET, SO_ERROR, &failed, &size) != 0 || failed != 0)
      probe.connected_ = false;
    return probe;
  }
  ProbeConnection(ProbeConnection&& other) noexcept
      : socket_(std::exchange(other.socket_, -1)),
        connected_(other.connected_),
        clock_(std::move(other.clock_)),
        deadline_(other.deadline_) {}
  ~ProbeConnection() {
    if (socket_ >= 0) ::close(socket_);
  }

  int descriptor() const { return socket_; }
  bool connected() const { return connected_; }
  // False: the time is up.
  bool wait(short events) {
    pollfd polled{socket_, events, 0};
    const auto left = std::max<Nanoseconds>(deadline_ - clock_->now(), 0);
    return ::poll(&polled, 1, static_cast<int>(left / kMillisecond + 1)) > 0;
  }

 private:
  explicit ProbeConnection(Nanoseconds timeout)
      : clock_(make_system_clock()), deadline_(clock_->now() + timeout) {}

  int socket_ = -1;
  bool connected_ = true;
  std::unique_ptr<Clock> clock_;
  Nanoseconds deadline_;
};

// A hello of TLS 1.2 alone, with one cipher.
constexpr auto kTls12Hello = [] {
  std::array<unsigned char, 50> hello{0x16, 3, 1, 0, 45, 1, 0, 0, 41, 3, 3};
  hello[45] = 2;
  hello[46] = 0xc0;
  hello[47] = 0x2c;
  hello[48] = 1;
  return hello;
}();

ProbeOutcome probe_with_bytes(ProbeConnection& probe, std::span<const std::byte> bytes) {
  if (::send(probe.descriptor(), bytes.data(), bytes.size(), MSG_NOSIGNAL) < 0)
    return ProbeOutcome::closed;
  Bytes answer;
  for (;;) {
    if (!probe.wait(POLLIN)) return ProbeOutcome::silent;
    std::byte some[256];
    const auto got = ::recv(probe.descriptor(), some, sizeof some, 0);
    if (got > 0) answer.insert(answer.end(), some, some + got);
    if (got <= 0 && !(got < 0 && errno == EAGAIN)) break;
    if (answer.size() > 7) return ProbeOutcome::accepted;  // more than an alert: it goes along
  }
  const bool alert = answer.size() == 7 && answer[0] == std::byte{21};
  return alert ? ProbeOutcome::refused_protocol : ProbeOutcome::closed;
}

Result<ProbeOutcome> probe_with_tls(ProbeConnection& probe, const security::PublicKey& server,
                                    const security::SigningKey& own) {
  ISTHMUS_TRY(const auto context, security::TlsContext::make(own.seed()));
  ISTHMUS_TRY(const auto stream,
              security::TlsStream::make(context, security::TlsRole::dialing, probe.descriptor(),
                                        [&](const auto& key) { return key == server; }));
  const auto outcome_of_error = [](const Error& error) {
    return error.code == ErrorCode::unauthenticated ? ProbeOutcome::refused_key
           : error.code == ErrorCode::closed        ? ProbeOutcome::closed
                                                    : ProbeOutcome::refused_protocol;
  };
  bool up = false;
  for (;;) {
    security::TlsWants wants{};
    if (!up) {
      const auto done = stream->handshake();
      // Whoever is on the way can say so.
      if (!done)
        return done.error().code == ErrorCode::unauthenticated ? ProbeOutcome::refused_protocol
                                                               : outcome_of_error(done.error());
      wants = *done;
      up = wants == security::TlsWants::nothing;
      if (up) continue;
    } else {
      // The listening end speaks once it has judged our key.
      std::byte word;
      const auto read = stream->read(std::span(&word, 1));
      if (!read) return outcome_of_error(read.error());
      if (read->bytes > 0) return ProbeOutcome::accepted;
      wants = read->wants;
    }
    if (!probe.wait(wants == security::TlsWants::read ? POLLIN : POLLOUT))
      return ProbeOutcome::silent;
  }
}

}  // namespace

Result<ProbeOutcome> probe_bulk_socket(const TcpAddress& address, ProbeBulkAs mechanism,
                                       const security::PublicKey& server,
                                       const security::SigningKey& own, Nanoseconds timeout) {
  ISTHMUS_TRY(auto probe, ProbeConnection::open(address, timeout));
  if (!probe.connected()) return ProbeOutcome::unreachable;
  switch (mechanism) {
    case ProbeBulkAs::tls:
      return probe_with_tls(probe, server, own);
    case ProbeBulkAs::tls_1_2:
      return probe_with_bytes(probe, std::as_bytes(std::span(kTls12Hello)));
    case ProbeBulkAs::plaintext:
      // A message of eight bytes, as the lane would carry it.
      return probe_with_bytes(probe, bytes_of(std::string_view("\x08\0\0\0messages", 12)));
  }
  return ProbeOutcome::silent;
}

Result<void> check_bulk_socket(const TcpAddress& address, const security::PublicKey& server,
                               const security::SigningKey& listed, Nanoseconds timeout) {
  struct Probe {
    ProbeBulkAs mechanism;
    const security::SigningKey& key;
    std::string_view who;
    ProbeOutcome expected;
  };
  const auto stranger = security::SigningKey::generate();
  const Probe probes[] = {
      {ProbeBulkAs::tls, stranger, "a key of no site", ProbeOutcome::refused_key},
      {ProbeBulkAs::tls, listed, "a listed key", ProbeOutcome::accepted},
      {ProbeBulkAs::tls_1_2, stranger, "TLS 1.2", ProbeOutcome::refused_protocol},
      {ProbeBulkAs::plaintext, stranger, "a client without TLS", ProbeOutcome::refused_protocol},
  };
  const auto clock = make_system_clock();
  const auto deadline = clock->now() + timeout;
  for (const auto& probe : probes) {
    ISTHMUS_TRY(const auto outcome,
                probe_bulk_socket(address, probe.mechanism, server, probe.key,
                                  std::max<Nanoseconds>(deadline - clock->now(), 0)));
    const bool as_good =
        probe.expected == ProbeOutcome::refused_protocol && outcome == ProbeOutcome::closed;
    if (outcome != probe.expected && !as_good)
      return unsafe(address.endpoint(), probe.who, probe.expected, outcome);
  }
  return {};
}

namespace {

// The C library's look-up cannot be given up: its thread ends when it does.
Result<std::string> look_up_soon(const HostNames::LookUp& look_up, const std::string& host) {
  boost::system::error_code no_number;
  boost::asio::ip::make_address(host, no_number);
  if (!no_number.failed()) return host;
  std::promise<Result<NumericHosts>> promise;
  auto found = promise.get_future();
  try {
    std::thread([look_up, host, promise = std::move(promise)]() mutable {
      promise.set_value(look_up(host));
    }).detach();
  } catch (const std::system_error& error) {
    return Error{ErrorCode::unavailable, error.what()};
  }
  if (found.wait_for(std::chrono::nanoseconds(kOwnAddressTimeout)) != std::future_status::ready)
    return Error{ErrorCode::timeout, fmt::format("no address for {} in time", host)};
  ISTHMUS_TRY(const auto hosts, found.get());
  return hosts.front();
}

}  // namespace

Result<ProbeOutcome> check_own_address(const TcpAddress& bulk, const security::PublicKey& server,
                                       const security::SigningKey& listed,
                                       const HostNames::LookUp& look_up) {
  const auto host = look_up_soon(look_up, bulk.host);
  if (!host) return ProbeOutcome::unreachable;
  const auto outcome =
      probe_bulk_socket({*host, bulk.port}, ProbeBulkAs::tls, server, listed, kOwnAddressTimeout);
  // A scope that this machine has not: no way there either.
  if (!outcome && outcome.error().code == ErrorCode::invalid_argument)
    return ProbeOutcome::unreachable;
  if (outcome && *outcome == ProbeOutcome::refused_key)
    return Error{
        ErrorCode::mismatch,
        fmt::format("another live process with this site's identity answers at {}, the bulk lane "
                    "of the site's address in the roster: stop it first, or do not start this one",
                    bulk.endpoint())};
  return outcome;
}

}  // namespace isthmus::inter
