#include "launcher/seed_record.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "tests/base/temporary_folder.h"

namespace isthmus::launcher {
namespace {

using testing::HasSubstr;

class SeedRecordTest : public testing::Test {
 protected:
  Result<SeedRecord> open(const std::string& identity = "program storm") {
    return SeedRecord::open(*disk_, path_, identity);
  }
  std::unique_ptr<Disk> disk_ = make_system_disk();
  const TemporaryFolder folder_;
  const std::string path_ = folder_ / "storm.seeds";
  const SeedResult held_{7, 1000, 12, 88.125, ""};
  const SeedResult failed_{9, 10, 3, 1.5, "[1.5 s] s2 has another\nstate: 4"};
};

TEST_F(SeedRecordTest, WhereNothingCanBeWrittenItSaysWhatToDo) {
  std::filesystem::create_directory(path_ + ".lock");
  const auto record = open();
  ASSERT_FALSE(record);
  EXPECT_EQ(record.error().code, ErrorCode::invalid_argument);
  EXPECT_THAT(record.error().text(), HasSubstr("name another file with --resume"));
}

TEST_F(SeedRecordTest, RemembersWhatWasAdded) {
  {
    auto record = open();
    ASSERT_TRUE(record) << record.error().text();
    EXPECT_TRUE(record->results().empty());
    ASSERT_TRUE(record->add(held_));
    ASSERT_TRUE(record->add(failed_));
  }
  auto record = open();
  ASSERT_TRUE(record) << record.error().text();
  ASSERT_EQ(record->results().size(), 2U);
  EXPECT_EQ(record->results().at(7), held_);
  EXPECT_EQ(record->results().at(9).violation, "[1.5 s] s2 has another state: 4");
}

// As kill -9 leaves it: any number of its last bytes missing.
TEST_F(SeedRecordTest, ForgetsATornLastLineOnly) {
  {
    auto record = open();
    ASSERT_TRUE(record && record->add(held_) && record->add(failed_));
  }
  const auto whole = contents_of(path_);
  const auto first = whole.find('\n') + 1, second = whole.find('\n', first) + 1;
  for (std::size_t size = 0; size < whole.size(); ++size) {
    write_contents(path_, whole.substr(0, size));
    auto record = open();
    ASSERT_TRUE(record) << size << record.error().text();
    EXPECT_EQ(record->results().size(), size < second ? 0U : 1U) << size;
    ASSERT_TRUE(record->add({.seed = 11}));
    record = Error{ErrorCode::closed, ""};
    EXPECT_EQ(open()->results().count(11), 1U) << size;
  }
}

TEST_F(SeedRecordTest, IsOfOneProgramAndScenario) {
  ASSERT_TRUE(open());
  const auto other = open("another storm");
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().code, ErrorCode::mismatch);
  EXPECT_THAT(other.error().text(), HasSubstr("another build of isthmus"));
}

TEST_F(SeedRecordTest, IsNoOtherFile) {
  write_contents(path_, "[site]\nname = \"alpha\"\n");
  EXPECT_EQ(open().error().code, ErrorCode::corrupt);
  EXPECT_EQ(contents_of(path_), "[site]\nname = \"alpha\"\n");
  EXPECT_FALSE(std::filesystem::exists(path_ + ".lock")) << "nothing is left beside it";
  std::filesystem::remove(path_);
  ASSERT_TRUE(open());
  write_contents(path_, contents_of(path_) + "7 1000 12 88.125 hold\n");
  const auto damaged = open();
  EXPECT_EQ(damaged.error().code, ErrorCode::corrupt);
  EXPECT_THAT(damaged.error().text(), HasSubstr("name another file with --resume"));
}

// What it advises helps.
TEST_F(SeedRecordTest, ThatIsDamagedSaysHowToKeepWhatIsBeforeThat) {
  {
    auto record = open();
    ASSERT_TRUE(record && record->add(held_));
  }
  const auto whole = contents_of(path_);
  write_contents(path_, whole + "9 10 3\n11 1000 12 88.125 held\n");
  const auto damaged = open();
  ASSERT_FALSE(damaged);
  EXPECT_EQ(damaged.error().code, ErrorCode::corrupt);
  EXPECT_THAT(damaged.error().text(),
              HasSubstr(fmt::format("truncate -s {} {} keeps the 1 seed before that", whole.size(),
                                    path_)));
  std::filesystem::resize_file(path_, whole.size());
  auto record = open();
  ASSERT_TRUE(record) << record.error().text();
  EXPECT_EQ(record->results().size(), 1U);
}

TEST_F(SeedRecordTest, IsInAFolderThatIsThere) {
  const auto record = SeedRecord::open(*disk_, folder_ / "none/storm.seeds", "program storm");
  ASSERT_FALSE(record);
  EXPECT_EQ(record.error().code, ErrorCode::invalid_argument);
  EXPECT_THAT(record.error().text(), HasSubstr("there is no folder " + folder_.path() + "/none"));
}

TEST_F(SeedRecordTest, WhereNobodyCanLookForItSaysWhatToDo) {
  const auto record =
      SeedRecord::open(*disk_, folder_ / std::string(300, 'x'), "program storm");  // no such name
  ASSERT_FALSE(record);
  EXPECT_THAT(record.error().text(), HasSubstr("name another file with --resume: cannot stat"));
}

TEST_F(SeedRecordTest, IsNoPipeAndNoDevice) {
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  const auto record = open();
  ASSERT_FALSE(record);
  EXPECT_THAT(record.error().text(), HasSubstr("name another"));
  EXPECT_TRUE(std::filesystem::is_fifo(path_));
  EXPECT_FALSE(std::filesystem::exists(path_ + ".lock"));
}

TEST_F(SeedRecordTest, IsWrittenByOneProcess) {
  const auto record = open();
  ASSERT_TRUE(record);
  const auto second = open();
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, ErrorCode::busy);
  EXPECT_THAT(second.error().text(), HasSubstr("wait until it has ended, or name another file"));
}

}  // namespace
}  // namespace isthmus::launcher
