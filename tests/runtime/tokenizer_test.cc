// Tokenizers against vectors that the packages `tokenizers` and `sentencepiece` made
// (tokenizers_test.py --write-vectors), and what becomes of damaged and of foreign files.
#include "runtime/tokenizer.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "base/random.h"
#include "runtime/bert_text.h"
#include "runtime/bpe_tokenizer.h"
#include "runtime/masking.h"
#include "runtime/sentencepiece_tokenizer.h"
#include "runtime/text_tokens.h"
#include "runtime/unicode_nfc.h"
#include "runtime/utf8_state.h"
#include "runtime/word_pattern.h"
#include "runtime/wordpiece_tokenizer.h"
#include "tests/base/temporary_folder.h"

namespace isthmus::runtime {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using Specials = Tokenizer::Specials;
using Json = nlohmann::ordered_json;

std::string vector_path(const std::string& name) {
  return std::string(ISTHMUS_TOKENIZER_VECTORS) + "/" + name;
}

struct Vector {
  std::string text;
  std::vector<std::int32_t> ids;
};

std::vector<Vector> vectors_of(const std::string& file_name) {
  const auto path = vector_path("tokens.jsonl.gz");
  const gzFile file = gzopen(path.c_str(), "rb");
  EXPECT_NE(file, nullptr) << path;
  std::string all(1 << 20, '\0');
  all.resize(static_cast<std::size_t>(gzread(file, all.data(), static_cast<unsigned>(all.size()))));
  gzclose(file);
  std::vector<Vector> vectors;
  std::istringstream lines(all);
  for (std::string line; std::getline(lines, line);) {
    const auto json = nlohmann::json::parse(line);
    vectors.push_back({json["text"], json[file_name]});
  }
  return vectors;
}

std::vector<std::int32_t> ids_of(const Tokenizer& tokenizer, std::string_view text,
                                 Specials specials = Specials::are_text) {
  std::vector<std::int32_t> ids;
  const auto done = tokenizer.encode(text, ids, specials);
  EXPECT_TRUE(done) << done.error().text();
  return ids;
}

class TokenizerTest : public testing::Test {
 protected:
  std::unique_ptr<Tokenizer> open(const std::string& path) {
    auto opened = open_tokenizer(*disk_, path);
    EXPECT_TRUE(opened) << opened.error().text();
    return opened ? std::move(*opened) : nullptr;
  }
  std::unique_ptr<Tokenizer> open_vector(const std::string& name) {
    return open(vector_path(name));
  }
  static Json json_of(const std::string& name) {
    return Json::parse(contents_of(vector_path(name)));
  }
  static Error refusal(const Json& json) {
    const auto made = make_bpe_tokenizer(json.dump());
    EXPECT_FALSE(made);
    return made ? Error{ErrorCode::io, "was taken"} : made.error();
  }

  TemporaryFolder folder_;
  std::unique_ptr<Disk> disk_ = make_system_disk();
};

TEST_F(TokenizerTest, TokensAreThoseOfTheirPackages) {
  for (const std::string file : {"llama3.json", "qwen.json", "gpt2.json", "unigram.model",
                                 "bpe.model", "bert_uncased.json", "bert_cased.json"}) {
    const auto tokenizer = open_vector(file);
    ASSERT_NE(tokenizer, nullptr);
    const auto vectors = vectors_of(file);
    EXPECT_GT(vectors.size(), 50U);
    for (const auto& [text, ids] : vectors) {
      auto ours = ids_of(*tokenizer, text), theirs = ids;
      // Of segmentations that are equally likely, versions of SentencePiece choose differently.
      if (file == "unigram.model" && tokenizer->decode(ours) == tokenizer->decode(theirs)) {
        std::sort(ours.begin(), ours.end());
        std::sort(theirs.begin(), theirs.end());
      }
      EXPECT_EQ(ours, theirs) << file << ": " << text;
      for (const auto id : ids) EXPECT_LT(id, tokenizer->vocabulary());
    }
  }
}

// Without a normaliser every text comes back, from the whole as from its pieces.
TEST_F(TokenizerTest, ByteLevelTextComesBack) {
  const auto tokenizer = open_vector("llama3.json");
  for (const auto& [text, ids] : vectors_of("llama3.json")) {
    EXPECT_EQ(tokenizer->decode(ids), text);
    std::string pieces;
    for (const auto id : ids) pieces += tokenizer->piece(id);
    EXPECT_EQ(pieces, text);
  }
}

TEST_F(TokenizerTest, SpecialTokensAreOnlyWhatIsAskedFor) {
  const auto tokenizer = open_vector("llama3.json");
  const auto end = tokenizer->special("<|eot_id|>");
  ASSERT_TRUE(end);
  EXPECT_THAT(ids_of(*tokenizer, "<|eot_id|>", Specials::are_tokens), ElementsAre(*end));
  EXPECT_GT(ids_of(*tokenizer, "<|eot_id|>").size(), 1U);
  EXPECT_EQ(tokenizer->piece(*end), "");
  EXPECT_EQ(tokenizer->begin(), tokenizer->special("<|begin_of_text|>"));
  EXPECT_EQ(open_vector("qwen.json")->begin(), std::nullopt);
}

TEST_F(TokenizerTest, BytesAreTheirOwnTokens) {
  const auto tokenizer = open("bytes");
  EXPECT_THAT(ids_of(*tokenizer, "a\xff"), ElementsAre('a', 255));
  EXPECT_EQ(tokenizer->end(), kEndToken);
  EXPECT_EQ(tokenizer->decode(std::vector<std::int32_t>{'o', kEndToken, 'k'}), "ok");
  EXPECT_EQ(tokenizer->special("[MASK]"), kMaskToken);
  EXPECT_EQ(tokenizer->special("<|im_start|>"), std::nullopt);
  EXPECT_EQ(tokenizer->piece(kMaskToken), "");
  EXPECT_EQ(tokenizer->vocabulary(), kTextVocabulary);
}

TEST_F(TokenizerTest, TextThatIsNotUtf8IsRefused) {
  for (const char* file : {"qwen.json", "unigram.model", "bert_cased.json"}) {
    std::vector<std::int32_t> ids;
    const auto done = open_vector(file)->encode("caf\xe9", ids, Specials::are_text);
    ASSERT_FALSE(done);
    EXPECT_EQ(done.error().code, ErrorCode::invalid_argument);
    EXPECT_THAT(done.error().message, HasSubstr("UTF-8"));
  }
}

TEST_F(TokenizerTest, ThreadsShareOne) {
  const auto tokenizer = open_vector("qwen.json");
  const auto vectors = vectors_of("qwen.json");
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      for (const auto& [text, ids] : vectors) EXPECT_EQ(ids_of(*tokenizer, text), ids);
    });
  for (auto& thread : threads) thread.join();
}

TEST_F(TokenizerTest, AFolderSaysWhatEndsItsTexts) {
  std::filesystem::copy_file(vector_path("llama3.json"), folder_ / "tokenizer.json");
  EXPECT_EQ(open(folder_.path())->end(), std::nullopt);
  const auto id = *open(folder_.path())->special("<|end_of_text|>");
  write_contents(folder_ / "config.json", fmt::format(R"({{"eos_token_id": [{}, 7]}})", id));
  EXPECT_EQ(open(folder_.path())->end(), id);
  write_contents(folder_ / "tokenizer_config.json", R"({"eos_token": {"content": "<|eot_id|>"}})");
  EXPECT_EQ(open(folder_.path())->end(), open(folder_.path())->special("<|eot_id|>"));
  write_contents(folder_ / "tokenizer_config.json", R"({"eos_token": "</s>"})");
  EXPECT_THAT(open_tokenizer(*disk_, folder_.path()).error().text(), HasSubstr("</s>"));
}

TEST_F(TokenizerTest, SentencePieceStandsInForAnotherKindOfJson) {
  write_contents(folder_ / "tokenizer.json", R"({"model": {"type": "Unigram"}})");
  EXPECT_EQ(open_tokenizer(*disk_, folder_.path()).error().code, ErrorCode::unsupported);
  std::filesystem::copy_file(vector_path("unigram.model"), folder_ / "tokenizer.model");
  EXPECT_THAT(open(folder_.path())->description(), HasSubstr("SentencePiece"));
  EXPECT_EQ(open_tokenizer(*disk_, folder_ / "none").error().code, ErrorCode::not_found);
}

TEST_F(TokenizerTest, EqualFilesHaveEqualDigests) {
  EXPECT_EQ(open_vector("qwen.json")->digest(), open_vector("qwen.json")->digest());
  EXPECT_NE(open_vector("qwen.json")->digest(), open_vector("llama3.json")->digest());
  EXPECT_NE(open("bytes")->digest(), open_vector("bpe.model")->digest());
}

TEST_F(TokenizerTest, WhatWouldBeComputedOtherwiseIsRefusedByName) {
  const auto expect_refused = [](const Json& change, const std::string& name) {
    auto json = json_of("qwen.json");
    json.merge_patch(change);
    const auto error = refusal(json);
    EXPECT_EQ(error.code, ErrorCode::unsupported) << error.text();
    EXPECT_THAT(error.text(), HasSubstr(name));
  };
  expect_refused({{"truncation", {{"max_length", 5}}}}, "truncation");
  expect_refused({{"padding", {{"strategy", "x"}}}}, "padding");
  expect_refused({{"novel", 1}}, "novel");
  expect_refused({{"normalizer", {{"type", "NFKC"}}}}, "NFKC");
  expect_refused({{"normalizer", {{"type", "Lowercase"}}}}, "Lowercase");
  expect_refused({{"pre_tokenizer", nullptr}}, "pre_tokenizer");
  expect_refused({{"pre_tokenizer", {{"type", "Metaspace"}}}}, "Metaspace");
  expect_refused({{"decoder", {{"type", "Fuse"}}}}, "Fuse");
  expect_refused({{"post_processor", {{"type", "RobertaProcessing"}}}}, "RobertaProcessing");
  expect_refused({{"model", {{"type", "WordPiece"}}}}, "WordPiece");
  expect_refused({{"model", {{"dropout", 0.1}}}}, "dropout");
  expect_refused({{"model", {{"byte_fallback", true}}}}, "byte_fallback");
  expect_refused({{"model", {{"end_of_word_suffix", "</w>"}}}}, "end_of_word_suffix");
  expect_refused({{"model", {{"vocab", {{"a", nullptr}}}}}}, "0x61");
  expect_refused({{"added_tokens", {{{"content", "x!"}, {"id", 999}}}}}, "x!");
  expect_refused({{"added_tokens", {{{"content", "<|im_end|>"}, {"id", 420}, {"lstrip", true}}}}},
                 "lstrip");
  auto json = json_of("llama3.json");
  auto& single = json["post_processor"]["processors"][1]["single"];
  single.push_back(single[0]);
  EXPECT_THAT(refusal(json).text(), HasSubstr("template"));
}

TEST_F(TokenizerTest, DamagedJsonIsAnError) {
  const auto expect_corrupt = [](const Json& change, const std::string& name) {
    auto json = json_of("qwen.json");
    json.merge_patch(change);
    const auto error = refusal(json);
    EXPECT_EQ(error.code, ErrorCode::corrupt) << error.text();
    EXPECT_THAT(error.text(), HasSubstr(name));
  };
  expect_corrupt({{"model", nullptr}}, "model");
  expect_corrupt({{"model", {{"merges", {"ab"}}}}}, "no pair");
  expect_corrupt({{"model", {{"merges", {"a qqqq"}}}}}, "no token");
  expect_corrupt({{"model", {{"vocab", {{"a", -1}}}}}}, "\"a\"");
  expect_corrupt({{"model", {{"vocab", {{"a", 3}}}}}}, "two tokens");
  expect_corrupt({{"model", {{"vocab", {{"xyz", 9'000'000}}}}}}, "far above");
  expect_corrupt({{"added_tokens", 5}}, "added_tokens");

  const auto text = contents_of(vector_path("gpt2.json"));
  Random random(1);
  for (std::size_t i = 0; i < 300; ++i) {
    const auto cut = random.below(text.size());
    EXPECT_FALSE(make_bpe_tokenizer(std::string_view(text).substr(0, cut)));
    auto damaged = text;
    damaged[cut] = static_cast<char>(random.below(256));
    (void)make_bpe_tokenizer(damaged);
  }
  EXPECT_FALSE(make_bpe_tokenizer(std::string(100'000, '[')));
}

TEST_F(TokenizerTest, DamagedModelsOfSentencePieceAreAnError) {
  const auto model = contents_of(vector_path("unigram.model"));
  EXPECT_EQ(make_sentencepiece_tokenizer("").error().code, ErrorCode::corrupt);
  EXPECT_EQ(make_sentencepiece_tokenizer("no model").error().code, ErrorCode::corrupt);
  EXPECT_EQ(make_sentencepiece_tokenizer(model.substr(0, model.size() / 2 + 1)).error().code,
            ErrorCode::corrupt);
}

// ---- WordPiece

TEST_F(TokenizerTest, WordPieceOpensEndsAndHides) {
  for (const char* file : {"bert_uncased.json", "bert_cased.json"}) {
    const auto tokenizer = open_vector(file);
    EXPECT_THAT(tokenizer->description(), HasSubstr("WordPiece"));
    ASSERT_TRUE(tokenizer->begin());
    EXPECT_EQ(tokenizer->begin(), tokenizer->special("[CLS]"));
    EXPECT_EQ(tokenizer->end(), tokenizer->special("[SEP]"));
    EXPECT_EQ(mask_token(*tokenizer), tokenizer->special("[MASK]"));
    EXPECT_THAT(special_tokens(*tokenizer), ElementsAre(0, 1, 2, 3, 4));
    EXPECT_THAT(ids_of(*tokenizer, "[MASK]", Specials::are_tokens), ElementsAre(4));
    EXPECT_GT(ids_of(*tokenizer, "[MASK]").size(), 2U);
  }
}

Json small_word_piece() {
  return Json::parse(R"({
    "added_tokens": [{"id": 0, "content": "[UNK]", "special": true, "normalized": false}],
    "normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
                   "strip_accents": null, "lowercase": true},
    "pre_tokenizer": {"type": "BertPreTokenizer"},
    "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
    "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
              "max_input_chars_per_word": 7,
              "vocab": {"[UNK]": 0, "is": 1, "isth": 2, "##mus": 3, "##m": 4, "!": 5, "##th": 6,
                        "\u4e00": 7}}})");
}

TEST_F(TokenizerTest, WordPieceTakesTheLongestFromTheLeft) {
  const auto made = make_wordpiece_tokenizer(small_word_piece().dump());
  ASSERT_TRUE(made) << made.error().text();
  const auto& tokenizer = **made;
  EXPECT_THAT(ids_of(tokenizer, " \u00cdsthm\u00fbs! is\u4e00is "), ElementsAre(2, 3, 5, 1, 7, 1));
  EXPECT_THAT(ids_of(tokenizer, "isthmu is"), ElementsAre(0, 1));    // ##m is, ##u is not
  EXPECT_THAT(ids_of(tokenizer, "isththth is"), ElementsAre(0, 1));  // eight characters
  EXPECT_EQ(tokenizer.decode(std::vector<std::int32_t>{2, 3, 0, 5, 1}), "isthmus! is");
  EXPECT_EQ(tokenizer.piece(1), " is");
  EXPECT_EQ(tokenizer.piece(3), "mus");
  EXPECT_EQ(tokenizer.piece(5), "!");
  EXPECT_EQ(tokenizer.begin(), std::nullopt);
}

TEST_F(TokenizerTest, WhatWordPieceWouldComputeOtherwiseIsRefusedByName) {
  const auto expect = [](ErrorCode code, const Json& change, const std::string& name) {
    auto json = json_of("bert_uncased.json");
    json.merge_patch(change);
    const auto made = make_wordpiece_tokenizer(json.dump());
    ASSERT_FALSE(made) << name;
    EXPECT_EQ(made.error().code, code) << made.error().text();
    EXPECT_THAT(made.error().text(), HasSubstr(name));
  };
  const auto expect_refused = [&](const Json& change, const std::string& name) {
    expect(ErrorCode::unsupported, change, name);
  };
  const auto expect_corrupt = [&](const Json& change, const std::string& name) {
    expect(ErrorCode::corrupt, change, name);
  };
  expect_refused({{"padding", {{"strategy", "x"}}}}, "padding");
  expect_refused({{"model", {{"type", "BPE"}}}}, "BPE");
  expect_refused({{"model", {{"novel", 1}}}}, "novel");
  expect_refused({{"model", {{"max_input_chars_per_word", 1001}}}}, "max_input_chars_per_word");
  expect_refused({{"normalizer", {{"type", "NFC"}}}}, "NFC");
  expect_refused({{"normalizer", {{"novel", true}}}}, "novel");
  expect_refused({{"pre_tokenizer", nullptr}}, "pre_tokenizer");
  expect_refused({{"pre_tokenizer", {{"type", "Whitespace"}}}}, "Whitespace");
  expect_refused({{"decoder", nullptr}}, "decoder");
  expect_refused({{"decoder", {{"prefix", "@@"}}}}, "prefix");
  expect_refused({{"post_processor", {{"type", "RobertaProcessing"}}}}, "RobertaProcessing");
  expect_refused({{"post_processor", {{"special_tokens", {{"[CLS]", {{"ids", {7}}}}}}}}}, "[CLS]");
  expect_refused({{"post_processor", {{"single", Json::array()}}}}, "template");
  const auto next = json_of("bert_uncased.json")["model"]["vocab"].size();
  expect_refused({{"added_tokens", {{{"content", "\u0301"}, {"id", next}, {"normalized", true}}}}},
                 "nothing in normalised text");
  expect_corrupt({{"model", nullptr}}, "model");
  expect_corrupt({{"model", {{"unk_token", "[NONE]"}}}}, "unk_token");
  expect_corrupt({{"model", {{"continuing_subword_prefix", 1}}}}, "continuing_subword_prefix");
  expect_corrupt({{"model", {{"max_input_chars_per_word", -1}}}}, "max_input_chars_per_word");
  expect_corrupt({{"normalizer", {{"lowercase", 1}}}}, "lowercase");
}

TEST_F(TokenizerTest, DamagedWordPieceIsAnError) {
  const auto text = small_word_piece().dump();
  Random random(2);
  for (std::size_t i = 0; i < 1000; ++i) {
    const auto cut = random.below(text.size());
    EXPECT_FALSE(make_wordpiece_tokenizer(std::string_view(text).substr(0, cut)));
    auto damaged = text;
    damaged[cut] = static_cast<char>(random.below(256));
    if (const auto made = make_wordpiece_tokenizer(damaged)) ids_of(**made, "isthmus! \u4e00");
  }
}

TEST(BertText, EachSettingByItself) {
  EXPECT_EQ(BertText().normalise("\u00c9\t\u4e00"), "\u00c9\t\u4e00");
  EXPECT_EQ(BertText{.clean_text = true}.normalise("a\tb\u200b\u0085\ufffd\x01"), "a b");
  EXPECT_EQ(BertText{.space_han = true}.normalise("a\u4e00"), "a \u4e00 ");
  EXPECT_EQ(BertText{.strip_accents = true}.normalise("\u00c9\u0301"), "E");
  EXPECT_EQ(BertText{.lowercase = true}.normalise("\u00c9\u0130\u1c89"), "\u00e9i\u0307\u1c8a");
}

// ---- what parts words

std::vector<std::string> words_of(const WordPattern& pattern, std::string_view text,
                                  WordPattern::Between between = WordPattern::Between::is_word) {
  std::vector<std::string> words;
  EXPECT_TRUE(pattern.for_each(text, between, [&](std::string_view word) -> Result<void> {
    words.emplace_back(word);
    return {};
  }));
  return words;
}

TEST(WordPattern, PartsAsOnigurumaDoes) {
  const auto pattern = WordPattern::compile(R"(\p{L}+|\s+)");
  ASSERT_TRUE(pattern);
  EXPECT_THAT(words_of(*pattern, "ab, c"), ElementsAre("ab", ",", " ", "c"));
  EXPECT_THAT(words_of(*pattern, "ab, c", WordPattern::Between::is_dropped),
              ElementsAre("ab", " ", "c"));
  // U+180E is no space, and U+A7CB, of Unicode 16, a letter.
  EXPECT_THAT(words_of(*pattern, "\xe1\xa0\x8e \xea\x9f\x8b"),
              ElementsAre("\xe1\xa0\x8e", " ", "\xea\x9f\x8b"));
}

TEST(WordPattern, WhatTheTwoReadDifferentlyIsRefused) {
  for (const char* pattern : {"^a", "a$", "a.b", R"(\w+)", R"(\d)", R"(\bx)", R"(\p{Greek})",
                              R"(\p{^L})", "[a[b]]", "[a&&b]", "[]a]", "(?<name>a)", "(?#x)",
                              "a{1,3}+", R"([^\S])", R"(a\)", "(?R)", "\\x{41}"}) {
    const auto compiled = WordPattern::compile(pattern);
    ASSERT_FALSE(compiled) << pattern;
    EXPECT_EQ(compiled.error().code, ErrorCode::unsupported) << pattern;
  }
  EXPECT_EQ(WordPattern::compile("(a").error().code, ErrorCode::corrupt);
  EXPECT_EQ(WordPattern::compile("a*").error().code, ErrorCode::unsupported);
}

// A hostile pattern takes bounded time, and a long word no more stack than there is.
TEST(WordPattern, GivesUpInsteadOfHanging) {
  const auto hostile = WordPattern::compile("(?:a+)+b");
  ASSERT_TRUE(hostile);
  const auto done = hostile->for_each(std::string(60, 'a') + "!b", WordPattern::Between::is_word,
                                      [](std::string_view) { return Result<void>(); });
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().code, ErrorCode::too_large);

  const auto plain = WordPattern::compile(R"(\p{L}+| ?[^\s\p{L}]+|\s+(?!\S)|\s+)");
  ASSERT_TRUE(plain);
  EXPECT_EQ(words_of(*plain, std::string(1 << 20, 'a')).size(), 1U);
  EXPECT_EQ(words_of(*plain, std::string(1 << 20, ' ')).size(), 1U);
}

TEST(UnicodeNfc, ComposesAndOrders) {
  EXPECT_EQ(to_nfc("plain"), "plain");
  EXPECT_EQ(to_nfc("e\u0301"), "\u00e9");
  EXPECT_EQ(to_nfc("a\u0301\u0323"), "\u1ea1\u0301");
  EXPECT_EQ(to_nfc("\u1100\u1161"), "\uac00");
  EXPECT_EQ(to_nfc("\u0f00\u0345\u0898"), "\u0f00\u0345\u0898");  // a mark of Unicode 14
}

}  // namespace
}  // namespace isthmus::runtime
