// Two gateways with real wires (BulkLane), of which the first one's bulk lane is to be reached by
// others as well.
#pragma once

#include <cstdint>

#include "inter/socket_check.h"
#include "security/signing_key.h"
#include "tests/inter/tls_client.h"
#include "tests/inter/zmq_pair.h"

namespace isthmus::inter {

class BulkLane : public ZmqPair {
 protected:
  std::uint16_t port() {
    return lane_address(*parse_tcp_address(world_.options(0).listen), Lane::bulk).port;
  }
  TcpAddress address() { return {"127.0.0.1", port()}; }
  const security::PublicKey& server() { return world_.identity(0).public_part().identity; }
  // Gateway 1's identity in somebody's hands.
  TlsClient listed_client() { return {port(), world_.identity(1).identity_seed(), server()}; }
  ProbeOutcome probe(ProbeBulkAs mechanism, const security::SigningKey& key) {
    return *probe_bulk_socket(address(), mechanism, server(), key, 2 * kSecond);
  }
};

}  // namespace isthmus::inter
