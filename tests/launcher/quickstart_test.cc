// tools/quickstart empties folders: never one that it did not make. tests/e2e runs it to its end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/base/temporary_folder.h"

namespace isthmus::launcher {
namespace {

using ::testing::HasSubstr;

class Quickstart : public ::testing::Test {
 protected:
  void write(const std::string& name) const {
    std::filesystem::create_directories(std::filesystem::path(folder_ / name).parent_path());
    std::ofstream(folder_ / name) << "mine";
  }

  // Its exit code, with a program in the place of isthmus that fails at once.
  int run(const std::string& arguments) {
    const auto output = folder_.path() + ".output";
    const int status =
        std::system(("ISTHMUS=/bin/false " ISTHMUS_SOURCE_DIR "/tools/quickstart --folder " +
                     folder_.path() + " " + arguments + " >" + output + " 2>&1")
                        .c_str());
    std::ifstream in(output);
    said_.assign(std::istreambuf_iterator<char>(in), {});
    std::filesystem::remove(output);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  const TemporaryFolder folder_;
  std::string said_;
};

TEST_F(Quickstart, LeavesFoldersAloneThatItDidNotMake) {
  write("data/thesis");
  write("alpha.txt");
  for (const char* arguments : {"", "--fresh", "--quick"}) {
    EXPECT_EQ(run(arguments), 2) << said_;
    EXPECT_THAT(said_, HasSubstr("name another folder"));
    EXPECT_TRUE(std::filesystem::exists(folder_ / "data/thesis"));
    EXPECT_TRUE(std::filesystem::exists(folder_ / "alpha.txt"));
  }
}

TEST_F(Quickstart, CleansItsOwn) {
  EXPECT_EQ(run(""), 1) << said_;  // the program that fails
  write("data/half");
  EXPECT_EQ(run(""), 1) << said_;
  EXPECT_FALSE(std::filesystem::exists(folder_ / "data/half"));
}

}  // namespace
}  // namespace isthmus::launcher
