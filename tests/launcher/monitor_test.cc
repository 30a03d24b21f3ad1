#include "launcher/monitor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <sstream>
#include <string>
#include <vector>

namespace isthmus::launcher {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

inter::GatewayStatus alpha(std::size_t links, std::size_t ranks) {
  inter::GatewayStatus status;
  status.site = "alpha";
  status.phase = "exchanging";
  status.outer_step = 12;
  status.outer_steps = 24;
  status.uptime_s = 93;
  status.waits = {
      .computing_s = 61, .transfer_s = 20, .straggler_s = 12, .agreement_s = 2, .applying_s = 5};
  for (std::size_t i = 0; i < links; ++i) {
    inter::LinkStatus link;
    link.peer = i == 0 ? "beta" : "peer" + std::to_string(i);
    link.state = "up";
    link.round_trip_ms = 41.2;
    link.sent_mbit_s = 18.34;
    link.received_mbit_s = 12;
    link.cap_mbit_s = 20;
    link.parameter_bytes = 75'300'000;
    link.zstd_bytes = 18'300'000;
    link.wire_sent_bytes = 18'310'000;
    link.waiting_for = "acknowledgement";
    status.links.push_back(link);
  }
  for (std::size_t i = 0; i < ranks; ++i)
    status.ranks.push_back({.rank = static_cast<std::uint32_t>(i),
                            .world = static_cast<std::uint32_t>(ranks),
                            .pid = 1,
                            .inner_step = 120,
                            .loss = 2.81341,
                            .tokens_per_second = 12345,
                            .state = "computing"});
  return status;
}

SiteHistory history(std::size_t links = 1, std::size_t ranks = 1) {
  SiteHistory site("alpha");
  for (const double rate : {0.0, 2.5, 5.0, 7.5, 10.0, 12.5, 15.0, 20.0}) {
    auto status = alpha(links, ranks);
    for (auto& link : status.links) link.sent_mbit_s = rate;
    site.add(std::move(status));
  }
  auto last = alpha(links, ranks);
  site.add(std::move(last));
  return site;
}

std::string shown(const std::vector<StyledLine>& lines) {
  std::string text;
  for (const auto& line : lines) {
    auto one = plain_text(line);
    one.erase(one.find_last_not_of(' ') + 1);
    text += one + '\n';
  }
  return text;
}

TEST(StatusText, SaysWhyThereIsNoSession) {
  auto status = alpha(1, 1);
  status.links[0].state = "silent";
  EXPECT_THAT(status_text(status), HasSubstr("its gateway is there, and says nothing before it"));
  status.links[0].state = "no ranks";
  EXPECT_THAT(status_text(status), HasSubstr("nothing is said to it before this site has ranks"));
  status.links[0].state = "no address";
  EXPECT_THAT(status_text(status), AllOf(HasSubstr(" no addr "), Not(HasSubstr("no addre ")),
                                         HasSubstr("neither gateway has an address")));
}

TEST(Monitor, SaysUpToWhereASiteCatchesUp) {
  auto status = alpha(1, 1);
  status.phase = "catching up";
  status.catching_up_to = 20;
  EXPECT_THAT(status_text(status), HasSubstr("alpha  catching up to step 20  outer step 12/24 "));
}

// The column is as wide as "999 ms".
TEST(StatusText, ARoundTripIsNotCutShort) {
  auto status = alpha(1, 1);
  const std::pair<double, std::string> trips[] = {{0.31, " 0.3 ms "},
                                                  {999.4, " 999 ms "},
                                                  {999.6, " 1.00 s "},
                                                  {1265, " 1.26 s "},
                                                  {12345, " 12.3 s "}};
  for (const auto& [ms, shown] : trips) {
    status.links[0].round_trip_ms = ms;
    EXPECT_THAT(status_text(status), HasSubstr(shown));
  }
}

TEST(Monitor, IsReadableAt80By24) {
  const auto lines =
      render_monitor({history()}, {"step_decided step 12"}, "q quits", 80, 24, Glyphs::unicode);
  ASSERT_EQ(lines.size(), 24U);
  EXPECT_EQ(shown({lines.begin(), lines.begin() + 6}),
            R"(alpha  exchanging  outer step 12/24 ████████████░░░░░░░░░░░░  1.55 min
  link    state       rtt up Mbit/s  down up trend codec    sent waits for
  beta    up        41 ms 18.3/20.0  12.0 ▁▂▃▄▅▆█▇  4.1x 18.3 MB acknowledgement
  rank         step     loss  tokens/s   state
  0             120   2.8134    12.3 k   computing
  computing 61 %  transfer 20 %  other sites 12 %  applying 5 %  agreement 2 %
)");
  EXPECT_EQ(plain_text(lines.back()), "q quits");
}

TEST(Monitor, AsciiTerminalsGetAscii) {
  for (const auto& line : render_monitor({history()}, {}, "q quits", 80, 24, Glyphs::ascii))
    for (const char c : plain_text(line)) EXPECT_TRUE(c >= 0x20 && c < 0x7f) << plain_text(line);
}

TEST(Monitor, NothingEverLeavesTheScreen) {
  const std::vector<SiteHistory> sites = {history(3, 9), history(1, 1), SiteHistory("gamma")};
  for (int width = 0; width <= 130; ++width)
    for (int height = 0; height <= 30; ++height) {
      const auto lines =
          render_monitor(sites, {"a note that is rather long", "another"}, "q quits", width, height,
                         width % 2 == 0 ? Glyphs::unicode : Glyphs::ascii);
      ASSERT_LE(lines.size(), static_cast<std::size_t>(height));
      for (const auto& line : lines)
        ASSERT_LE(columns(plain_text(line)), static_cast<std::size_t>(width))
            << width << "x" << height << ": " << plain_text(line);
    }
}

// Ranks that train data parallel are one process to the gateway.
TEST(Monitor, OneRankThatSpeaksForAllSaysSo) {
  auto site = history();
  auto status = alpha(1, 1);
  status.ranks[0].world = 4;
  site.add(status);
  EXPECT_THAT(
      shown(render_monitor({site}, {}, "q quits", 80, 24, Glyphs::unicode)),
      HasSubstr("  0-3           120   2.8134    12.3 k   computing (all 4 ranks in step)\n"));
}

TEST(Monitor, WhatHoldsARunUpIsSaid) {
  auto site = history();
  auto status = alpha(1, 1);
  status.attention = {
      "this site lost its vote file: it does not vote until a record names its new "
      "one, which the others see to"};
  EXPECT_THAT(status_text(status),
              HasSubstr("attention     this site lost its vote file: it does"));
  EXPECT_THAT(status_text(status), HasSubstr("which the others see to\n"));
  site.add(std::move(status));
  const auto lines = render_monitor({site}, {}, "q quits", 80, 24, Glyphs::unicode);
  const auto line = plain_text(lines.at(1));
  EXPECT_THAT(line, HasSubstr("  this site lost its vote file"));
  EXPECT_TRUE(line.ends_with("..."));
  EXPECT_EQ(columns(line), 80U);
}

TEST(Monitor, ALowScreenSaysWhatItHides) {
  EXPECT_EQ(shown(render_monitor({history(2, 1), history(1, 0), history(0, 0)}, {}, "q quits", 40,
                                 7, Glyphs::ascii)),
            "alpha  exchanging  outer step 12/24\n"
            "  in a higher window: 2 links, 1 rank\n"
            "alpha  exchanging  outer step 12/24\n"
            "  in a higher window: 1 link\n"
            "alpha  exchanging  outer step 12/24\n"
            "  computing 61 %  transfer 20 %  othe...\n"
            "q quits\n");
  const std::vector<SiteHistory> many(5, history());
  EXPECT_THAT(shown(render_monitor(many, {}, "q quits", 80, 4, Glyphs::ascii)),
              HasSubstr("and 3 more sites in a higher window\nq quits"));
}

TEST(Monitor, ANarrowScreenKeepsWhatMatters) {
  const auto text = shown(render_monitor({history()}, {}, "q quits", 40, 10, Glyphs::unicode));
  EXPECT_THAT(text, HasSubstr("beta"));
  EXPECT_THAT(text, HasSubstr("18.3/20.0"));
  EXPECT_THAT(text, HasSubstr("2.8134"));
  EXPECT_THAT(text, Not(HasSubstr("waits for")));
}

TEST(Monitor, WhatDoesNotFitIsCounted) {
  const auto text = shown(render_monitor({history(2, 64)}, {}, "q quits", 80, 24, Glyphs::unicode));
  EXPECT_THAT(text, HasSubstr("peer1"));
  EXPECT_THAT(text, HasSubstr("more ranks"));
}

TEST(Monitor, AWideScreenShowsMore) {
  auto site = history();
  auto status = alpha(1, 1);
  status.links[0].peer = "a-cluster-far-away";
  status.links[0].state = "refused: another model";
  site.add(status);
  EXPECT_THAT(shown(render_monitor({site}, {}, "q quits", 80, 24, Glyphs::unicode)),
              HasSubstr("  a-clust refused:"));
  const auto text = shown(render_monitor({site}, {}, "q quits", 160, 24, Glyphs::unicode));
  EXPECT_THAT(text, HasSubstr("a-cluster-far-away"));
  EXPECT_THAT(text, HasSubstr("refused: another model"));
}

TEST(Monitor, TroubleIsShown) {
  auto site = history();
  site.add_trouble("its gateway does not answer");
  EXPECT_THAT(shown(render_monitor({site}, {}, "q quits", 120, 24, Glyphs::unicode)),
              HasSubstr("its gateway does not answer"));
  EXPECT_THAT(shown(render_monitor({SiteHistory("beta")}, {}, "q quits", 80, 24, Glyphs::unicode)),
              HasSubstr("beta  asking its gateway"));
}

TEST(Monitor, PeersCannotMoveTheCursor) {
  auto status = alpha(1, 1);
  status.links[0].state = "refused: \x1b[2J\xe6\x97\xa5 and\nmore";
  status.links[0].round_trip_ms = std::numeric_limits<double>::infinity();
  status.links[0].received_mbit_s = std::numeric_limits<double>::quiet_NaN();
  status.ranks[0].loss = std::numeric_limits<double>::quiet_NaN();
  SiteHistory site("alpha");
  site.add(status);
  const auto lines = render_monitor({site}, {}, "q quits", 200, 24, Glyphs::ascii);
  EXPECT_THAT(shown(lines), HasSubstr("refused: ?[2J? and?more"));
  EXPECT_THAT(status_text(status), Not(HasSubstr("\x1b")));
}

TEST(Sparkline, ScalesToTheCapOrTheLargest) {
  EXPECT_EQ(sparkline({0, 10, 20}, 3, 20, Glyphs::unicode), " ▄█");
  EXPECT_EQ(sparkline({0, 10, 40}, 3, 20, Glyphs::unicode), " ▄█");
  EXPECT_EQ(sparkline({0, 10, 40}, 3, 0, Glyphs::ascii), " :#");
  EXPECT_EQ(sparkline({0.001}, 3, 20, Glyphs::unicode), "  ▁");  // what moved is seen
  EXPECT_EQ(sparkline({}, 2, 0, Glyphs::unicode), "  ");
  EXPECT_EQ(sparkline({5, 5, 5}, 0, 0, Glyphs::unicode), "");
}

TEST(StatusText, FitsEightyColumnsAndLosesNothing) {
  auto status = alpha(2, 2);
  status.run = status.state_root = std::string(64, 'a');
  status.links[0].state = "refused: another model at the other end of this link";
  status.links[0].waiting_for = "something that has a rather long name";
  status.links[0].link_test_received_bytes = 48'000'000;
  const auto text = status_text(status);
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(columns(line), 80U) << line;
  auto joined = text;  // however it is broken
  for (std::size_t at; (at = joined.find("\n                ")) != std::string::npos;)
    joined.replace(at, 17, " ");
  for (const auto& part :
       {status.run, status.links[0].state, status.links[0].waiting_for, std::string("reconnect"),
        std::string("link tests besides: 0 B sent, 48.0 MB received")})
    EXPECT_THAT(joined, HasSubstr(part));
}

TEST(StatusText, SaysWhatRateHoldsUntilWhenAndHowPoliteItIs) {
  auto status = alpha(1, 1);
  EXPECT_THAT(status_text(status), Not(HasSubstr("rate limit")));
  EXPECT_THAT(status_text(status), Not(HasSubstr("polite")));
  EXPECT_THAT(status_text(status), Not(HasSubstr("link tests")));
  status.rate_limit = "10 Mbit/s until 18:00, then unlimited";
  status.links[0].polite_mbit_s = 7.25;
  status.links[0].queue_ms = 3.5;
  status.links[0].queue_target_ms = 8;
  const auto text = status_text(status);
  EXPECT_THAT(text, HasSubstr("  rate limit    10 Mbit/s until 18:00, then unlimited\n"));
  EXPECT_THAT(text, HasSubstr("polite: at most 7.2 Mbit/s now"));
  SiteHistory site("alpha");
  site.add(status);
  std::string lines;
  for (const auto& line : render_monitor({site}, {}, "", 80, 24, Glyphs::ascii))
    lines += plain_text(line) + '\n';
  EXPECT_THAT(lines, HasSubstr("  rate limit 10 Mbit/s until 18:00, then unlimited\n"));
}

TEST(StatusText, SaysWhomAStepWaitsForAndHowBulkTravels) {
  auto status = alpha(1, 1);
  EXPECT_THAT(status_text(status), Not(HasSubstr("deadline")));
  EXPECT_THAT(status_text(status), Not(HasSubstr("for bulk")));
  status.deadline = "beta, at most 2.0 s";
  status.deadline_s = 1.5;
  status.links[0].bulk_connections = 4;
  status.links[0].bulk_connections_why = "as the peer wants";
  status.links[0].congestion_control = "cubic";
  status.links[0].congestion_control_why = "the system refused bbr";
  status.links[0].queue_ms = 410;
  const auto text = status_text(status);
  EXPECT_THAT(text, HasSubstr("410 ms in queues"));
  EXPECT_THAT(text, HasSubstr("  deadline      in 1.5 s: beta, at most 2.0 s\n"));
  EXPECT_THAT(text, Not(HasSubstr("  deadline in"))) << "once";
  EXPECT_THAT(text, HasSubstr("4 connections for bulk (as the peer wants),\n"));
}

TEST(Monitor, SaysUntilWhenAStepWaitsForWhomAndWhy) {
  auto status = alpha(1, 1);
  status.deadline = "beta, at most 2.0 s: how late it usually is, is not known yet";
  status.deadline_s = 1.5;
  SiteHistory site("alpha");
  site.add(status);
  EXPECT_THAT(
      shown(render_monitor({site}, {}, "q quits", 100, 24, Glyphs::ascii)),
      HasSubstr("\n  deadline in 1.5 s: beta, at most 2.0 s: how late it usually is, is not "
                "known yet\n"));
}

TEST(StatusText, HasTheSameNumbers) {
  const auto text = status_text(alpha(1, 1));
  for (const char* part : {"alpha", "12/24", "beta", "18.3/20.0", "4.1x", "acknowledgement",
                           "2.8134", "75.3 MB of parameters", "saved step"})
    EXPECT_THAT(text, HasSubstr(part));
}

}  // namespace
}  // namespace isthmus::launcher
