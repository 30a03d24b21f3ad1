#include "launcher/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

namespace isthmus::launcher {
namespace {

using ::testing::HasSubstr;

SiteReport site_of(std::string name, double after) {
  SiteReport site;
  site.site = std::move(name);
  site.outer_steps = site.outer_steps_planned = 24;
  site.tokens = 491'520;
  site.tokens_per_second = 2840;
  site.held_out = {{.name = "en",
                    .before = 8.02,
                    .after = after,
                    .prompt = "The\npackage",
                    .generated = "manager\x1b[2J"}};
  site.traffic.links["beta"] = {
      .parameter_bytes = 434'000'000,
      .codec_bytes = 110'000'000,
      .zstd_bytes = 98'000'000,
      .wire_sent_bytes = 98'500'000,
      .sending_seconds = 40,
      .sending_bytes = 98'000'000,
      .cap_mbit_s = 20,
      .observed_seconds = 100,
      .waited_seconds = {{"credit", 0.1}, {"rate limit", 20}, {"vote", 40}}};
  site.traffic.waits = {.computing_s = 75, .transfer_s = 25};
  site.checkpoints = "run/checkpoints";
  return site;
}

TEST(Report, TextForPeople) {
  const auto text =
      to_text({{site_of("alpha", 2.75), site_of("beta", 2.75)}, {site_of("alpha", 2.71)}});
  EXPECT_THAT(text,
              HasSubstr("bits per byte     before         alpha          beta   alpha alone\n"
                        "en                 8.020         2.750         2.750         2.710\n"));
  for (const char* part : {"alpha: 24 of 24 outer steps, 492 k tokens, 2.84 k tokens/s",
                           "on the wire 98.5 MB", "19.6 Mbit/s while sending, capped to 20",
                           "\n    waiting 60 % of the time: vote 40 %, rate limit 20 %\n",
                           "time: computing 75 %, transfer 25 %",
                           "goes on\nen: The package -> manager [2J\n", "run/checkpoints"})
    EXPECT_THAT(text, HasSubstr(part));
}

TEST(Report, JsonForPrograms) {
  const auto json = nlohmann::json::parse(to_json({{site_of("alpha", 2.75)}, {}}));
  const auto& site = json["sites"][0];
  EXPECT_EQ(site["held_out"]["en"]["bits_per_byte_after"], 2.75);
  EXPECT_EQ(site["links"]["beta"]["zstd_bytes"], 98'000'000);
  EXPECT_EQ(site["links"]["beta"]["cap_mbit_s"], 20);
  EXPECT_EQ(site["links"]["beta"]["waiting_shares"]["vote"], 0.4);
  EXPECT_EQ(site["links"]["beta"]["waiting_shares"]["rate limit"], 0.2);
  EXPECT_EQ(site["time_shares"]["transfer"], 0.25);
  EXPECT_TRUE(json["controls"].empty());
}

TEST(Report, SpeedLeavesPausesOut) {
  const auto path =
      (std::filesystem::temp_directory_path() / ("isthmus_metrics_" + std::to_string(::getpid())))
          .string();
  std::ofstream(path) << R"({"time":100,"kind":"inner_step","inner_step":1,"tokens":1000}
{"time":101,"kind":"inner_step","inner_step":2,"tokens":2000}
{"time":101.5,"kind":"merge","inner_step":2,"outer_step":1}
{"time":9000,"kind":"resumed","inner_step":1,"tokens":1000}
{"time":9001,"kind":"inner_step","inner_step":2,"tokens":2000}
{"time":9003,"kind":"inner_step","inner_step":3,"tokens":4000}
)";
  SiteReport report;
  read_metrics(path, 2, report);
  std::filesystem::remove(path);
  EXPECT_EQ(report.inner_steps, 3);
  EXPECT_EQ(report.tokens, 4000U);
  EXPECT_EQ(report.outer_steps, 1);
  EXPECT_DOUBLE_EQ(report.tokens_per_second, 1000);
}

}  // namespace
}  // namespace isthmus::launcher
