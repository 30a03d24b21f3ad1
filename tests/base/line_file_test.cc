#include "base/line_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/base/temporary_folder.h"

namespace isthmus {
namespace {

class LineFileTest : public testing::Test {
 protected:
  std::string text() const {
    std::ostringstream all;
    all << std::ifstream(path_).rdbuf();
    return all.str();
  }
  void add(std::string_view text) const { std::ofstream(path_, std::ios::app) << text; }

  // As on a disk that has room for so many bytes more.
  template <class Work>
  void with_room_for(std::uintmax_t bytes, const Work& work) const {
    std::signal(SIGXFSZ, SIG_IGN);
    rlimit limit{};
    ::getrlimit(RLIMIT_FSIZE, &limit);
    const rlimit cut{std::filesystem::file_size(path_) + bytes, limit.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &cut), 0);
    work();
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  }

  const TemporaryFolder folder_;
  const std::string path_ = folder_ / "lines";
};

TEST_F(LineFileTest, WhatFindsNoRoomLeavesNothing) {
  auto file = LineFile::open(path_);
  ASSERT_TRUE(file);
  EXPECT_TRUE(file->append("one"));
  with_room_for(3, [&] {
    EXPECT_FALSE(file->append("three"));
    EXPECT_EQ(text(), "one\n");
    EXPECT_TRUE(file->append("2"));
  });
  EXPECT_TRUE(file->append("four"));
  EXPECT_EQ(text(), "one\n2\nfour\n");
}

TEST_F(LineFileTest, WhatACrashToreIsCutOff) {
  const std::string long_line(10'000, 'x');  // longer than one look back
  for (const std::string& before : {std::string(), std::string("one\n"), long_line + "\n"})
    for (const std::string& torn : {std::string("to"), long_line}) {
      std::ofstream(path_) << before << torn;
      auto file = LineFile::open(path_);
      ASSERT_TRUE(file);
      EXPECT_EQ(file->tail(1 << 20), before);
      EXPECT_TRUE(file->append("next"));
      EXPECT_EQ(text(), before + "next\n");
    }
}

TEST_F(LineFileTest, WhoHoldsTheLockForLongHoldsUpNobody) {
  add("one\nto");
  const int other = ::open(path_.c_str(), O_RDWR);
  ASSERT_EQ(::flock(other, LOCK_EX), 0);
  auto file = LineFile::open(path_);
  ASSERT_TRUE(file);
  EXPECT_TRUE(file->append("two"));
  EXPECT_EQ(text(), "one\nto\ntwo\n") << "what the other may be writing stays";
  ::close(other);
}

TEST_F(LineFileTest, TheTailEndsWithAWholeLine) {
  auto file = LineFile::open(path_);
  ASSERT_TRUE(file);
  EXPECT_EQ(file->tail(10), "");
  add("one\ntwo\nthr");
  EXPECT_EQ(file->tail(6), "e\ntwo\n");
  EXPECT_EQ(file->tail(100), "one\ntwo\n");
}

TEST_F(LineFileTest, AFolderThatIsNotThereIsAnError) {
  EXPECT_EQ(LineFile::open("/nonexistent/lines").error().code, ErrorCode::not_found);
}

}  // namespace
}  // namespace isthmus
