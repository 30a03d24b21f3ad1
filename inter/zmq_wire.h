// The Wire over TCP: control lanes are CURVE connections of ZeroMQ, bulk lanes TLS 1.3 connections
// of our own, and who a peer is follows from its keys alone.
//
//     gateway 2 (dials)                       gateway 1 (listens)
//     DEALER        ──────── TCP, CURVE ───▶ ROUTER,       port P      ◀── other gateways
//                                                  │ CURVE key listed? which gateway?
//                                            ZapHandler (own thread, fails closed)
//     TlsDialer     ──────── TCP, TLS ─────▶ TlsListener,  port P+1    ◀── other gateways
//        threads of their own (TlsLane)            │ identity of a listed site? its gateway?
//
// Who dials: the gateway with the higher id dials the lower one if that has an address, else the
// lower one dials. Keys are listed either way, so both work while rosters differ.
//
// The control lane is ZeroMQ's, since its handshake and queues are what small messages need; bulk
// is not, since CURVE costs more than all else that is done to a chunk (docs/rationale.md).
//
// Rules of the control lane, each with a trap of libzmq behind it that is a test
// (tests/inter/zmq_strangers_test.cc, zmq_wire_test.cc):
// - dialing sockets never reconnect by themselves: a failed one is closed and a new one made, since
//   libzmq gives up for good after some failures (a bad MAC, a refused key);
// - a connection is up at the listening end with its first message. The dialing end sends one by
//   itself (two empty parts, which are a heartbeat later on; anything else in several parts is a
//   violation), so both ends learn of a connection within a round trip;
// - a connection is down when its TCP connection ends, or fails: by the lane's heartbeats, which
//   also notice a process that is stopped, and not by ZeroMQ's (LanePulse says why); or by TCP's
//   own timeout on unsent or unacknowledged bytes (progress, however slow, keeps it), where the
//   peer is still heard;
// - a peer that chose its own routing id is refused: libzmq lets it take another's place;
// - what has come waits with us (Inbox), not in a queue of libzmq's that can be full: a connection
//   that is reset while its queue is full may end the process.
//
// Rules of the bulk lane (tests/inter/bulk_lane_test.cc; inter/tls_connection.h draws it):
// - both ends are up once each has proven its key and said which gateway of its site it is;
// - a connection is down when its TCP connection ends, or fails: by TCP's own timeout, or by TCP's
//   own probes on an idle one. A process that is stopped is for the control lane to notice: behind
//   a full queue of chunks a heartbeat would cut every slow link;
// - memory for a message is set aside once its length has come, of authenticated peers alone, and a
//   few messages each way are all that waits.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "base/event_log.h"
#include "base/result.h"
#include "inter/host_names.h"
#include "inter/loop.h"
#include "inter/wire.h"
#include "security/identity.h"
#include "security/keys.h"
#include "security/tls_stream.h"

namespace isthmus::inter {

struct ZmqPeer {
  GatewayId id;
  std::string name;              // for people
  security::CurveKey key;        // both from the roster: of this gateway,
  security::PublicKey identity;  // and of its site
  std::string address = {};      // "host:port" of its control lane; "": it only dials
};

struct ZmqWireOptions {
  GatewayId self;
  // The caller's, who outlives the wire. libzmq copies the CURVE secret into each socket, OpenSSL
  // the identity's seed into its secure heap.
  const security::Identity* identity = nullptr;
  // "host:port" of the control lane, bulk is port + 1; host "*": all interfaces, IPv6 and IPv4.
  // "": only dials.
  std::string listen;
  // What the roster gives peers to dial, "host:port" of the control lane; "": nobody dials us.
  std::string own_address;
  std::vector<ZmqPeer> peers;      // without this gateway
  HostNames::LookUp look_up_host;  // of all names; none: the C library's

  // How TCP reacts to loss, as in tcp_congestion_control; "": the system's choice. With 0.1 % loss
  // at 100 ms, bbr fills a line of which cubic uses a hundredth. Kept as it is, and said so in the
  // log, where the system does not allow it (tcp_allowed_congestion_control).
  std::string congestion_control = "bbr";

  // The bulk lane yields to whoever else uses the line (inter/polite_rate.h).
  bool polite = false;

  // Of the bulk lane with each peer, at most (Wire::widen).
  std::uint32_t bulk_connections_max = 128;
  // Above it, one of which nothing was heard for so long makes room for a newer one: TCP asks an
  // idle one after two seconds, and each second then.
  Nanoseconds silent_after = 4 * kSecond;
  int io_threads = 1;  // of the bulk lane: they seal, open and move bytes
  // Messages in flight between the loop and the lane's threads, per connection, of bulk in either
  // direction. They bound memory: at most (queue + 1) messages of the lane's size wait to be sent,
  // or to be taken. Control messages that came and wait: Inbox::kBytesMax.
  int control_queue = 64;
  int bulk_queue = 4;
  Nanoseconds heartbeat_interval = 2 * kSecond;
  // Without a byte from the peer; and where its bulk comes meanwhile. On a line that has become
  // slow control waits behind that, for as long as the queue on the way is.
  Nanoseconds control_timeout = 6 * kSecond;
  Nanoseconds control_timeout_beside_bulk = 20 * kSecond;
  Nanoseconds bulk_timeout = 60 * kSecond;  // silence within a message
  // Of a bulk connection: bytes, or probes of an idle one, that TCP cannot get acknowledged. One
  // that TCP asks for longer it asks ever more seldom, also once the line is back.
  Nanoseconds stall_timeout = 8 * kSecond;
  Nanoseconds connect_timeout = 2 * kSecond;  // less where a peer was reached sooner just before
  Nanoseconds handshake_timeout = 5 * kSecond;
  Nanoseconds dial_timeout = 10 * kSecond;  // from dialing to the end of the handshake
  // Between attempts: doubles while the peer answers and refuses. Silence is tried at once again,
  // it took its time already.
  Nanoseconds redial_delay_min = 200 * kMillisecond;
  Nanoseconds redial_delay_max = 5 * kSecond;
  std::uint64_t bulk_key_bytes_max =
      security::kTlsKeyBytesMax;  // then each direction's key changes

  // For people; also of one that is not listed.
  std::string name_of(GatewayId peer) const {
    const auto found = std::ranges::find(peers, peer, &ZmqPeer::id);
    return found != peers.end()
               ? found->name
               : "gateway " + std::to_string(peer.site) + "/" + std::to_string(peer.index);
  }
};

// Listens, then checks each listening socket and who answers at our own address
// (inter/socket_check.h), then dials; blocks for a few milliseconds, longer on a busy machine.
// Raises the process' limit of open descriptors to what is allowed, since idle strangers must not
// exhaust it. Errors: invalid_argument (an address, a key), in_use (the port), mismatch (another
// live process has our identity), unauthenticated (a socket let a stranger in, or kept a listed key
// out), timeout (the machine is too busy to tell), permission, io.
//
// Destroyed before the loop, and never from within one of its own calls of the receiver.
Result<std::unique_ptr<Wire>> make_zmq_wire(Loop& loop, EventLog& log,
                                            const ZmqWireOptions& options);

// Bytes that a message takes on the control lane: with CURVE's box (8 name, 8 nonce, 16
// authenticator, 1 flags) and ZMTP's frame header. Wire::bytes_sent and bytes_received count these,
// and per connection kZmqHandshakeBytes…; left out are heartbeats (70 bytes per interval and
// direction). On the bulk lane they count what passes the socket, so that a message of n bytes
// takes n + 4 and 22 for each 16 KiB of that, and a change of keys 27. What TCP and IP add is left
// out.
constexpr std::size_t zmq_wire_bytes(std::size_t message_bytes) {
  const std::size_t boxed = message_bytes + 33;
  return boxed + (boxed > 255 ? 9 : 2);
}
// The same on the bulk lane.
constexpr std::size_t tls_wire_bytes(std::size_t message_bytes) {
  constexpr std::size_t kLength = 4, kRecord = 16 << 10, kRecordFraming = 22;
  const std::size_t bytes = message_bytes + kLength;
  return bytes + kRecordFraming * ((bytes + kRecord - 1) / kRecord);
}
// Greeting, HELLO and INITIATE of the dialing end, with its first message; greeting, WELCOME and
// READY of the listening end.
inline constexpr std::size_t kZmqHandshakeBytesDialing = 64 + 202 + 301 + 2 * zmq_wire_bytes(0);
inline constexpr std::size_t kZmqHandshakeBytesListening = 64 + 170 + 67;

}  // namespace isthmus::inter
