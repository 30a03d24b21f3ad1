// ZapHandler: decides which CURVE keys may connect to the listening sockets of one context (ZeroMQ
// Authentication Protocol, RFC 27), on a thread of its own, so that it answers while the loop is
// busy. A listed key gets its gateway as "User-Id", which is the only identity the wire believes.
//
// Fails closed: whatever is not a well-formed CURVE request of our domain with a listed key gets
// 400; with the handler gone, sockets set up by require_curve_server() refuse everybody. Made
// before any bind.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "base/event_log.h"
#include "base/result.h"
#include "inter/log_pace.h"
#include "inter/wire.h"
#include "inter/zmq_socket.h"
#include "security/keys.h"

namespace isthmus::inter {

class ZapHandler {
 public:
  static Result<std::unique_ptr<ZapHandler>> start(const ZmqContext& context, const Clock& clock,
                                                   EventLog& log);
  ~ZapHandler();  // ends the thread; from then on nobody is let in

  // From any thread; for handshakes that come after.
  void list(const security::CurveKey& key, std::string user_id);
  void unlist(const security::CurveKey& key);
  // While this process tries its own sockets, refusals are no news.
  void log_refusals(bool on) { quiet_ = !on; }
  // Takes one of the connections that were refused for their key; false: there is none left.
  // Whoever sees connections end learns thereby which of them are in the log already.
  bool take_refused();

 private:
  ZapHandler(const Clock& clock, EventLog& log) : clock_(clock), log_(log) {}
  void serve();
  void answer();
  std::optional<std::string> user_of(const std::vector<ZmqMessage>& request, std::string& refusal);
  void log_refusal(const std::string& address, const std::string& reason);

  const Clock& clock_;
  EventLog& log_;
  std::mutex mutex_;  // guards users_
  std::map<security::CurveKey, std::string> users_;
  ZmqSocket socket_;       // the thread's, once it runs
  ZmqSocket stop_here_;    // the thread's end of a pair: any message ends it
  ZmqSocket stop_sender_;  // ours
  LogPace refusals_{kRefusedKeysApart, kRefusedKeysAtOnce};
  std::atomic<std::uint64_t> refused_ = 0;  // and not taken yet
  std::atomic<bool> quiet_ = false;
  std::thread thread_;
};

// "site/index", and back; nothing when the text is anything else.
std::string user_id_of(GatewayId gateway);
std::optional<GatewayId> gateway_of_user_id(std::string_view user_id);

// Makes a socket refuse everything but CURVE clients that this process' ZapHandler lets in, also
// when there is none. `secret_key`: 32 bytes.
Result<void> require_curve_server(ZmqSocket& socket, std::span<const std::byte> secret_key);
Result<void> use_curve_client(ZmqSocket& socket, const security::CurveKey& server,
                              const security::CurveKey& public_key,
                              std::span<const std::byte> secret_key);

}  // namespace isthmus::inter
