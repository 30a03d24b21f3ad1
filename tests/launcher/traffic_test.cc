#include "launcher/traffic.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

namespace isthmus::launcher {
namespace {

inter::GatewayStatus status_of(std::uint64_t sent) {
  inter::GatewayStatus status;
  status.uptime_s = 2;
  status.waits = {.computing_s = 3, .transfer_s = 1};
  inter::LinkStatus link;
  link.peer = "beta";
  link.wire_sent_bytes = sent;
  link.parameter_bytes = 4 * sent;
  link.link_test_sent_bytes = 7 * sent;
  link.link_test_received_bytes = 8 * sent;
  link.cap_mbit_s = 20;
  status.links.push_back(link);
  return status;
}

TEST(Traffic, RateCountsOnlyTheTimeItSends) {
  TrafficMeter meter({});
  Nanoseconds tenth = 10;
  // One small transfer that waits most of its time at the limit, as its link has counted it.
  for (const auto& [chunk_bytes, sending_s] :
       {std::pair{0, 0.0}, {0, 0.05}, {0, 0.15}, {500'000, 0.2}, {500'000, 0.2}}) {
    auto status = status_of(600'000);
    status.links.front().zstd_bytes = static_cast<std::uint64_t>(chunk_bytes);
    status.links.front().sending_s = sending_s;
    meter.sample(status, kSecond / 10 * tenth++);
  }
  const auto link = meter.total().links.at("beta");
  EXPECT_DOUBLE_EQ(link.achieved_mbit_s(), 20);
  EXPECT_EQ(link.wire_sent_bytes, 600'000U);
  TrafficMeter next(meter.total());
  EXPECT_DOUBLE_EQ(next.total().links.at("beta").achieved_mbit_s(), 20);
  EXPECT_EQ(LinkTraffic{}.achieved_mbit_s(), 0);
}

TEST(Traffic, WaitingIsCountedForEachLink) {
  TrafficMeter meter({});
  // Looked at less often while nothing is waited for: that time is not the wait's that comes.
  for (const auto& [second, what] :
       {std::pair{10, ""}, {15, "vote"}, {16, "vote"}, {17, "rate limit"}, {18, ""}}) {
    auto status = status_of(0);
    status.links.front().waiting_for = what;
    meter.sample(status, kSecond * second);
  }
  const auto kept = parse_traffic(to_json(meter.total()));
  ASSERT_TRUE(kept) << kept.error().text();
  const auto& link = kept->links.at("beta");
  EXPECT_EQ(link.observed_seconds, 8);
  EXPECT_EQ(link.waited_seconds, (std::map<std::string, double>{{"rate limit", 1}, {"vote", 2}}));
  TrafficMeter next(*kept);
  EXPECT_EQ(next.total().links.at("beta").waited_seconds.at("vote"), 2);
}

TEST(Traffic, SumsOverGatewaysAndSurvivesTheFile) {
  TrafficMeter first({});
  first.sample(status_of(1000), kSecond);
  const auto kept = parse_traffic(to_json(first.total()));
  ASSERT_TRUE(kept) << kept.error().text();
  TrafficMeter second(*kept);
  second.sample(status_of(500), kSecond);
  const auto all = second.total();
  EXPECT_EQ(all.links.at("beta").wire_sent_bytes, 1500U);
  EXPECT_EQ(all.links.at("beta").parameter_bytes, 6000U);
  EXPECT_EQ(all.links.at("beta").link_test_sent_bytes, 10500U);
  EXPECT_EQ(all.links.at("beta").link_test_received_bytes, 12000U);
  EXPECT_EQ(all.waits.computing_s, 6);
  EXPECT_EQ(all.uptime_seconds, 4);
  EXPECT_EQ(all.links.at("beta").cap_mbit_s, 20);
}

TEST(Traffic, AFileThatKnowsNoLinkTestsIsTakenAsItIs) {
  Traffic traffic;
  traffic.links["beta"].wire_sent_bytes = 5;
  auto text = to_json(traffic);
  for (const std::string field :
       {"\"link_test_sent_bytes\":0,", "\"link_test_received_bytes\":0,"}) {
    ASSERT_NE(text.find(field), text.npos);
    text.erase(text.find(field), field.size());
  }
  text.replace(text.find(",\"checksum\""), text.npos, "}");  // nor did these have one
  const auto earlier = parse_traffic(text);
  ASSERT_TRUE(earlier) << earlier.error().text();
  EXPECT_EQ(earlier->links.at("beta").wire_sent_bytes, 5U);
}

// Another digit would be another figure, which nobody could tell from the right one.
TEST(Traffic, ABitThatIsAnotherChangesNoFigure) {
  TrafficMeter meter({});
  meter.sample(status_of(1000), kSecond);
  const auto whole = to_json(meter.total());
  int refused = 0;
  for (std::size_t bit = 0; bit < 8 * whole.size(); ++bit) {
    auto other = whole;
    other[bit / 8] = static_cast<char>(other[bit / 8] ^ (1 << bit % 8));
    const auto read = parse_traffic(other);
    refused += read ? 0 : 1;
    EXPECT_EQ(read ? to_json(*read) : whole, whole) << other;
  }
  EXPECT_GT(refused, static_cast<int>(8 * whole.size() * 9 / 10));
}

TEST(Traffic, AFileWithoutAChecksumIsTakenAsItIs) {
  Traffic traffic;
  traffic.links["beta"].reconnects = 3;
  auto text = to_json(traffic);
  text.replace(text.find(",\"checksum\""), text.npos, "}");
  const auto earlier = parse_traffic(text);
  ASSERT_TRUE(earlier) << earlier.error().text();
  EXPECT_EQ(earlier->links.at("beta").reconnects, 3U);
}

TEST(Traffic, ADamagedFileIsRefused) {
  auto whole = to_json(Traffic{.links = {{"beta", {}}}, .waits = {}});
  for (std::size_t n = 0; n < whole.size(); ++n)
    EXPECT_FALSE(parse_traffic(whole.substr(0, n))) << n;
  EXPECT_FALSE(parse_traffic("{\"links\":5,\"waits\":{},\"uptime_seconds\":\"x\"}"));
  constexpr std::string_view kCount = "\"reconnects\":0";
  whole.replace(whole.find(",\"checksum\""), whole.npos, "}");  // which would refuse them all
  ASSERT_TRUE(parse_traffic(whole));
  for (const std::string number : {"1e300", "-1", "0.5"}) {
    auto other = whole;
    other.replace(whole.find(kCount), kCount.size(), "\"reconnects\":" + number);
    EXPECT_FALSE(parse_traffic(other)) << number;
  }
}

}  // namespace
}  // namespace isthmus::launcher
