#include "launcher/link_test_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "inter/link_test_report.h"

namespace isthmus::launcher {
namespace {

using testing::HasSubstr;
using testing::Not;

inter::LinkTestReport a_report() {
  inter::LinkTestReport report;
  report.here = "alpha";
  report.there = "beta";
  report.side_here = {.tcp_rmem = "4096 131072 6291456",
                      .tcp_wmem = "4096 16384 4194304",
                      .rate_limit = 20'000'000};
  report.side_there = {.tcp_rmem = "4096 131072 6291456", .tcp_wmem = "4096 16384 4194304"};
  report.round_trips = {40 * kMillisecond, 41 * kMillisecond, 45 * kMillisecond};
  inter::LinkTestSent sent;
  sent.segments = 1000;
  sent.segments_resent = 5;
  sent.busy = kSecond;
  sent.congestion_control = "bbr";
  sent.congestion_control_why = "as asked for";
  sent.dialed = true;
  sent.connections = 4;
  report.to_peer = {sent, {.bits_per_second = 19.5e6, .warm = 2 * kSecond, .bytes = 9'000'000}};
  sent.congestion_control = "cubic";
  sent.congestion_control_why = "the system refused bbr";
  sent.dialed = false;
  report.from_peer = {sent, {.bits_per_second = 96.2e6, .warm = 2 * kSecond, .bytes = 9'000'000}};
  return report;
}

TEST(LinkTestText, SaysWhatTheReportSays) {
  const auto text = link_test_text(nlohmann::json::parse(a_report().to_json()));
  for (const char* part :
       {"40.0 ms at least, 41.0 ms median", "alpha to beta\n", "19.5 Mbit/s over 2.00 s",
        "5 of 1000 segments, 0.500 %", "bbr (as asked for), at the dialing end",
        "connections          4\n", "20.0 Mbit/s at alpha", "beta to alpha\n", "96.2 Mbit/s",
        "cubic (the system refused bbr), at the listening end", "tcp_rmem 4096 131072 6291456",
        "at alpha: its rate_limit is what bounds this direction", "what to do\n"})
    EXPECT_THAT(text, HasSubstr(part));
  EXPECT_THAT(text, Not(HasSubstr("these limits are no limit")));
}

TEST(LinkTestText, WhatAPoliteGatewayTookIsNotSaidToBeTheLines) {
  auto report = a_report();
  report.side_there.polite = true;
  const auto json = nlohmann::json::parse(report.to_json());
  EXPECT_EQ(json["to_peer"]["polite"], false);
  EXPECT_EQ(json["from_peer"]["polite"], true);
  const auto text = link_test_text(json);
  for (const char* part :
       {"capacity             19.5 Mbit/s", "capacity             at least 96.2 Mbit/s",
        "beta yields to others: the line may carry more",
        "at beta: it is polite, so this direction shows what it took"})
    EXPECT_THAT(text, HasSubstr(part));
  EXPECT_THAT(text, Not(HasSubstr("alpha yields")));
  EXPECT_THAT(text, Not(HasSubstr("at alpha: it is polite")));
}

TEST(LinkTestText, WhatIsOfAnExchangeTooIsSaidToBe) {
  auto report = a_report();
  EXPECT_THAT(link_test_text(nlohmann::json::parse(report.to_json())), Not(HasSubstr("exchange")));
  report.from_peer.beside_exchange = true;
  const auto text = link_test_text(nlohmann::json::parse(report.to_json()));
  EXPECT_THAT(text.substr(text.find("beta to alpha")),
              HasSubstr("exchange             an outer step was exchanged meanwhile"));
  EXPECT_THAT(text.substr(0, text.find("beta to alpha")), Not(HasSubstr("exchanged meanwhile")));
}

TEST(LinkTestText, WhatWasNotMeasuredIsNoZero) {
  auto report = a_report();
  report.from_peer.got = {};
  report.from_peer.sent.segments = 0;
  const auto text = link_test_text(nlohmann::json::parse(report.to_json()));
  EXPECT_THAT(text, HasSubstr("capacity             not measured: 0 B came"));
  EXPECT_THAT(text, HasSubstr("from beta too little came to tell"));
  EXPECT_THAT(text, Not(HasSubstr(" 0.0 Mbit/s")));
  EXPECT_THAT(text, Not(HasSubstr("of 0 segments")));
}

TEST(LinkTestText, AThinLineHasDigitsToo) {
  auto report = a_report();
  report.side_here.rate_limit = 64'000;
  report.to_peer.got.bits_per_second = 62'140;
  const auto text = link_test_text(nlohmann::json::parse(report.to_json()));
  EXPECT_THAT(text, HasSubstr("capacity             62.1 kbit/s over 2.00 s"));
  EXPECT_THAT(text, HasSubstr("rate_limit           64.0 kbit/s at alpha"));
}

TEST(LinkTestText, WhatIsNotThereOrOfAnotherKindIsNoFault) {
  for (const char* odd : {"{}", "[]", "3", "{\"to_peer\":7,\"advice\":[3,\"x\\u001b[2J\"]}"}) {
    const auto text = link_test_text(nlohmann::json::parse(odd));
    EXPECT_THAT(text, HasSubstr("round trip"));
    EXPECT_THAT(text, Not(HasSubstr("\x1b")));
  }
  EXPECT_THAT(link_test_text(nlohmann::json::object()), HasSubstr("these limits are no limit"));
}

}  // namespace
}  // namespace isthmus::launcher
