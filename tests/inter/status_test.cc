#include "inter/status.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/random.h"

namespace isthmus::inter {
namespace {

GatewayStatus a_status() {
  GatewayStatus status;
  status.site = "alpha \"quoted\" \\ \x01 ümlaut \xF0\x9F\x8C\x8A";
  status.run = "00ff";
  status.phase = "training";
  status.outer_step = std::numeric_limits<std::uint64_t>::max();
  status.outer_steps = 24;
  status.catching_up_to = 20;
  status.saved_step = 6;
  status.state_root = "abcd";
  status.uptime_s = 0.1;
  status.tokens_named = 123456789012345;
  status.tokens_carried = 7;
  status.members = {"alpha", "beta"};
  status.voters = {};
  status.attention = {"it waits: for \"beta\""};
  status.waits = {1.5, 2.5e-9, 3e300, 0, -0.0};
  status.deadline = "beta, at most 2.0 s";
  status.deadline_s = 1.5;
  status.links.push_back({.peer = "beta",
                          .address = "10.0.0.1:7700",
                          .state = "refused: another model",
                          .round_trip_ms = 80.25,
                          .round_trip_longest_ms = 120.5,
                          .sent_mbit_s = 19.9,
                          .received_mbit_s = 1,
                          .cap_mbit_s = 20,
                          .queue_ms = 3.5,
                          .polite_mbit_s = 12.5,
                          .queue_target_ms = 8,
                          .bulk_connections = 4,
                          .bulk_connections_why = "losses keep windows narrow",
                          .congestion_control = "cubic",
                          .congestion_control_why = "the system refused bbr",
                          .parameter_bytes = 1,
                          .codec_bytes = 2,
                          .zstd_bytes = 3,
                          .wire_sent_bytes = 4,
                          .wire_received_bytes = 5,
                          .link_test_sent_bytes = 9,
                          .link_test_received_bytes = 10,
                          .sending_s = 5.5,
                          .chunks_sent = 6,
                          .chunks_resent = 7,
                          .chunks_copied = 3,
                          .reconnects = 8,
                          .window_bytes = 64 << 20,
                          .window_used = 0.25,
                          .chunk_patience_s = 2.5,
                          .waiting_for = "credit"});
  status.links.emplace_back();
  status.ranks.push_back({.rank = 1,
                          .world = 2,
                          .pid = -5,
                          .inner_step = 77,
                          .loss = 2.75,
                          .tokens_per_second = 1e4,
                          .state = "computing"});
  return status;
}

TEST(Status, JsonIsReadByAnotherParser) {
  const auto json = nlohmann::json::parse(to_json(a_status()));
  EXPECT_EQ(json["site"], a_status().site);
  EXPECT_EQ(json["outer_step"], std::numeric_limits<std::uint64_t>::max());
  EXPECT_EQ(json["members"], (std::vector<std::string>{"alpha", "beta"}));
  EXPECT_TRUE(json["voters"].is_array() && json["voters"].empty());
  EXPECT_EQ(json["waits"]["other_sites_s"], 3e300);
  ASSERT_EQ(json["links"].size(), 2u);
  EXPECT_EQ(json["links"][0]["round_trip_ms"], 80.25);
  EXPECT_EQ(json["links"][0]["round_trip_longest_ms"], 120.5);
  EXPECT_EQ(json["links"][0]["waiting_for"], "credit");
  EXPECT_EQ(json["links"][1]["peer"], "");
  EXPECT_EQ(json["links"][0]["cap_mbit_s"], 20);
  EXPECT_TRUE(json["links"][1]["cap_mbit_s"].is_null());
  EXPECT_EQ(json["ranks"][0]["pid"], -5);
  EXPECT_EQ(json["ranks"][0]["loss"], 2.75);
}

TEST(Status, EveryFieldComesBack) {
  const std::string json = to_json(a_status());
  const auto status = parse_status(json);
  ASSERT_TRUE(status) << status.error().text();
  EXPECT_EQ(to_json(*status), json);
  EXPECT_EQ(status->site, a_status().site);
  EXPECT_EQ(status->links[0].chunks_copied, 3u);
  EXPECT_EQ(status->links[0].reconnects, 8u);
  EXPECT_EQ(status->links[0].cap_mbit_s, 20);
  EXPECT_FALSE(status->links[1].cap_mbit_s);
  EXPECT_EQ(status->links[0].polite_mbit_s, 12.5);
  EXPECT_EQ(status->links[0].queue_ms, 3.5);
  EXPECT_EQ(status->links[0].queue_target_ms, 8);
  EXPECT_FALSE(status->links[1].polite_mbit_s);
  EXPECT_EQ(status->deadline_s, 1.5);
  EXPECT_EQ(status->waits.transfer_s, 2.5e-9);
  // A field that the list in status.cc forgets would not be caught by reading what was written.
  EXPECT_EQ(nlohmann::json::parse(json).size(), 20u);
  EXPECT_EQ(nlohmann::json::parse(json)["links"][0].size(), 31u);
  EXPECT_EQ(nlohmann::json::parse(json)["ranks"][0].size(), 7u);
  EXPECT_EQ(nlohmann::json::parse(json)["waits"].size(), 5u);
}

TEST(Status, ReadsWhatAnotherWriterLaysOutDifferently) {
  auto json = nlohmann::json::parse(to_json(a_status()));
  json["later"] = {{"a", {1, 2.5, nullptr, true, "x"}}, {"b", nlohmann::json::object()}};
  json.erase("phase");
  const auto status = parse_status(json.dump(2, ' ', true));
  ASSERT_TRUE(status) << status.error().text();
  EXPECT_EQ(status->site, a_status().site);  // through \u escapes and surrogates
  EXPECT_EQ(status->phase, "");
  EXPECT_EQ(status->ranks[0].inner_step, 77u);
}

TEST(Status, ARankThatHasNotTrainedHasNoLoss) {
  GatewayStatus status;
  status.ranks.emplace_back();
  const auto rank = nlohmann::json::parse(to_json(status))["ranks"][0];
  EXPECT_TRUE(rank["loss"].is_null());
  EXPECT_TRUE(rank["tokens_per_second"].is_null());
  EXPECT_EQ(rank["inner_step"], 0);
}

TEST(Status, ANumberThatIsNotFiniteIsNull) {
  GatewayStatus status;
  status.ranks.emplace_back().loss = std::nan("");
  const std::string json = to_json(status);
  EXPECT_TRUE(nlohmann::json::parse(json)["ranks"][0]["loss"].is_null());
  const auto read = parse_status(json);
  ASSERT_TRUE(read);
  EXPECT_TRUE(std::isnan(read->ranks[0].loss));
}

TEST(Status, OfAListNoMoreIsReadThanThereCanBe) {
  std::string ranks = "{}";
  for (int i = 1; i < 4096; ++i) ranks += ",{}";
  EXPECT_TRUE(parse_status("{\"ranks\":[" + ranks + "]}"));
  EXPECT_FALSE(parse_status("{\"ranks\":[" + ranks + "," + ranks + "," + ranks + "]}"));
}

TEST(Status, TruncatedOrDamagedTextIsRefusedOrRead) {
  const std::string json = to_json(a_status());
  for (std::size_t bytes = 0; bytes < json.size(); ++bytes)
    EXPECT_FALSE(parse_status(json.substr(0, bytes))) << bytes;
  EXPECT_FALSE(parse_status(json + "x"));
  EXPECT_FALSE(parse_status(std::string(100'000, '[')));
  EXPECT_FALSE(parse_status("{\"x\":" + std::string(100'000, '[')));
  Random random(7);
  for (int i = 0; i < 20'000; ++i) {
    std::string damaged = json;
    for (std::uint64_t n = 1 + random.below(4); n > 0; --n)
      damaged[random.below(damaged.size())] = static_cast<char>(random.below(256));
    (void)parse_status(damaged);
  }
}

}  // namespace
}  // namespace isthmus::inter
