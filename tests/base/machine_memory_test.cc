#include "base/machine_memory.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <limits>

#include "tests/base/temporary_folder.h"

namespace isthmus {
namespace {

class CgroupTest : public testing::Test {
 protected:
  void write(const std::string& name, const std::string& text) {
    const std::filesystem::path path = folder_ / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text << '\n';
  }
  std::uint64_t limit() const {
    return cgroup_memory_limit(folder_ / "membership", folder_ / "mount");
  }

  TemporaryFolder folder_;
};

constexpr auto kNone = std::numeric_limits<std::uint64_t>::max();

TEST_F(CgroupTest, TheLeastOfTheGroupAndThoseAboveHolds) {
  EXPECT_EQ(limit(), kNone) << "no control groups";
  write("membership", "0::/slurm/job_7/step_0");
  EXPECT_EQ(limit(), kNone);
  write("mount/slurm/job_7/step_0/memory.max", "max");
  EXPECT_EQ(limit(), kNone);
  write("mount/slurm/job_7/memory.max", "8589934592");
  EXPECT_EQ(limit(), 8589934592U);
  write("mount/memory.max", "1073741824");
  EXPECT_EQ(limit(), 1073741824U);
}

TEST_F(CgroupTest, OfTheOldKindOnlyTheMemoryControllerCounts) {
  write("membership", "5:cpu,cpuacct:/a\n9:hugetlb,memory:/b\n0::/");
  write("mount/cpu/a/memory.limit_in_bytes", "1");
  write("mount/memory/a/memory.limit_in_bytes", "2");
  write("mount/memory/b/memory.limit_in_bytes", "300");
  EXPECT_EQ(limit(), 300U);
}

TEST_F(CgroupTest, AMachineHasSomeMemory) {
  EXPECT_GT(machine_memory_bytes(), 1U << 26);
  EXPECT_LE(machine_memory_bytes(), cgroup_memory_limit());
}

}  // namespace
}  // namespace isthmus
