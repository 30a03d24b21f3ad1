// What a listening socket does with strangers, found out by being one: each probe dials it and
// watches its own handshake. Used at start-up, before a gateway serves, and by tests on running
// sites.
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/result.h"
#include "inter/host_names.h"
#include "inter/tcp_address.h"
#include "security/keys.h"
#include "security/signing_key.h"

namespace isthmus::inter {

struct CurveKeyPair {
  security::CurveKey public_key;
  std::array<std::byte, 32> secret_key{};
};
CurveKeyPair make_curve_key_pair();

enum class ProbeAs { null, plain, curve };

enum class ProbeOutcome {
  accepted,          // the handshake succeeded; on the bulk lane: and it was told who listens
  refused_key,       // the other end said so: HANDSHAKE_FAILED_AUTH, or, once it has proven who it
                     // is, TLS's bad_certificate
  refused_protocol,  // the handshake was called off: wrong mechanism, version, or no TLS
  closed,            // the connection ended without a word
  unreachable,
  silent,  // nothing within the time
};
std::string_view to_string(ProbeOutcome outcome);

// `server` and `own` are used with ProbeAs::curve. Waits; with sockets and a thread of its own.
Result<ProbeOutcome> probe_socket(const std::string& endpoint, ProbeAs mechanism,
                                  const security::CurveKey& server, const CurveKeyPair& own,
                                  Nanoseconds timeout);

inline constexpr Nanoseconds kCheckTimeout = 10 * kSecond;  // of all probes of one socket

// Connections of one check_listening_socket that the ZapHandler does not refuse: by the listed key,
// NULL and PLAIN.
inline constexpr int kProbesUnnamed = 3;

// A random key must be refused by the ZAP handler (silence is no refusal), `listed` must get
// through, NULL and PLAIN must not. Errors: unauthenticated, naming endpoint and fault; timeout, on
// a machine that is too busy to know. Waits, for milliseconds in health.
Result<void> check_listening_socket(const std::string& endpoint, const security::CurveKey& server,
                                    const CurveKeyPair& listed,
                                    Nanoseconds timeout = kCheckTimeout);

enum class ProbeBulkAs { tls, tls_1_2, plaintext };

// `server` and `own` are used with ProbeBulkAs::tls. Waits. Errors: invalid_argument, io.
Result<ProbeOutcome> probe_bulk_socket(const TcpAddress& address, ProbeBulkAs mechanism,
                                       const security::PublicKey& server,
                                       const security::SigningKey& own, Nanoseconds timeout);

// The same of a bulk lane's: a random key must be refused, `listed` must get through, TLS 1.2 and
// plaintext must be refused. Errors and waiting as above.
Result<void> check_bulk_socket(const TcpAddress& address, const security::PublicKey& server,
                               const security::SigningKey& listed,
                               Nanoseconds timeout = kCheckTimeout);

// Who answers at the address that the roster gives this gateway? Asked is its bulk lane: TLS proves
// who it is before it says anything else. `listed` is a key that only this process lets in, so
// another one that holds `server`'s secret key refuses it. Errors: mismatch (another live process
// has this identity), io. An address that does not lead back here is none: many a router does not
// let a site dial itself, or has IPv6, or a link, that its machines have not. Waits, a second at
// most for a name and for an answer each.
Result<ProbeOutcome> check_own_address(const TcpAddress& bulk, const security::PublicKey& server,
                                       const security::SigningKey& listed,
                                       const HostNames::LookUp& look_up);

}  // namespace isthmus::inter
