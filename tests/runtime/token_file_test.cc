#include "runtime/token_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/random.h"
#include "runtime/batch_loss.h"
#include "tests/base/temporary_folder.h"

namespace isthmus::runtime {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

class TokenFileTest : public testing::Test {
 protected:
  template <class T>
  std::string write(std::initializer_list<T> ids) {
    std::string bytes;
    for (const T id : ids)
      for (std::size_t i = 0; i < sizeof(T); ++i) bytes += static_cast<char>(id >> 8 * i);
    write_contents(path_, bytes);
    return path_;
  }
  Result<TokenFile> open(const TokenFormat& format) {
    return TokenFile::open(*disk_, path_, format);
  }
  std::vector<std::int32_t> ids(const TokenFile& file) {
    std::vector<std::int32_t> out(file.tokens());
    EXPECT_TRUE(file.read(0, out));
    return out;
  }

  TemporaryFolder folder_;
  std::string path_ = folder_ / "tokens.bin";
  std::unique_ptr<Disk> disk_ = make_system_disk();
};

TEST_F(TokenFileTest, ReadsEachWidth) {
  write<std::uint8_t>({0, 127, 255});
  EXPECT_THAT(ids(*open({})), ElementsAre(0, 127, 255));
  write<std::uint16_t>({1, 50256, 65535});
  EXPECT_THAT(ids(*open({TokenWidth::two, 65536})), ElementsAre(1, 50256, 65535));
  write<std::uint32_t>({1, 128255, 70000});
  EXPECT_THAT(ids(*open({TokenWidth::four, 128256})), ElementsAre(1, 128255, 70000));
}

TEST_F(TokenFileTest, EveryIdIsCheckedAgainstTheVocabulary) {
  const auto expect_refused = [&](const TokenFormat& format, const std::string& id) {
    const auto file = open(format);
    ASSERT_TRUE(file);
    std::vector<std::int32_t> out(2);
    EXPECT_TRUE(file->read(0, out));
    const auto read = file->read(1, out);
    ASSERT_FALSE(read);
    EXPECT_EQ(read.error().code, ErrorCode::corrupt);
    EXPECT_THAT(read.error().text(), AllOf(HasSubstr("tokens.bin: token 2 is " + id + ","),
                                           HasSubstr("another tokenizer")));
  };
  write<std::uint8_t>({0, 1, 255});
  expect_refused({TokenWidth::byte, 255}, "255");
  write<std::uint16_t>({0, 1, 50257});
  expect_refused({TokenWidth::two, 50257}, "50257");
  write<std::uint32_t>({0, 1, 0xFFFFFFFF});
  expect_refused({TokenWidth::four, 128256}, "4294967295");
}

TEST_F(TokenFileTest, AMaskHidesTargets) {
  write<std::uint16_t>({5, 6, 7, 8});
  write_contents(mask_path(path_), std::string("\0\1\0\1", 4));
  const auto file = open({TokenWidth::two, 10});
  ASSERT_TRUE(file);
  std::vector<std::int32_t> targets = {6, 7, 8};
  ASSERT_TRUE(file->hide(1, targets));
  EXPECT_THAT(targets, ElementsAre(6, kIgnoredTarget, 8));
  write_contents(mask_path(path_), "short");
  EXPECT_EQ(open({TokenWidth::two, 10}).error().code, ErrorCode::corrupt);
}

TEST_F(TokenFileTest, FactsSayHowItIsWritten) {
  write<std::uint32_t>({1, 2});
  TokenFileFacts facts{.width = TokenWidth::four,
                       .tokenizer = "abc",
                       .tokenizer_name = "a tokenizer",
                       .tokens = 2,
                       .targets = 1,
                       .documents = 1,
                       .text_bytes = 9,
                       .source = "a \"b\" \xff",
                       .split = "all"};
  write_contents(facts_path(path_), to_json(facts));
  EXPECT_THAT(ids(*open({TokenWidth::two, 10, "abc"})), ElementsAre(1, 2));
  EXPECT_THAT(ids(*open({TokenWidth::two, 10})), ElementsAre(1, 2));  // nobody knows the tokenizer
  const auto other = open({TokenWidth::two, 10, "abd"});
  EXPECT_EQ(other.error().code, ErrorCode::mismatch);
  EXPECT_THAT(other.error().text(), HasSubstr("a tokenizer"));
  write<std::uint32_t>({1, 2, 3});
  EXPECT_THAT(open({TokenWidth::two, 10, "abc"}).error().text(), HasSubstr("prepare it again"));

  facts.source = "plain";
  const auto json = to_json(facts);
  EXPECT_EQ(*parse_token_file_facts(json), facts);
  Random random(1);
  for (std::size_t cut = 0; cut + 2 < json.size(); ++cut) {
    EXPECT_FALSE(parse_token_file_facts(json.substr(0, cut)));
    auto damaged = json;
    damaged[cut] = static_cast<char>(random.below(256));
    (void)parse_token_file_facts(damaged);
  }
}

TEST_F(TokenFileTest, HalfATokenIsNone) {
  write_contents(path_, "abc");
  const auto file = open({TokenWidth::two, 100});
  ASSERT_FALSE(file);
  EXPECT_EQ(file.error().code, ErrorCode::corrupt);
  EXPECT_THAT(file.error().text(), HasSubstr("data.dtype"));
}

}  // namespace
}  // namespace isthmus::runtime
