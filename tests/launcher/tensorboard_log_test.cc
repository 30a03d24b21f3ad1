#include "launcher/tensorboard_log.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tests/base/temporary_folder.h"

namespace isthmus::launcher {
namespace {

// CRC-32C by its definition, a bit at a time.
std::uint32_t crc32c(std::string_view bytes) {
  std::uint32_t crc = ~0U;
  for (const char c : bytes) {
    crc ^= static_cast<std::uint8_t>(c);
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ ((crc & 1) != 0 ? 0x82F63B78U : 0);
  }
  return ~crc;
}
std::uint32_t masked(std::uint32_t crc) { return (crc >> 15 | crc << 17) + 0xa282ead8U; }

template <class T>
T number_at(std::string_view bytes, std::size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}

// The data of each record, whose sums must be right.
std::vector<std::string> records(std::string_view file) {
  EXPECT_EQ(crc32c("123456789"), 0xE3069283U);  // the check value of CRC-32C
  std::vector<std::string> found;
  while (file.size() >= 16) {
    const auto length = number_at<std::uint64_t>(file, 0);
    EXPECT_EQ(number_at<std::uint32_t>(file, 8), masked(crc32c(file.substr(0, 8))));
    if (length + 16 > file.size()) break;
    found.emplace_back(file.substr(12, length));
    EXPECT_EQ(number_at<std::uint32_t>(file, 12 + length), masked(crc32c(found.back())));
    file.remove_prefix(16 + length);
  }
  EXPECT_EQ(file.size(), 0U);
  return found;
}

class TensorBoardLogTest : public testing::Test {
 protected:
  std::vector<std::string> files() {
    std::map<std::string, std::string> sorted;
    for (const auto& entry : std::filesystem::directory_iterator(std::string(folder_ / "board")))
      sorted[entry.path()] = contents_of(entry.path());
    std::vector<std::string> contents;
    for (const auto& [path, text] : sorted) {
      EXPECT_NE(path.find("/events.out.tfevents."), std::string::npos);
      contents.push_back(text);
    }
    return contents;
  }

  TemporaryFolder folder_;
  std::unique_ptr<Disk> disk_ = make_system_disk();
  std::unique_ptr<Clock> clock_ = make_system_clock();
};

TEST_F(TensorBoardLogTest, WritesRecordsOfScalars) {
  {
    auto log = TensorBoardLog::open(*disk_, folder_ / "board", *clock_);
    ASSERT_TRUE(log) << log.error().text();
    (*log)->inner_step({.inner_step = 300, .loss = 2.5});
    // It can be looked at while the training goes on.
    EXPECT_EQ(records(files().front()).size(), 2U + 4);
    (*log)->held_out({.inner_step = 300, .outer_step = 0, .text = "en", .loss = {1.5, 9, 1}});
  }
  const auto found = records(files().front());
  ASSERT_EQ(found.size(), 2U + 4 + 2);
  EXPECT_TRUE(
      found[0].ends_with("\x1a\x0d"
                         "brain.Event:2"));                             // field 3
  EXPECT_TRUE(found[1].ends_with(std::string("\x3a\x02\x08\x01", 4)));  // session_log: START
  // wall_time, then step 300 as a varint, then the summary: value { tag, simple_value }.
  const auto& loss = found[2];
  EXPECT_EQ(loss[0], 0x09);
  EXPECT_NEAR(number_at<double>(loss, 1), seconds_of(clock_->unix_time()), 60);
  std::string summary("\x10\xac\x02\x2a\x13\x0a\x11\x0a\x0atrain/loss\x15", 3 + 2 + 2 + 2 + 10 + 1);
  const float value = 2.5F;
  summary.append(reinterpret_cast<const char*>(&value), sizeof(value));
  EXPECT_EQ(loss.substr(9), summary);
  EXPECT_NE(found[7].find("held_out/en/perplexity"), std::string::npos);
}

TEST_F(TensorBoardLogTest, WhatIsOfHiddenTokensIsCalledSo) {
  constexpr auto kHidden = runtime::Objective::masked_tokens;
  auto log = TensorBoardLog::open(*disk_, folder_ / "board", *clock_);
  ASSERT_TRUE(log);
  (*log)->inner_step({.inner_step = 1, .objective = kHidden});
  (*log)->held_out({.inner_step = 1, .outer_step = 0, .text = "en", .loss = {1.5, 9, 1, kHidden}});
  std::string all;
  for (const auto& record : records(files().front())) all += record;
  for (const auto* tag : {"train/hidden_tokens_per_second", "held_out/en/bits_per_hidden_byte",
                          "held_out/en/hidden_perplexity"})
    EXPECT_NE(all.find(tag), std::string::npos) << tag;
  for (const auto* tag : {"train/tokens_per_second", "en/bits_per_byte", "en/perplexity"})
    EXPECT_EQ(all.find(tag), std::string::npos) << tag;
}

TEST_F(TensorBoardLogTest, EachTrainingHasAFileOfItsOwn) {
  for (int i = 0; i < 3; ++i) {
    auto log = TensorBoardLog::open(*disk_, folder_ / "board", *clock_);
    ASSERT_TRUE(log);
    (*log)->inner_step({.inner_step = 1});
  }
  EXPECT_EQ(files().size(), 3U);
}

TEST_F(TensorBoardLogTest, AFolderThatCannotBeIsAnError) {
  write_contents(folder_ / "file", "");
  const auto log = TensorBoardLog::open(*disk_, folder_ / "file/board", *clock_);
  ASSERT_FALSE(log);
  EXPECT_NE(log.error().text().find(folder_ / "file"), std::string::npos) << log.error().text();
}

}  // namespace
}  // namespace isthmus::launcher
