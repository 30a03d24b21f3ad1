#include "runtime/text_corpus.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <thread>

#include "base/random.h"
#include "runtime/batch_loss.h"
#include "runtime/byte_tokenizer.h"
#include "runtime/text_tokens.h"
#include "tests/base/passing_disk.h"
#include "tests/base/temporary_folder.h"

namespace isthmus::runtime {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

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
  PrepareOptions options(std::string_view source) {
    return {.source = folder_ / source,
            .train = folder_ / "out/train.txt",
            .held_out = folder_ / "out/held_out.txt",
            .format = format_by_name(std::string(source))};
  }
  Result<PreparedText> prepare(std::string_view source) {
    return prepare_text(*disk_, pool_, options(source));
  }
  // What is written, under the names of the files.
  std::map<std::string, std::string> written() {
    std::map<std::string, std::string> all;
    for (const auto& entry : std::filesystem::directory_iterator(folder_ / "out"))
      all[entry.path().filename()] = contents_of(entry.path());
    return all;
  }
  void write_zstd(std::string_view name, std::string_view text) {
    std::string packed(ZSTD_compressBound(text.size()), '\0');
    packed.resize(ZSTD_compress(packed.data(), packed.size(), text.data(), text.size(), 1));
    write_contents(folder_ / name, packed);
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
    EXPECT_EQ(prepared->train.tokens, train.size());
    EXPECT_EQ(prepared->held_out.text_bytes, held_out.size());
  }
  // Each record is one document: what comes after an end belongs to the next.
  void expect_documents_at_ends(const std::string& name) {
    const auto file = TokenFile::open(*disk_, folder_ / ("out/" + name), {.vocabulary = 260});
    ASSERT_TRUE(file) << file.error().text();
    ASSERT_TRUE(file->knows_documents());
    std::vector<std::int32_t> ids(file->tokens()), starts(ids.size()), targets(ids.size());
    ASSERT_TRUE(file->read(0, ids));
    ASSERT_TRUE(file->part(0, ids, starts, targets));
    std::int32_t begin = 0;
    bool same = true;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      same = same && starts[i] == begin;
      if (ids[i] == kEndToken) begin = static_cast<std::int32_t>(i + 1);
    }
    EXPECT_TRUE(same) << name;
    EXPECT_GT(begin, 0);
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
  ThreadPool pool_{{-1}};
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

TEST_F(TextCorpusTest, ReadsZstd) {
  const auto text = newline_soup(2, 200'000);
  write_zstd("text.txt.zst", text);
  expect_split("text.txt.zst", text);
  const auto bytes = contents_of(folder_ / "text.txt.zst");
  for (const auto& broken : {bytes.substr(0, bytes.size() / 2), bytes + "tail"}) {
    write_contents(folder_ / "broken.zst", broken);
    const auto prepared = prepare("broken.zst");
    ASSERT_FALSE(prepared);
    EXPECT_EQ(prepared.error().code, ErrorCode::corrupt);
    EXPECT_THAT(prepared.error().text(), HasSubstr("no whole zstd file"));
  }
}

// A paragraph longer than what is held of it, without a line to cut it behind.
TEST_F(TextCorpusTest, ParagraphsMayBeLongerThanMemoryHoldsOfThem) {
  std::string text;
  for (int i = 0; i < 9; ++i) text += "short\n\n";
  while (text.size() < 9'000'000) text += "地峡";
  write_contents(folder_ / "text.txt", text);
  expect_split("text.txt", text);
}

TEST_F(TextCorpusTest, StatesTheSplit) {
  write_contents(folder_ / "text.txt", newline_soup(5, 4000));
  const auto prepared = prepare("text.txt");
  ASSERT_TRUE(prepared);
  const auto facts = parse_token_file_facts(contents_of(folder_ / "out/held_out.txt.json"));
  ASSERT_TRUE(facts) << facts.error().text();
  EXPECT_EQ(*facts, prepared->held_out);
  EXPECT_THAT(facts->split, HasSubstr("i % 20 == 7"));
  EXPECT_THAT(prepared->train.split, HasSubstr("i % 20 != 7"));
  EXPECT_EQ(prepared->train.documents + prepared->held_out.documents, prepared->documents);
  EXPECT_EQ(facts->tokenizer, make_byte_tokenizer()->digest().hex());
}

// With a tokenizer the tokens are the text, and nothing besides.
TEST_F(TextCorpusTest, TokensOfATextAreItsText) {
  const auto tokenizer =
      open_tokenizer(*disk_, std::string(ISTHMUS_TOKENIZER_VECTORS) + "/llama3.json");
  ASSERT_TRUE(tokenizer);
  const auto text = newline_soup(6, 30'000);
  write_contents(folder_ / "text.txt", text);
  auto how = options("text.txt");
  how.tokenizer = tokenizer->get();
  const auto prepared = prepare_text(*disk_, pool_, how);
  ASSERT_TRUE(prepared) << prepared.error().text();
  EXPECT_EQ(prepared->train.width, TokenWidth::two);
  const auto file =
      TokenFile::open(*disk_, how.train,
                      {TokenWidth::four, (*tokenizer)->vocabulary(), (*tokenizer)->digest().hex()});
  ASSERT_TRUE(file) << file.error().text();
  std::vector<std::int32_t> ids(file->tokens());
  ASSERT_TRUE(file->read(0, ids));
  EXPECT_EQ((*tokenizer)->decode(ids), split_plainly(text).first);
  write_contents(folder_ / "latin.txt", "a\n\nb\n\ncaf\xe9\n\n");
  how.source = folder_ / "latin.txt";
  const auto latin = prepare_text(*disk_, pool_, how);
  EXPECT_EQ(latin.error().code, ErrorCode::invalid_argument);
  EXPECT_THAT(latin.error().text(), AllOf(HasSubstr("latin.txt"), HasSubstr("paragraph 3")));
}

// ---- JSON lines

std::string records(std::size_t count, std::uint64_t seed) {
  Random random(seed);
  std::string lines;
  for (std::size_t i = 0; i < count; ++i)
    lines += fmt::format("{{\"prompt\": \"q{} {}\", \"completion\": \"{}\", \"id\": {}}}{}", i,
                         std::string(random.below(320), 'x'), std::string(random.below(720), 'y'),
                         i, random.below(9) == 0 ? "\r\n\n" : "\n");
  return lines;
}

TEST_F(TextCorpusTest, CompletionsAreTheTargets) {
  write_contents(folder_ / "qa.jsonl", records(400, 1));
  const auto prepared = prepare("qa.jsonl");
  ASSERT_TRUE(prepared) << prepared.error().text();
  EXPECT_EQ(prepared->documents, 400U);
  EXPECT_EQ(prepared->held_out.documents, 20U);
  const auto file =
      TokenFile::open(*disk_, folder_ / "out/train.txt",
                      {.vocabulary = 260, .tokenizer = make_byte_tokenizer()->digest().hex()});
  ASSERT_TRUE(file) << file.error().text();
  std::vector<std::int32_t> ids(file->tokens());
  ASSERT_TRUE(file->read(0, ids));
  auto targets = ids;
  ASSERT_TRUE(file->hide(0, targets));
  EXPECT_EQ(std::count(ids.begin(), ids.end(), kEndToken), 380);
  std::uint64_t counted = 0;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    EXPECT_EQ(targets[i] != kIgnoredTarget, ids[i] == 'y' || ids[i] == kEndToken) << i;
    counted += targets[i] != kIgnoredTarget;
  }
  EXPECT_EQ(counted, prepared->train.targets);
}

TEST_F(TextCorpusTest, TextsNeedNoMaskAndRemoveAnOldOne) {
  std::filesystem::create_directories(folder_ / "out");
  write_contents(folder_ / "out/train.txt.mask", "old");
  write_contents(folder_ / "texts.jsonl", "{\"text\": \"one\"}\n{\"text\": \"two\"}");
  auto how = options("texts.jsonl");
  how.held_out.clear();
  const auto prepared = prepare_text(*disk_, pool_, how);
  ASSERT_TRUE(prepared) << prepared.error().text();
  EXPECT_EQ(prepared->train.tokens, 8U);
  EXPECT_EQ(prepared->train.split, "all documents");
  EXPECT_THAT(written(),
              ElementsAre(Pair("train.txt", testing::_), Pair("train.txt.documents", testing::_),
                          Pair("train.txt.json", testing::_)));
  // Of a text nobody says where its documents begin.
  write_contents(folder_ / "text", "one\n\ntwo");
  how.source = folder_ / "text";
  how.format = DocumentFormat::text;
  ASSERT_TRUE(prepare_text(*disk_, pool_, how));
  EXPECT_THAT(written(),
              ElementsAre(Pair("train.txt", "one\n\ntwo"), Pair("train.txt.json", testing::_)));
  EXPECT_FALSE(TokenFile::open(*disk_, how.train, {})->knows_documents());
}

// Another file's, though as long and with the same ends.
TEST_F(TextCorpusTest, AListOfDocumentsBelongsToItsTokens) {
  auto how = options("texts.jsonl");
  how.held_out.clear();
  std::string lists[2];
  for (int i = 0; i < 2; ++i) {
    write_contents(folder_ / "texts.jsonl",
                   i == 0 ? "{\"text\": \"one\"}\n{\"text\": \"three\"}\n{\"text\": \"two\"}"
                          : "{\"text\": \"three\"}\n{\"text\": \"one\"}\n{\"text\": \"two\"}");
    const auto prepared = prepare_text(*disk_, pool_, how);
    ASSERT_TRUE(prepared) << prepared.error().text();
    lists[i] = contents_of(documents_path(how.train));
    const auto facts = parse_token_file_facts(contents_of(facts_path(how.train)));
    ASSERT_TRUE(facts);
    EXPECT_EQ(*facts, prepared->train);
    EXPECT_TRUE(TokenFile::open(*disk_, how.train, {.vocabulary = 260}));
  }
  ASSERT_EQ(lists[0].size(), lists[1].size());
  write_contents(documents_path(how.train), lists[0]);
  const auto file = TokenFile::open(*disk_, how.train, {.vocabulary = 260});
  ASSERT_FALSE(file);
  EXPECT_THAT(file.error().text(), HasSubstr("belongs to another file"));
}

TEST_F(TextCorpusTest, ABadLineIsNamed) {
  const std::string good = "{\"prompt\": \"a\", \"completion\": \"b\"}\n";
  for (const auto& [bad, what] :
       {std::pair<std::string, std::string>{"{\"prompt\": ", "no JSON object"},
        {"[1]", "no JSON object"},
        {"{\"prompt\": \"a\"}", "\"completion\""},
        {"{\"text\": \"a\"}", "another kind"},
        {"{\"messages\": [{\"role\": \"user\"}]}", "no content"},
        {"{\"prompt\": \"\xff\", \"completion\": \"b\"}", "no JSON object"}}) {
    write_contents(folder_ / "bad.jsonl", good + good + bad + "\n" + good);
    const auto prepared = prepare("bad.jsonl");
    ASSERT_FALSE(prepared) << bad;
    EXPECT_EQ(prepared.error().code, ErrorCode::corrupt);
    EXPECT_THAT(prepared.error().text(),
                AllOf(HasSubstr("bad.jsonl"), HasSubstr("line 3"), HasSubstr(what)));
    EXPECT_TRUE(written().empty());
  }
}

// ---- all cores, and after a kill

TEST_F(TextCorpusTest, ThreadsDoNotChangeABit) {
  write_contents(folder_ / "qa.jsonl", records(15'000, 2));
  ASSERT_TRUE(prepare("qa.jsonl"));
  const auto one = written();
  expect_documents_at_ends("train.txt");
  expect_documents_at_ends("held_out.txt");
  ThreadPool three({-1, -1, -1});
  ASSERT_TRUE(prepare_text(*disk_, three, options("qa.jsonl")));
  EXPECT_EQ(written(), one);
}

// A process that prepares, killed after so long, or with its n-th journal entry.
class Killed : public TextCorpusTest {
 protected:
  void SetUp() override {
    write_gzip("qa.jsonl.gz", records(18'000, 3));
    ASSERT_TRUE(prepare("qa.jsonl.gz"));
    whole_ = written();
    std::filesystem::remove_all(folder_ / "out");
  }
  // Whether it was killed, rather than done before.
  bool prepare_and_kill(int at_entry, std::chrono::microseconds after) {
    const auto child = ::fork();
    if (child == 0) {
      auto how = options("qa.jsonl.gz");
      how.progress = [&](std::uint64_t, std::uint64_t) {
        if (--at_entry == 0) ::kill(::getpid(), SIGKILL);
      };
      ThreadPool pool({-1});
      const auto prepared = prepare_text(*disk_, pool, how);
      ::_exit(prepared ? 0 : 1);
    }
    if (at_entry == 0) {
      std::this_thread::sleep_for(after);
      ::kill(child, SIGKILL);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_TRUE(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
    return WIFSIGNALED(status);
  }
  std::map<std::string, std::string> whole_;
};

TEST_F(Killed, GoesOnAndEndsWithTheSameBytes) {
  for (const int entry : {1, 2}) {
    ASSERT_TRUE(prepare_and_kill(entry, {}));
    const auto prepared = prepare("qa.jsonl.gz");
    ASSERT_TRUE(prepared) << prepared.error().text();
    EXPECT_TRUE(prepared->went_on);
    EXPECT_EQ(written(), whole_);
    std::filesystem::remove_all(folder_ / "out");
  }
}

TEST_F(Killed, AtAnyMomentAgainAndAgain) {
  Random random(4);
  int kills = 0;
  for (int i = 0; i < 8; ++i)
    kills += prepare_and_kill(0, std::chrono::microseconds(random.below(60'000)));
  EXPECT_GT(kills, 0);
  ASSERT_TRUE(prepare("qa.jsonl.gz"));
  EXPECT_EQ(written(), whole_);
}

class Damaged : public Killed, public testing::WithParamInterface<const char*> {};

TEST_P(Damaged, SinceIsDoneAgain) {
  ASSERT_TRUE(prepare_and_kill(2, {}));
  std::fstream file(folder_ / ("out/" + std::string(GetParam())),
                    std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(-300, std::ios::end);
  file.put('#');
  file.close();
  ASSERT_TRUE(prepare("qa.jsonl.gz"));
  EXPECT_EQ(written(), whole_);
}
INSTANTIATE_TEST_SUITE_P(Files, Damaged,
                         testing::Values("train.txt.new", "train.txt.mask.new",
                                         "train.txt.documents.new", "train.txt.journal"));

// Another source, or another tokenizer: what is there is of no use.
TEST_F(Killed, AnotherTaskBeginsAnew) {
  ASSERT_TRUE(prepare_and_kill(2, {}));
  write_gzip("qa.jsonl.gz", records(200, 8));
  const auto prepared = prepare("qa.jsonl.gz");
  ASSERT_TRUE(prepared);
  EXPECT_FALSE(prepared->went_on);
  EXPECT_EQ(prepared->documents, 200U);
}

// ---- until all have their names

// Fails from its n-th change of names on, as if the process were gone.
class EndingDisk final : public PassingDisk {
 public:
  EndingDisk(std::shared_ptr<Disk> disk, int changes)
      : PassingDisk(std::move(disk)), changes_(changes) {}

  Result<std::unique_ptr<File>> open(const std::string& path, Open how) override {
    if (how == Open::read) return PassingDisk::open(path, how);
    ISTHMUS_CHECK(change());
    return PassingDisk::open(path, how);
  }
  Result<void> rename(const std::string& from, const std::string& to) override {
    ISTHMUS_CHECK(change());
    return PassingDisk::rename(from, to);
  }
  Result<void> remove(const std::string& path) override {
    ISTHMUS_CHECK(change());
    return PassingDisk::remove(path);
  }

 private:
  Result<void> change() {
    if (--changes_ >= 0) return {};
    return Error{ErrorCode::io, "gone"};
  }
  int changes_;
};

// No room for what is said of tokens, which comes last.
class NoRoomForFacts final : public PassingDisk {
 public:
  using PassingDisk::PassingDisk;
  Result<std::unique_ptr<File>> open(const std::string& path, Open how) override {
    if (how != Open::read && path.find(".json") != path.npos)
      return Error{ErrorCode::disk_full, "no room for " + path};
    return PassingDisk::open(path, how);
  }
};

class PublishingTest : public TextCorpusTest {
 protected:
  PublishingTest() {
    write_contents(folder_ / "old.jsonl", records(100, 11));
    write_contents(folder_ / "new.jsonl", records(90, 12));
    EXPECT_TRUE(prepare("old.jsonl"));
    old_ = written();
    std::filesystem::remove_all(folder_ / "out");
    EXPECT_TRUE(prepare("new.jsonl"));
    new_ = written();
  }
  void lay_out_old() {
    std::filesystem::remove_all(folder_ / "out");
    std::filesystem::create_directories(folder_ / "out");
    for (const auto& [name, bytes] : old_) write_contents(folder_ / ("out/" + name), bytes);
  }
  // Of tokens and what lies beside them.
  static std::map<std::string, std::string> about(const std::string& name,
                                                  const std::map<std::string, std::string>& all) {
    std::map<std::string, std::string> of_it;
    for (const char* ending : {"", ".mask", ".documents", ".json"})
      if (const auto at = all.find(name + ending); at != all.end()) of_it.insert(*at);
    return of_it;
  }
  std::map<std::string, std::string> old_, new_;
};

TEST_F(PublishingTest, TokensThatAreThereAreWholeWheneverItEnds) {
  bool ended = false;
  int gone_on = 0;
  for (int changes = 0; !ended; ++changes) {
    lay_out_old();
    EndingDisk disk(make_system_disk(), changes);
    ended = prepare_text(disk, pool_, options("new.jsonl")).has_value();
    bool begun = false;
    for (const char* name : {"train.txt", "held_out.txt"}) {
      const auto there = about(name, written());
      begun = begun || there != about(name, old_);
      if (!there.contains(name)) continue;
      EXPECT_TRUE(there == about(name, old_) || there == about(name, new_)) << changes;
    }
    const auto again = prepare("new.jsonl");
    ASSERT_TRUE(again) << again.error().text();
    if (begun && !ended) {
      EXPECT_TRUE(again->went_on) << changes;
      EXPECT_EQ(again->documents, 90U);
      ++gone_on;
    }
    EXPECT_EQ(written(), new_) << changes;
  }
  EXPECT_GT(gone_on, 5);
}

TEST_F(PublishingTest, GoesOnWhenThereIsRoomAgain) {
  lay_out_old();
  NoRoomForFacts disk(make_system_disk());
  const auto prepared = prepare_text(disk, pool_, options("new.jsonl"));
  ASSERT_FALSE(prepared);
  EXPECT_EQ(prepared.error().code, ErrorCode::disk_full);
  const auto there = written();
  for (const auto& [name, bytes] : old_) EXPECT_EQ(there.at(name), bytes) << name;
  const auto again = prepare("new.jsonl");
  ASSERT_TRUE(again) << again.error().text();
  EXPECT_TRUE(again->went_on);
  EXPECT_EQ(written(), new_);
}

// A record without a token begins nowhere.
TEST_F(TextCorpusTest, RecordsWithoutTokensAreNoDocuments) {
  const auto tokenizer =
      open_tokenizer(*disk_, std::string(ISTHMUS_TOKENIZER_VECTORS) + "/qwen.json");
  ASSERT_TRUE(tokenizer);
  write_contents(folder_ / "texts.jsonl", "{\"text\": \"one\"}\n{\"text\": \"\"}");
  auto how = options("texts.jsonl");
  how.held_out.clear();
  how.tokenizer = tokenizer->get();
  const auto prepared = prepare_text(*disk_, pool_, how);
  ASSERT_TRUE(prepared) << prepared.error().text();
  EXPECT_EQ(prepared->documents, 2U);
  EXPECT_EQ(prepared->train.documents, 1U);
  EXPECT_TRUE(TokenFile::open(*disk_, how.train, {}));
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
    const auto prepared =
        prepare_text(*disk_, pool_, {.source = source, .train = train, .held_out = held_out});
    ASSERT_FALSE(prepared) << train << " " << held_out;
    EXPECT_EQ(prepared.error().code, ErrorCode::invalid_argument);
    EXPECT_THAT(prepared.error().text(), HasSubstr("must be three files"));
  }
  EXPECT_EQ(contents_of(source), text);
  EXPECT_EQ(contents_of(part), "old");
}

}  // namespace
}  // namespace isthmus::runtime
