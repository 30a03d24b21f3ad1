#include "inter/zap_handler.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <charconv>

#include "base/assert.h"
#include "base/copy_to.h"

namespace isthmus::inter {

namespace {

constexpr std::string_view kZapEndpoint = "inproc://zeromq.zap.01";
constexpr std::string_view kDomain = "isthmus";
constexpr std::size_t kRequestPartsMax = 16;

// Hidden among the drafts of zmq.h, but part of every stock build: without it, a socket whose ZAP
// handler is missing accepts any client key.
#ifndef ZMQ_ZAP_ENFORCE_DOMAIN
constexpr int ZMQ_ZAP_ENFORCE_DOMAIN = 93;
#endif

}  // namespace

std::string user_id_of(GatewayId gateway) {
  return fmt::format("{}/{}", gateway.site, gateway.index);
}

std::optional<GatewayId> gateway_of_user_id(std::string_view user_id) {
  GatewayId gateway;
  const char* const end = user_id.data() + user_id.size();
  const auto site = std::from_chars(user_id.data(), end, gateway.site);
  if (site.ec != std::errc{} || site.ptr == end || *site.ptr != '/') return std::nullopt;
  const auto index = std::from_chars(site.ptr + 1, end, gateway.index);
  if (index.ec != std::errc{} || index.ptr != end) return std::nullopt;
  return gateway;
}

Result<void> require_curve_server(ZmqSocket& socket, std::span<const std::byte> secret_key) {
  ISTHMUS_ASSERT(secret_key.size() == 32);
  ISTHMUS_CHECK(socket.set(ZMQ_ZAP_DOMAIN, kDomain));
  ISTHMUS_CHECK(socket.set(ZMQ_ZAP_ENFORCE_DOMAIN, 1));
  ISTHMUS_CHECK(socket.set(ZMQ_CURVE_SERVER, 1));
  return socket.set(ZMQ_CURVE_SECRETKEY, secret_key);
}

Result<void> use_curve_client(ZmqSocket& socket, const security::CurveKey& server,
                              const security::CurveKey& public_key,
                              std::span<const std::byte> secret_key) {
  ISTHMUS_ASSERT(secret_key.size() == 32);
  ISTHMUS_CHECK(socket.set(ZMQ_CURVE_SERVERKEY, server.bytes));
  ISTHMUS_CHECK(socket.set(ZMQ_CURVE_PUBLICKEY, public_key.bytes));
  return socket.set(ZMQ_CURVE_SECRETKEY, secret_key);
}

Result<std::unique_ptr<ZapHandler>> ZapHandler::start(const ZmqContext& context, const Clock& clock,
                                                      EventLog& log) {
  static std::atomic<std::uint64_t> last{0};
  const auto stop_endpoint = fmt::format("inproc://isthmus.zap.stop.{}", ++last);
  std::unique_ptr<ZapHandler> handler(new ZapHandler(clock, log));
  ISTHMUS_TRY(handler->socket_, ZmqSocket::open(context, ZMQ_REP));
  ISTHMUS_CHECK(handler->socket_.bind(std::string(kZapEndpoint)));
  ISTHMUS_TRY(handler->stop_here_, ZmqSocket::open(context, ZMQ_PAIR));
  ISTHMUS_TRY(handler->stop_sender_, ZmqSocket::open(context, ZMQ_PAIR));
  ISTHMUS_CHECK(handler->stop_here_.bind(stop_endpoint));
  ISTHMUS_CHECK(handler->stop_sender_.connect(stop_endpoint));
  // Starting a thread is the fence that libzmq asks for when sockets change threads.
  handler->thread_ = std::thread([raw = handler.get()] { raw->serve(); });
  return handler;
}

ZapHandler::~ZapHandler() {
  if (!thread_.joinable()) return;
  ZmqMessage stop;
  stop_sender_.send(stop);
  thread_.join();
}

void ZapHandler::list(const security::CurveKey& key, std::string user_id) {
  const std::lock_guard lock(mutex_);
  users_[key] = std::move(user_id);
}

void ZapHandler::unlist(const security::CurveKey& key) {
  const std::lock_guard lock(mutex_);
  users_.erase(key);
}

void ZapHandler::serve() {
  for (;;) {
    zmq_pollitem_t items[] = {{socket_.get(), 0, ZMQ_POLLIN, 0},
                              {stop_here_.get(), 0, ZMQ_POLLIN, 0}};
    if (zmq_poll(items, 2, -1) < 0) {
      if (zmq_errno() == EINTR) continue;
      break;
    }
    if (items[1].revents != 0) break;
    if (items[0].revents != 0) answer();
  }
  socket_.close();
  stop_here_.close();
}

// Request: version, request id, domain, address, routing id, mechanism, credentials.
void ZapHandler::answer() {
  std::vector<ZmqMessage> request;
  for (bool more = true; more;) {
    ZmqMessage part;
    if (!socket_.receive(part)) return;
    more = part.more();
    if (request.size() < kRequestPartsMax) request.push_back(std::move(part));
  }
  std::string refusal;
  const auto user = user_of(request, refusal);
  if (!user) {
    ++refused_;
    log_refusal(request.size() > 3 ? std::string(request[3].text()) : std::string(), refusal);
  }

  const std::string request_id(request.size() > 1 ? request[1].text() : std::string_view());
  const std::string name = user.value_or(std::string());
  const std::string_view reply[] = {
      "1.0", request_id, user ? "200" : "400", user ? "OK" : "refused", name, ""};
  for (std::size_t i = 0; i < std::size(reply); ++i) {
    ZmqMessage part(reply[i]);
    if (socket_.send(part, i + 1 < std::size(reply)) != 0) return;
  }
}

bool ZapHandler::take_refused() {
  auto left = refused_.load();
  while (left > 0 && !refused_.compare_exchange_weak(left, left - 1)) {
  }
  return left > 0;
}

std::optional<std::string> ZapHandler::user_of(const std::vector<ZmqMessage>& request,
                                               std::string& refusal) {
  security::CurveKey key;
  if (request.size() != 7 || request[0].text() != "1.0" || request[2].text() != kDomain ||
      request[5].text() != "CURVE" || request[6].bytes().size() != key.bytes.size()) {
    refusal = "no CURVE request";
    return std::nullopt;
  }
  copy_to(request[6].bytes(), key.bytes.begin());
  const std::lock_guard lock(mutex_);
  const auto found = users_.find(key);
  if (found == users_.end()) {
    refusal = fmt::format("key {} is not in the roster", key.hex());
    return std::nullopt;
  }
  return found->second;
}

void ZapHandler::log_refusal(const std::string& address, const std::string& reason) {
  if (quiet_) return;
  const auto unlogged = refusals_.due(clock_.now());
  if (!unlogged) return;
  log_.warning("wire_key_refused", {},
               {{"address", address}, {"reason", reason}, {"more_since_last", *unlogged}});
}

}  // namespace isthmus::inter
