#include "runtime/token_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "base/random.h"
#include "runtime/batch_loss.h"
#include "runtime/sampled_digest.h"
#include "tests/base/temporary_folder.h"

namespace isthmus::runtime {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

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
                       .documents_digest = "12ab",
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

// What each token and target of a window says, wherever the window begins.
class DocumentsTest : public TokenFileTest {
 protected:
  DocumentsTest() { write<std::uint16_t>({4, 5, 9, 6, 9, 9, 7, 8, 4, 5, 9, 3, 2}); }
  static constexpr std::int32_t kEnd = 9, kNone = kIgnoredTarget;

  void list(const std::vector<std::uint64_t>& begin) {
    std::string bytes;
    for (const auto at : begin)
      for (int i = 0; i < 8; ++i) bytes += static_cast<char>(at >> 8 * i);
    write_contents(documents_path(path_), bytes);
  }
  Result<void> part(std::uint64_t first, std::size_t count) {
    const auto file = open({.width = TokenWidth::two, .vocabulary = 10, .end = kEnd});
    EXPECT_TRUE(file) << file.error().text();
    EXPECT_TRUE(file->knows_documents());
    std::vector<std::int32_t> tokens(count);
    targets_.assign(count, 0);
    starts_.assign(count, -1);
    EXPECT_TRUE(file->read(first, tokens));
    EXPECT_TRUE(file->read(first + 1, targets_));
    return file->part(first, tokens, starts_, targets_);
  }
  void expect_as_by_ends() {
    ASSERT_TRUE(part(0, 12));
    EXPECT_THAT(starts_, ElementsAre(0, 0, 0, 3, 3, 5, 6, 6, 6, 6, 6, 11));
    EXPECT_THAT(targets_, ElementsAre(5, 9, kNone, 9, kNone, kNone, 8, 4, 5, 9, kNone, 2));
    ASSERT_TRUE(part(3, 3));  // to the last of a document, and no further
    EXPECT_THAT(starts_, ElementsAre(0, 0, 2));
    EXPECT_THAT(targets_, ElementsAre(9, kNone, kNone));
    ASSERT_TRUE(part(6, 4));  // inside of one
    EXPECT_THAT(starts_, ElementsAre(0, 0, 0, 0));
    EXPECT_THAT(targets_, ElementsAre(8, 4, 5, 9));
  }
  std::vector<std::int32_t> starts_, targets_;
};

TEST_F(DocumentsTest, EndTokensPartThem) { expect_as_by_ends(); }

TEST_F(DocumentsTest, OrAListThatSaysWhereEachBegins) {
  list({0, 3, 5, 6, 11});
  expect_as_by_ends();
  list({0, 4});  // whatever the tokens are
  ASSERT_TRUE(part(0, 12));
  EXPECT_THAT(starts_, ElementsAre(0, 0, 0, 0, 4, 4, 4, 4, 4, 4, 4, 4));
  list({});
  ASSERT_TRUE(part(2, 3));
  EXPECT_THAT(starts_, ElementsAre(0, 0, 0));
}

// A list that X.json does not mean would part elsewhere, or not at all, unnoticed.
TEST_F(DocumentsTest, AListMustBeTheOneThatTheFactsMean) {
  write_contents(
      facts_path(path_),
      to_json({.width = TokenWidth::two, .tokens = 13, .documents = 5, .has_documents = true}));
  list({0, 3, 5, 6, 11});
  expect_as_by_ends();
  for (const auto& other : {std::vector<std::uint64_t>{0, 3, 5, 6},
                            {},
                            {0, 1, 2, 3, 4, 5},
                            {1, 3, 5, 6, 11},
                            {0, 3, 5, 6, 13}}) {
    list(other);
    const auto file = open({TokenWidth::two, 10});
    ASSERT_FALSE(file) << other.size();
    EXPECT_EQ(file.error().code, ErrorCode::corrupt);
    EXPECT_THAT(file.error().text(),
                AllOf(HasSubstr("tokens.bin.documents"), HasSubstr("prepare it again")));
  }
  std::filesystem::remove(documents_path(path_));
  EXPECT_FALSE(open({TokenWidth::two, 10}));
  write<std::uint16_t>({});
  list({});
  write_contents(facts_path(path_), to_json({.width = TokenWidth::two, .has_documents = true}));
  EXPECT_TRUE(open({TokenWidth::two, 10}));
}

// Of as many documents, of which the first and the last begin where ours do.
TEST_F(DocumentsTest, AListOfAnotherFileIsRefused) {
  list({0, 3, 5, 6, 11});
  const auto disk = make_system_disk();
  const auto digest = sampled_digest(**disk->open(documents_path(path_), Disk::Open::read), 40);
  TokenFileFacts facts{.width = TokenWidth::two,
                       .tokens = 13,
                       .documents = 5,
                       .has_documents = true,
                       .documents_digest = digest->hex()};
  write_contents(facts_path(path_), to_json(facts));
  expect_as_by_ends();
  list({0, 3, 4, 6, 11});
  const auto file = open({TokenWidth::two, 10});
  ASSERT_FALSE(file);
  EXPECT_EQ(file.error().code, ErrorCode::corrupt);
  EXPECT_THAT(file.error().text(),
              AllOf(HasSubstr("tokens.bin.documents"), HasSubstr("belongs to another file"),
                    HasSubstr("prepare it again")));
  // As versions wrote it that kept no digest.
  facts.documents_digest.clear();
  write_contents(facts_path(path_), to_json(facts));
  EXPECT_TRUE(open({TokenWidth::two, 10}));
}

TEST_F(DocumentsTest, LongListsAreSearched) {
  Random random(5);
  std::string bytes(2 * 5000, '\1');
  write_contents(path_, bytes);
  std::vector<std::uint64_t> begin;
  for (std::uint64_t at = random.below(3); at < 5000;
       at += 1 + random.below(random.below(9) == 0 ? 300 : 4))
    begin.push_back(at);
  list(begin);
  const auto file = open({.width = TokenWidth::two, .vocabulary = 300});
  for (int draw = 0; draw < 300; ++draw) {
    const auto first = random.below(4000);
    const auto count = static_cast<std::size_t>(1 + random.below(900));
    std::vector<std::int32_t> tokens(count), starts(count), targets(count, 257);
    ASSERT_TRUE(file->part(first, tokens, starts, targets));
    std::int32_t start = 0;
    for (std::size_t i = 0; i < count; ++i) {
      if (i > 0 && std::ranges::binary_search(begin, first + i))
        start = static_cast<std::int32_t>(i);
      ASSERT_EQ(starts[i], start);
      ASSERT_EQ(targets[i] == kNone, std::ranges::binary_search(begin, first + i + 1));
    }
  }
}

TEST_F(DocumentsTest, AListThatIsNoneIsRefused) {
  write_contents(documents_path(path_), "nine byte");
  EXPECT_THAT(open({TokenWidth::two, 10}).error().text(), HasSubstr("prepare them again"));
  list(std::vector<std::uint64_t>(14, 1));  // more than tokens
  EXPECT_EQ(open({TokenWidth::two, 10}).error().code, ErrorCode::corrupt);
  for (const auto& begin : {std::vector<std::uint64_t>{0, 3, 3, 6}, {0, 5, 3, 6}, {0, 3, 99}}) {
    list(begin);
    const auto parted = part(0, 12);
    ASSERT_FALSE(parted);
    EXPECT_EQ(parted.error().code, ErrorCode::corrupt);
    EXPECT_THAT(parted.error().text(), HasSubstr("tokens.bin.documents: document 2 begins"));
  }
}

// The bytes of a text hold no end tokens, and those of prepared files may stand inside documents.
TEST_F(DocumentsTest, AreNotKnownOfTextsNorOfFilesThatSayWhatTheyAre) {
  const TokenFormat format{.width = TokenWidth::byte, .vocabulary = 10, .end = kEnd};
  write<std::uint8_t>({4, 9, 5});
  EXPECT_FALSE(open(format)->knows_documents());
  write_contents(facts_path(path_), to_json({.width = TokenWidth::two, .tokens = 2}));
  write<std::uint16_t>({4, 9});
  const auto prepared = open(format);
  ASSERT_TRUE(prepared) << prepared.error().text();
  EXPECT_FALSE(prepared->knows_documents());
  EXPECT_THAT(prepared->must_know_documents().error().text(),
              AllOf(HasSubstr("tokens.bin"), HasSubstr("JSON lines, a document each")));
}

TEST_F(DocumentsTest, WhatIsMissingIsNamed) {
  const TokenFormat format{.width = TokenWidth::two, .vocabulary = 10};
  const auto why = [&] { return open(format)->must_know_documents().error().text(); };
  EXPECT_THAT(why(), AllOf(HasSubstr("eos_token"), Not(HasSubstr("JSON lines"))));
  // As the first versions wrote it.
  auto json = to_json({.width = TokenWidth::two, .tokens = 13, .documents = 5});
  const std::string said = "  \"document_starts\": false,\n";
  const auto at = json.find(said);
  ASSERT_NE(at, json.npos);
  json.erase(at, said.size());
  write_contents(facts_path(path_), json);
  EXPECT_THAT(why(), HasSubstr("prepare it again"));
}

// llm.c writes 256 numbers of four bytes before the ids: a mark, a version, how many ids follow.
TEST_F(TokenFileTest, HeadersAreNoTokens) {
  const auto with_header = [&](std::uint32_t mark, std::uint32_t version, std::uint32_t tokens,
                               std::size_t bytes) {
    std::string all;
    for (const auto number : {mark, version, tokens})
      for (int i = 0; i < 4; ++i) all += static_cast<char>(number >> 8 * i);
    all.resize(1024 + bytes);
    write_contents(path_, all);
  };
  const TokenFormat two{TokenWidth::two, 65536}, four{TokenWidth::four, 128256};
  with_header(20240520, 1, 3, 6);
  for (const auto& format : {two, four}) {
    const auto refused = open(format);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::unsupported);
    EXPECT_THAT(refused.error().text(),
                AllOf(HasSubstr("tokens.bin"), HasSubstr("llm.c"), HasSubstr("tail -c +1025")));
  }
  with_header(20240801, 7, 3, 12);
  EXPECT_FALSE(open(four));
  // Ids may be any numbers: what is no whole file of llm.c's is none.
  with_header(20240520, 1, 4, 6);
  EXPECT_TRUE(open(two));
  with_header(20240521, 1, 3, 6);
  EXPECT_TRUE(open(two));
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
