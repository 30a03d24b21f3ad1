#include "runtime/text_corpus.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <filesystem>

#include "base/random.h"
#include "tests/base/temporary_folder.h"

namespace isthmus::runtime {
namespace {

using testing::HasSubstr;

// The reference's way: split on "\n\n", deal by index, join by "\n\n".
std::pair<std::string, std::string> split_plainly(std::string_view text) {
  std::pair<std::string, std::string> parts;
  bool first[2] = {true, true};
  for (std::size_t i = 0;; ++i) {
    const auto end = text.find("\n\n");
    const bool held_out = i % 20 == 7;
    auto& part = held_out ? parts.second : parts.first;
    if (!first[held_out]) part += "\n\n";
    first[held_out] = false;
    part += text.substr(0, end);
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 2);
  }
}

class TextCorpusTest : public testing::Test {
 protected:
  Result<PreparedText> prepare(std::string_view source) {
    return prepare_text(*disk_, folder_ / source, folder_ / "out/train.txt",
                        folder_ / "out/held_out.txt");
  }
  void write_gzip(std::string_view name, std::string_view text) {
    const gzFile file = gzopen((folder_ / name).c_str(), "wb");
    ASSERT_EQ(gzwrite(file, text.data(), static_cast<unsigned>(text.size())),
              static_cast<int>(text.size()));
    gzclose(file);
  }
  void expect_split(std::string_view source, std::string_view text) {
    const auto prepared = prepare(source);
    ASSERT_TRUE(prepared) << prepared.error().text();
    const auto [train, held_out] = split_plainly(text);
    EXPECT_EQ(contents_of(folder_ / "out/train.txt"), train);
    EXPECT_EQ(contents_of(folder_ / "out/held_out.txt"), held_out);
    EXPECT_EQ(prepared->train_bytes, train.size());
    EXPECT_EQ(prepared->held_out_bytes, held_out.size());
  }
  // Text with runs of newlines of every length, also at its ends.
  static std::string newline_soup(std::uint64_t seed, std::size_t pieces) {
    Random random(seed);
    std::string text;
    for (std::size_t i = 0; i < pieces; ++i) {
      text.append(random.below(6), '\n');
      text.append(random.below(9), static_cast<char>('a' + random.below(26)));
    }
    return text;
  }

  TemporaryFolder folder_;
  std::unique_ptr<Disk> disk_ = make_system_disk();
};

TEST_F(TextCorpusTest, SplitsAsTheReferenceDoes) {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    const auto text = newline_soup(seed, 400);
    write_contents(folder_ / "text.txt", text);
    expect_split("text.txt", text);
  }
}

TEST_F(TextCorpusTest, SplitsAcrossItsBuffers) {
  const auto text = newline_soup(1, 700'000);  // several MiB
  ASSERT_GT(text.size(), std::size_t{3} << 20);
  write_contents(folder_ / "text.txt", text);
  expect_split("text.txt", text);
}

// Lines that end as in DOS, or with blanks: a blank line is one all the same.
TEST_F(TextCorpusTest, BlankLinesMayHaveBlanks) {
  std::string text, expected;
  for (int i = 0; i < 60; ++i) {
    const auto paragraph = fmt::format("paragraph {}\r\n of two lines\r", i);
    text += paragraph + (i % 3 == 0 ? "\n\r\n" : i % 3 == 1 ? "\n \t \n" : "\n\n");
    expected += paragraph + "\n\n";
  }
  write_contents(folder_ / "text.txt", text);
  expect_split("text.txt", expected);
}

TEST_F(TextCorpusTest, ReadsGzip) {
  const auto text = newline_soup(2, 5000);
  write_gzip("text.txt.gz", text);
  expect_split("text.txt.gz", text);
}

TEST_F(TextCorpusTest, BrokenInputLeavesTheOldFilesAlone) {
  std::filesystem::create_directories(folder_ / "out");
  write_contents(folder_ / "out/train.txt", "old");
  write_contents(folder_ / "out/held_out.txt", "old");
  write_gzip("whole.gz", newline_soup(3, 5000));
  const auto bytes = contents_of(folder_ / "whole.gz");
  write_contents(folder_ / "cut.gz", bytes.substr(0, bytes.size() / 2));
  auto damaged = bytes;
  damaged[bytes.size() / 2] = static_cast<char>(damaged[bytes.size() / 2] ^ 0x55);
  write_contents(folder_ / "damaged.gz", damaged);
  write_contents(folder_ / "few.txt", "one\n\ntwo\n\nthree");
  for (const char* name : {"cut.gz", "damaged.gz"}) {
    const auto prepared = prepare(name);
    ASSERT_FALSE(prepared) << name;
    EXPECT_EQ(prepared.error().code, ErrorCode::corrupt);
    EXPECT_THAT(prepared.error().text(), HasSubstr(name));
  }
  const auto few = prepare("few.txt");
  ASSERT_FALSE(few);
  EXPECT_EQ(few.error().code, ErrorCode::invalid_argument);
  EXPECT_THAT(few.error().text(), HasSubstr("3 paragraphs"));
  const auto missing = prepare("missing.txt");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, ErrorCode::not_found);
  EXPECT_EQ(contents_of(folder_ / "out/train.txt"), "old");
  EXPECT_EQ(contents_of(folder_ / "out/held_out.txt"), "old");
  for (const char* rest : {"out/train.txt.new", "out/held_out.txt.new"})
    EXPECT_FALSE(std::filesystem::exists(folder_ / rest)) << rest;
}

TEST_F(TextCorpusTest, OneFileIsNotTwo) {
  const auto text = newline_soup(4, 400);
  write_contents(folder_ / "text.txt", text);
  write_contents(folder_ / "part.txt", "old");
  std::filesystem::create_symlink("text.txt", folder_ / "link.txt");
  const std::string source = folder_ / "text.txt", part = folder_ / "part.txt";
  for (const auto& [train, held_out] : {std::pair<std::string, std::string>{part, part},
                                        {source, part},
                                        {part, folder_ / "./text.txt"},
                                        {part, folder_ / "link.txt"},
                                        {part, part + ".new"}}) {
    const auto prepared = prepare_text(*disk_, source, train, held_out);
    ASSERT_FALSE(prepared) << train << " " << held_out;
    EXPECT_EQ(prepared.error().code, ErrorCode::invalid_argument);
    EXPECT_THAT(prepared.error().text(), HasSubstr("must be three files"));
  }
  EXPECT_EQ(contents_of(source), text);
  EXPECT_EQ(contents_of(part), "old");
}

}  // namespace
}  // namespace isthmus::runtime
