#include "launcher/train_lines.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

namespace isthmus::launcher {
namespace {

class HandClock final : public Clock {
 public:
  Nanoseconds now() const override { return time; }
  Nanoseconds unix_time() const override { return time; }
  Nanoseconds time = 0;
};

class TrainLinesTest : public testing::Test {
 protected:
  TrainLines::Options options_{.site = "alpha", .peak = 1e9, .pause = 10 * kSecond};
  HandClock clock_;
  runtime::Objective objective_ = runtime::Objective::next_token;

  std::vector<std::string> lines_of(int steps, Nanoseconds step_time) {
    std::unique_ptr<std::FILE, int (*)(std::FILE*)> out(std::tmpfile(), &std::fclose);
    TrainLines lines(out.get(), clock_, options_);
    for (int step = 1; step <= steps; ++step) {
      clock_.time += step_time;
      lines.inner_step({.inner_step = step,
                        .steps_left = steps - step,
                        .outer_step = 2,
                        .loss = 2.8125,
                        .tokens = static_cast<std::uint64_t>(100 * step),
                        .seconds = seconds_of(step_time),
                        .tokens_per_second = 12345,
                        .flops_per_second = 6.1e8,
                        .learning_rate = 0.0019,
                        .gradient_norm = 0.8333,
                        .skipped_steps = step == steps ? 3U : 0U,
                        .objective = objective_});
      lines.held_out({.inner_step = step, .outer_step = 2, .text = "en", .loss = {1, 2, 3}});
    }
    std::string text(std::size_t(1) << 20, '\0');
    std::rewind(out.get());
    text.resize(std::fread(text.data(), 1, text.size(), out.get()));
    std::vector<std::string> found;
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);) found.push_back(line);
    return found;
  }
};

TEST_F(TrainLinesTest, PeopleReadOneNowAndThenAndTheLast) {
  const auto lines = lines_of(24, kSecond);  // at 1, 11, 21 and 24 s
  ASSERT_EQ(lines.size(), 4U);
  EXPECT_EQ(lines[0],
            "alpha step 1/24  loss 2.812  12.3 k tokens/s  61 % of peak  rate 0.0019  gradient "
            "0.833  23.0 s left");
  EXPECT_TRUE(lines[1].starts_with("alpha step 11/24  ")) << lines[1];
  EXPECT_TRUE(lines[1].ends_with("  13.0 s left")) << lines[1];
  EXPECT_EQ(lines[3],
            "alpha step 24/24  loss 2.812  12.3 k tokens/s  61 % of peak  rate 0.0019  gradient "
            "0.833  3 skipped");
}

TEST_F(TrainLinesTest, APeakThatIsNotKnownIsNotNamed) {
  options_.peak = 0;
  EXPECT_EQ(lines_of(1, kSecond).front(),
            "alpha step 1/1  loss 2.812  12.3 k tokens/s  rate 0.0019  gradient 0.833  3 skipped");
}

TEST_F(TrainLinesTest, HiddenTokensAreCalledSo) {
  objective_ = runtime::Objective::masked_tokens;
  EXPECT_TRUE(lines_of(24, kSecond)[0].starts_with(
      "alpha step 1/24  loss 2.812  12.3 k hidden tokens/s  "));
  options_.format = LogFormat::json;
  EXPECT_EQ(nlohmann::json::parse(lines_of(1, kSecond)[0])["objective"], "masked_tokens");
  objective_ = runtime::Objective::next_token;
  EXPECT_FALSE(nlohmann::json::parse(lines_of(1, kSecond)[0]).contains("objective"));
}

TEST_F(TrainLinesTest, WhereNothingCanBeWrittenNothingHappens) {
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> full(std::fopen("/dev/full", "w"), &std::fclose);
  ASSERT_NE(full, nullptr);
  for (const auto format : {LogFormat::human, LogFormat::json}) {
    options_.format = format;
    TrainLines lines(full.get(), clock_, options_);
    EXPECT_NO_THROW(lines.inner_step({.inner_step = 1}));
  }
}

TEST_F(TrainLinesTest, ProgramsReadAll) {
  options_.format = LogFormat::json;
  const auto lines = lines_of(24, kSecond);
  ASSERT_EQ(lines.size(), 24U);
  const auto json = nlohmann::json::parse(lines[11]);
  EXPECT_EQ(json["event"], "inner_step");
  EXPECT_EQ(json["site"], "alpha");
  EXPECT_EQ(json["outer_step"], 2);
  EXPECT_EQ(json["inner_step"], 12);
  EXPECT_EQ(json["steps_left"], 12);
  EXPECT_EQ(json["loss"], 2.8125);
  EXPECT_EQ(json["tokens"], 1200);
  EXPECT_EQ(json["tokens_per_second"], 12345);
  EXPECT_EQ(json["share_of_peak"], 0.61);
  EXPECT_EQ(json["learning_rate"], 0.0019);
  EXPECT_EQ(json["gradient_norm"], 0.8333);
  EXPECT_EQ(json["skipped_steps"], 0);
  EXPECT_NEAR(json["seconds_left"].get<double>(), 12, 1e-9);
}

}  // namespace
}  // namespace isthmus::launcher
