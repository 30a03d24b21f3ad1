#include "inter/tcp_address.h"

#include <gtest/gtest.h>

namespace isthmus::inter {

TEST(TcpAddress, ReadsNamesAndLiterals) {
  const auto name = parse_tcp_address("gateway.example.org:7700");
  ASSERT_TRUE(name);
  EXPECT_EQ(*name, (TcpAddress{"gateway.example.org", 7700}));
  EXPECT_EQ(name->endpoint(), "tcp://gateway.example.org:7700");

  const auto ipv6 = parse_tcp_address("[2001:db8::1]:65534");
  ASSERT_TRUE(ipv6);
  EXPECT_TRUE(ipv6->is_ipv6());
  EXPECT_EQ(ipv6->host, "2001:db8::1");
  EXPECT_EQ(ipv6->endpoint(), "tcp://[2001:db8::1]:65534");
}

TEST(TcpAddress, RefusesTheRest) {
  for (const auto* text :
       {"", "host", "host:", ":7700", "host:0", "host:65535", "host:99999", "host:77x",
        "host: 7700", "host:-1", "2001:db8::1:7700", "[]:7700", "[::1]", "[::1:7700"}) {
    const auto parsed = parse_tcp_address(text);
    ASSERT_FALSE(parsed) << text;
    EXPECT_EQ(parsed.error().code, ErrorCode::invalid_argument);
  }
}

TEST(TcpAddress, BulkIsTheNextPort) {
  EXPECT_EQ(lane_address({"a", 7700}, Lane::control).port, 7700);
  EXPECT_EQ(lane_address({"a", 7700}, Lane::bulk).port, 7701);
}

TEST(TcpAddress, AnyInterfaceIsReachedThroughLoopback) {
  EXPECT_EQ(local_address({"0.0.0.0", 7700}).host, "127.0.0.1");
  EXPECT_EQ(local_address({"*", 7700}).host, "127.0.0.1");
  EXPECT_EQ(local_address({"::", 7700}).host, "::1");
  EXPECT_EQ(local_address({"10.1.2.3", 7700}).host, "10.1.2.3");
}

}  // namespace isthmus::inter
