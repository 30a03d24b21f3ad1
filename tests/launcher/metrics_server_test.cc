#include "launcher/metrics_server.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

namespace isthmus::launcher {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kPorts = 50;  // one of so many is free

sockaddr_in loopback(int port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

std::string scrape(int port) {
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  const auto address = loopback(port);
  std::string text;
  if (::connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) {
    const std::string request = "GET /metrics HTTP/1.0\r\n\r\n";
    EXPECT_EQ(::write(socket, request.data(), request.size()),
              static_cast<ssize_t>(request.size()));
    char buffer[4096];
    for (ssize_t n; (n = ::read(socket, buffer, sizeof buffer)) > 0;)
      text.append(buffer, static_cast<std::size_t>(n));
  }
  ::close(socket);
  return text;
}

TEST(MetricsServer, ServesTheLastStatus) {
  std::unique_ptr<MetricsServer> server;
  int port = 20000 + ::getpid() % 10000;
  for (int i = 0; i < kPorts && server == nullptr; ++i)
    if (auto started = MetricsServer::start("127.0.0.1:" + std::to_string(++port)))
      server = std::move(*started);
  ASSERT_NE(server, nullptr);
  inter::GatewayStatus status;
  status.site = "alpha";
  status.outer_step = 12;
  inter::LinkStatus link;
  link.peer = "beta";
  link.state = "up";
  link.wire_sent_bytes = 1234567;
  link.link_test_sent_bytes = 7654321;
  status.links = {link, link};
  status.links[1].peer = "gamma";
  status.links[1].state = "connecting";
  for (auto& each : status.links) each.cap_mbit_s = 20;
  status.ranks.push_back({.rank = 0, .loss = 2.5, .state = {}});
  server->update(status);
  const auto text = scrape(port);
  for (const char* line :
       {"isthmus_outer_step{site=\"alpha\"} 12",
        "# TYPE isthmus_link_wire_sent_bytes_total counter",
        "isthmus_link_wire_sent_bytes_total{site=\"alpha\",peer=\"beta\"} 1234567",
        "isthmus_link_test_sent_bytes_total{site=\"alpha\",peer=\"beta\"} 7654321",
        "isthmus_link_up{site=\"alpha\",peer=\"gamma\"} 0",
        "isthmus_rank_loss{site=\"alpha\",rank=\"0\"} 2.5"})
    EXPECT_THAT(text, HasSubstr(line));
  // It holds for all links together.
  EXPECT_THAT(text, HasSubstr("isthmus_rate_limit_bits_per_second{site=\"alpha\"} 2"));
  EXPECT_THAT(text, Not(HasSubstr("link_cap")));
  EXPECT_EQ(text.find("# TYPE isthmus_link_up"), text.rfind("# TYPE isthmus_link_up"));
  const auto taken = MetricsServer::start("127.0.0.1:" + std::to_string(port));
  ASSERT_FALSE(taken);
  EXPECT_EQ(taken.error().code, ErrorCode::unavailable);
}

}  // namespace
}  // namespace isthmus::launcher
