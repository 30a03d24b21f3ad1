#include "launcher/report.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/base/temporary_folder.h"

namespace isthmus::launcher {
namespace {

using ::testing::HasSubstr;

SiteReport site_of(std::string name, double after) {
  SiteReport site;
  site.site = std::move(name);
  site.outer_steps = site.outer_steps_planned = 24;
  site.tokens = site.tokens_trained = 491'520;
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
      .link_test_sent_bytes = 7'000'000,
      .link_test_received_bytes = 8'000'000,
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
  for (const char* part :
       {"alpha: 24 of 24 outer steps, 492 k tokens, 2.84 k tokens/s", "on the wire 98.5 MB",
        "    link tests besides: 7.00 MB sent, 8.00 MB received\n",
        "19.6 Mbit/s while sending, capped to 20",
        "\n    waiting 60 % of the time: vote 40 %, rate limit 20 %\n",
        "time: computing 75 %, transfer 25 %", "goes on\nen: The package -> manager [2J\n",
        "run/checkpoints"})
    EXPECT_THAT(text, HasSubstr(part));
}

TEST(Report, SaysWhatIsOfHiddenTokens) {
  auto site = site_of("alpha", 2.75);
  for (const bool hidden : {false, true}) {
    if (hidden) site.objective = runtime::Objective::masked_tokens;
    const auto text = to_text({{site}, {}});
    EXPECT_EQ(text.find("of the bytes of hidden tokens\n") != text.npos, hidden) << text;
    EXPECT_EQ(text.find("492 k hidden tokens, 2.84 k hidden tokens/s") != text.npos, hidden)
        << text;
    EXPECT_EQ(nlohmann::json::parse(to_json({{site}, {}}))["sites"][0]["objective"],
              hidden ? "masked_tokens" : "next_token");
  }
}

TEST(Report, SaysWhatIsPerToken) {
  auto site = site_of("alpha", 2.75);
  site.held_out.front().per_token = true;
  const auto text = to_text({{site}, {}});
  EXPECT_THAT(text, HasSubstr("en (token)         8.020         2.750\n(token): bits per token"));
  const auto json = nlohmann::json::parse(to_json({{site}, {}}));
  const auto& english = json["sites"][0]["held_out"]["en"];
  EXPECT_EQ(english["bits_per_token_after"], 2.75);
  EXPECT_FALSE(english.contains("bits_per_byte_after"));
}

TEST(Report, JsonForPrograms) {
  const auto json = nlohmann::json::parse(to_json({{site_of("alpha", 2.75)}, {}}));
  const auto& site = json["sites"][0];
  EXPECT_EQ(site["held_out"]["en"]["bits_per_byte_after"], 2.75);
  EXPECT_EQ(site["links"]["beta"]["zstd_bytes"], 98'000'000);
  EXPECT_EQ(site["links"]["beta"]["cap_mbit_s"], 20);
  EXPECT_EQ(site["links"]["beta"]["link_test_sent_bytes"], 7'000'000);
  EXPECT_EQ(site["links"]["beta"]["waiting_shares"]["vote"], 0.4);
  EXPECT_EQ(site["links"]["beta"]["waiting_shares"]["rate limit"], 0.2);
  EXPECT_EQ(site["time_shares"]["transfer"], 0.25);
  EXPECT_TRUE(json["controls"].empty());
}

SiteReport report_of(const std::string& metrics) {
  const TemporaryFolder folder;
  const auto path = folder / "metrics.jsonl";
  std::ofstream(path) << metrics;
  SiteReport report;
  read_metrics(path, 2, report);
  return report;
}

TEST(Report, WhatCannotBeACountIsNone) {
  for (const std::string_view number : {"1e300", "-4", "\"nan\"", "\"inf\""}) {
    const auto report = report_of(fmt::format(
        "{{\"time\":1,\"kind\":\"inner_step\",\"inner_step\":{0},\"tokens\":{0}}}\n", number));
    EXPECT_EQ(report.inner_steps, 0) << number;
    EXPECT_EQ(report.tokens, 0U) << number;
    EXPECT_EQ(report.tokens_trained, 0U) << number;
  }
}

TEST(Report, SpeedLeavesPausesOut) {
  const auto report = report_of(R"({"time":90,"kind":"resumed","inner_step":0,"tokens":0}
{"time":100,"kind":"inner_step","inner_step":1,"tokens":1000}
{"time":101,"kind":"inner_step","inner_step":2,"tokens":2000}
{"time":102,"kind":"contribution","inner_step":2,"outer_step":1,"tokens":2000}
{"time":102.5,"kind":"merge","inner_step":2,"outer_step":1}
{"time":115,"kind":"resumed","inner_step":1,"tokens":1000}
{"time":116,"kind":"merge","inner_step":1,"outer_step":1}
{"time":117,"kind":"inner_step","inner_step":2,"tokens":2000}
{"time":119,"kind":"inner_step","inner_step":3,"tokens":4000}
)");
  EXPECT_EQ(report.inner_steps, 3);
  EXPECT_EQ(report.tokens, 4000U);
  EXPECT_EQ(report.tokens_trained, 5000U);
  EXPECT_EQ(report.outer_steps, 1);
  // The first step of each process tells no time: 1000 in 2.5 s, 2000 in 2 s.
  EXPECT_DOUBLE_EQ(report.tokens_per_second, 3000 / 4.5);
}

// A slow link, a large model.
TEST(Report, SpeedCountsStepsThatTakeMinutes) {
  const auto report = report_of(R"({"time":90,"kind":"resumed","inner_step":0,"tokens":0}
{"time":1000,"kind":"inner_step","inner_step":1,"tokens":1000}
{"time":1500,"kind":"inner_step","inner_step":2,"tokens":2000}
{"time":1900,"kind":"merge","inner_step":2,"outer_step":1}
{"time":2000,"kind":"inner_step","inner_step":3,"tokens":3000}
)");
  EXPECT_DOUBLE_EQ(report.tokens_per_second, 2);
}

// What a crash lost was trained, but is in no step.
TEST(Report, TokensAreThoseThatWereDecided) {
  std::vector<inter::Certificate> records(2);
  for (auto& certificate : records) certificate.record.parts.resize(2);
  for (std::size_t i = 0; i < 2; ++i) {
    records[i].record.parts[0] = {.site = 1, .root = {}, .tokens = 300 + i, .base = {}};
    records[i].record.parts[1] = {.site = 2, .root = {}, .tokens = 5, .base = {}};
  }
  records[1].record.parts.pop_back();
  SiteReport report;
  report.outer_steps_planned = 6;
  report.tokens = report.tokens_trained = 10'000;
  read_records(records, 2, report);
  EXPECT_EQ(report.outer_steps, 2);
  EXPECT_EQ(report.tokens, 5U);
  EXPECT_THAT(to_text({{report}, {}}),
              HasSubstr("2 of 6 outer steps, 5 tokens (of 10.0 k trained: "));
  read_records(records, 1, report);
  EXPECT_EQ(report.tokens, 601U);
}

}  // namespace
}  // namespace isthmus::launcher
