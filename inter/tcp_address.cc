#include "inter/tcp_address.h"

#include <fmt/format.h>

#include <charconv>

namespace isthmus::inter {

std::string TcpAddress::endpoint() const {
  return is_ipv6() ? fmt::format("tcp://[{}]:{}", host, port)
                   : fmt::format("tcp://{}:{}", host, port);
}

Result<TcpAddress> parse_tcp_address(std::string_view text) {
  const auto wrong = [&] {
    return Error{
        ErrorCode::invalid_argument,
        fmt::format("'{}' is no address: write host:port or [IPv6]:port, port 1 to 65534", text)};
  };
  const auto colon = text.rfind(':');
  if (colon == std::string_view::npos || colon == 0) return wrong();
  auto host = text.substr(0, colon);
  const auto digits = text.substr(colon + 1);
  if (host.front() == '[') {
    if (host.size() < 4 || host.back() != ']') return wrong();
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string_view::npos) {
    return wrong();
  }
  unsigned port = 0;
  const auto [end, failed] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  if (failed != std::errc{} || end != digits.data() + digits.size() || port < 1 || port > 65534)
    return wrong();
  return TcpAddress{std::string(host), static_cast<std::uint16_t>(port)};
}

TcpAddress lane_address(const TcpAddress& control, Lane lane) {
  return {control.host,
          static_cast<std::uint16_t>(control.port + static_cast<std::uint16_t>(lane))};
}

TcpAddress local_address(const TcpAddress& listening) {
  if (listening.host == "0.0.0.0" || listening.host == "*") return {"127.0.0.1", listening.port};
  if (listening.host == "::") return {"::1", listening.port};
  return listening;
}

}  // namespace isthmus::inter
