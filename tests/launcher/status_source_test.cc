#include "launcher/status_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "launcher/run_folder.h"
#include "tests/base/temporary_folder.h"

namespace isthmus::launcher {
namespace {

using ::testing::HasSubstr;

class StatusSourceTest : public ::testing::Test {
 protected:
  StatusSourceTest() {
    file_.site.name = "solo";
    file_.site.run_dir = folder_.path();
    file_.sync.inner_steps = 10;
    file_.sync.outer_steps = 1000;
  }

  void train(int first, int last) {
    std::ofstream out(folder_ / "metrics.jsonl", std::ios::app);
    for (int i = first; i <= last; ++i)
      out << R"({"time":)" << 1000 + i << R"(,"kind":"inner_step","inner_step":)" << i
          << R"(,"loss":2.5,"tokens_per_second":)" << i << R"(,"filler":")" << std::string(200, 'x')
          << "\"}\n";
  }

  const TemporaryFolder folder_;
  SiteFile file_;
  std::unique_ptr<Disk> disk_ = make_system_disk();
};

TEST_F(StatusSourceTest, ALongRunAloneStandsWhereItStands) {
  train(1, 9995);
  const auto lock = lock_run(*disk_, RunFolder(folder_.path()));
  ASSERT_TRUE(lock);
  const auto source = make_status_source(file_);
  auto status = source->poll();
  ASSERT_TRUE(status) << status.error().text();
  EXPECT_EQ(status->ranks.at(0).inner_step, 9995U);
  EXPECT_EQ(status->outer_step, 999U);
  EXPECT_EQ(status->uptime_s, 9994);
  train(9996, 9997);
  EXPECT_EQ(source->poll()->ranks.at(0).inner_step, 9997U);
}

TEST_F(StatusSourceTest, WhatNobodyRunsIsNotTraining) {
  EXPECT_THAT(make_status_source(file_)->poll().error().text(), HasSubstr("no outer step"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "lock")) << "looking changes nothing";
  train(1, 995);
  const auto stopped = make_status_source(file_)->poll();
  ASSERT_FALSE(stopped);
  EXPECT_EQ(stopped.error().code, ErrorCode::unavailable);
  EXPECT_THAT(stopped.error().text(), HasSubstr("does not run; 99 of 1000 outer steps"));
  const auto source = make_status_source(file_);
  ASSERT_FALSE(source->poll());
  EXPECT_FALSE(source->complete_at());
  train(996, 10'000);
  EXPECT_THAT(source->poll().error().text(), HasSubstr("complete: 1000 outer steps"));
  EXPECT_EQ(source->complete_at(), 1000U);
  file_.site.roster = "roster.toml";
  EXPECT_THAT(make_status_source(file_)->poll().error().text(), HasSubstr("no outer step"));
}

}  // namespace
}  // namespace isthmus::launcher
