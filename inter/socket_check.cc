#include "inter/socket_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "base/assert.h"
#include "inter/zap_handler.h"
#include "inter/zmq_socket.h"

namespace isthmus::inter {

namespace {

constexpr Nanoseconds kCheckTimeout = 2 * kSecond;  // of all probes together
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
                                    const CurveKeyPair& listed) {
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
  const auto deadline = clock->now() + kCheckTimeout;
  for (const auto& probe : probes) {
    ISTHMUS_TRY(const auto outcome,
                probe_socket(endpoint, probe.mechanism, server, probe.key,
                             std::max<Nanoseconds>(deadline - clock->now(), 0)));
    // Who notices first that the mechanisms differ ends the connection: us or the socket.
    const bool as_good =
        probe.expected == ProbeOutcome::refused_protocol && outcome == ProbeOutcome::closed;
    if (outcome != probe.expected && !as_good)
      return Error{ErrorCode::unauthenticated,
                   fmt::format("refusing to serve: on {}, {} should have been {}, but was {}",
                               endpoint, probe.who, to_string(probe.expected), to_string(outcome))};
  }
  return {};
}

Result<ProbeOutcome> check_own_address(const std::string& endpoint,
                                       const security::CurveKey& server,
                                       const CurveKeyPair& listed) {
  ISTHMUS_TRY(const auto outcome,
              probe_socket(endpoint, ProbeAs::curve, server, listed, kOwnAddressTimeout));
  if (outcome == ProbeOutcome::refused_key)
    return Error{
        ErrorCode::mismatch,
        fmt::format("another live process with this site's identity answers at {}, the "
                    "site's address in the roster: stop it first, or do not start this one",
                    endpoint)};
  return outcome;
}

}  // namespace isthmus::inter
