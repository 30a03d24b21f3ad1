// Fuzz target: somebody's tokenizer.json, and a text for what it makes (parted by a zero byte).
#include <nlohmann/json.hpp>

#include "base/assert.h"
#include "runtime/bpe_tokenizer.h"
#include "runtime/tokenizer_json.h"
#include "runtime/utf8_state.h"
#include "runtime/wordpiece_tokenizer.h"
#include "tests/fuzz/fuzz_target.h"

namespace isthmus::runtime {
namespace {

// What byte-level BPE decodes is its pieces; WordPiece leaves out the space before the first.
void check_text(const Tokenizer& tokenizer, std::string_view text, bool comes_of_pieces) {
  using enum Tokenizer::Specials;
  for (const auto specials : {are_text, are_tokens}) {
    std::vector<std::int32_t> ids;
    const auto done = tokenizer.encode(text, ids, specials);
    if (!done) {
      ISTHMUS_ASSERT(done.error().code == ErrorCode::invalid_argument ||
                     done.error().code == ErrorCode::too_large);
      continue;
    }
    std::string pieces;
    for (const auto id : ids) {
      ISTHMUS_ASSERT(id >= 0 && id < tokenizer.vocabulary());
      pieces += tokenizer.piece(id);
    }
    const auto decoded = tokenizer.decode(ids);
    ISTHMUS_ASSERT(decoded == pieces || !comes_of_pieces);
  }
}

// A small one that is whole: the 256 bytes, two merges, added tokens, all that may stand before.
std::string small_tokenizer(bool with_pattern) {
  nlohmann::ordered_json vocab;
  int next = 0;
  for (int b = 0; b < 256; ++b) {
    const bool prints = (b >= '!' && b <= '~') || (b >= 0xA1 && b != 0xAD);
    const int character = prints ? b : 256 + next++;
    std::string text;
    if (character < 0x80)
      text = static_cast<char>(character);
    else
      text = {static_cast<char>(0xC0 | character >> 6),
              static_cast<char>(0x80 | (character & 0x3F))};
    vocab[text] = b;
  }
  vocab["th"] = 256;
  vocab["the"] = 257;
  nlohmann::ordered_json json = {
      {"added_tokens",
       {{{"id", 258}, {"content", "<end>"}, {"special", true}, {"normalized", false}},
        {{"id", 259}, {"content", "word"}, {"special", false}, {"normalized", true}}}},
      {"model",
       {{"type", "BPE"},
        {"ignore_merges", with_pattern},
        {"vocab", vocab},
        {"merges", {"t h", "th e"}}}},
      {"decoder", {{"type", "ByteLevel"}}}};
  const nlohmann::ordered_json bytes = {
      {"type", "ByteLevel"}, {"add_prefix_space", !with_pattern}, {"use_regex", !with_pattern}};
  json["pre_tokenizer"] = bytes;
  if (with_pattern) {
    json["normalizer"] = {{"type", "NFC"}};
    json["pre_tokenizer"] = {
        {"type", "Sequence"},
        {"pretokenizers",
         {{{"type", "Split"},
           {"pattern", {{"Regex", R"((?i:'s|'t)|[^\r\n\p{L}]?\p{L}+|\p{N}{1,3}|\s+(?!\S)|\s+)"}}},
           {"behavior", "Isolated"}},
          bytes}}};
    json["post_processor"] = {{"type", "TemplateProcessing"},
                              {"single",
                               {{{"SpecialToken", {{"id", "<end>"}, {"type_id", 0}}}},
                                {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}}};
  }
  return json.dump();
}

std::string small_word_piece(bool lowercase) {
  const nlohmann::ordered_json json = {
      {"added_tokens",
       {{{"id", 0}, {"content", "[UNK]"}, {"special", true}, {"normalized", false}},
        {{"id", 1}, {"content", "[CLS]"}, {"special", true}, {"normalized", false}},
        {{"id", 2}, {"content", "[SEP]"}, {"special", true}, {"normalized", false}},
        {{"id", 9}, {"content", "W\u00f6rd"}, {"special", false}, {"normalized", true}}}},
      {"normalizer",
       {{"type", "BertNormalizer"},
        {"clean_text", lowercase},
        {"handle_chinese_chars", true},
        {"strip_accents", nullptr},
        {"lowercase", lowercase}}},
      {"pre_tokenizer", {{"type", "BertPreTokenizer"}}},
      {"post_processor",
       {{"type", "BertProcessing"}, {"sep", {"[SEP]", 2}}, {"cls", {"[CLS]", 1}}}},
      {"decoder", {{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", lowercase}}},
      {"model",
       {{"type", "WordPiece"},
        {"unk_token", "[UNK]"},
        {"continuing_subword_prefix", "##"},
        {"max_input_chars_per_word", 20},
        {"vocab",
         {{"[UNK]", 0},
          {"[CLS]", 1},
          {"[SEP]", 2},
          {"the", 3},
          {"t", 4},
          {"##he", 5},
          {"##at", 6},
          {"\u4e00", 7},
          {".", 8}}}}}};
  return json.dump();
}

void check_word_piece(std::string_view json, std::string_view text) {
  const auto tokenizer = make_wordpiece_tokenizer(json);
  if (tokenizer) {
    check_text(**tokenizer, "The theatre's 1234 [CLS] w\u00f6rd\r\n  \xc3\xa9 \u4e00.", false);
    check_text(**tokenizer, text, false);
    return;
  }
  const auto& error = tokenizer.error();
  ISTHMUS_ASSERT(error.code == ErrorCode::corrupt || error.code == ErrorCode::unsupported);
  ISTHMUS_ASSERT(is_utf8(error.text()));
}

}  // namespace
}  // namespace isthmus::runtime

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace isthmus;
  const auto input = text_of(fuzz_input(data, size));
  const auto end = std::min(input.find('\0'), input.size());
  const auto json = input.substr(0, end);
  const auto text = end < input.size() ? input.substr(end + 1) : std::string_view();
  if (runtime::tokenizer_json::model_type(json) == "WordPiece") {
    runtime::check_word_piece(json, text);
    return 0;
  }
  const auto tokenizer = runtime::make_bpe_tokenizer(json);
  if (!tokenizer) {
    const auto& error = tokenizer.error();
    ISTHMUS_ASSERT(error.code == ErrorCode::corrupt || error.code == ErrorCode::unsupported);
    ISTHMUS_ASSERT(runtime::is_utf8(error.text()));
    return 0;
  }
  runtime::check_text(**tokenizer, "The theatre's 1234 <end> word\r\n  \xc3\xa9", true);
  runtime::check_text(**tokenizer, text, true);
  return 0;
}

namespace isthmus {

std::vector<Bytes> fuzz_seeds() {
  std::vector<Bytes> seeds;
  const auto add = [&seeds](std::string text) {
    text += '\0';
    text += "a the <end>\xcc\x81 other's word \xe2\x80\x83 123456";
    const auto bytes = bytes_of(text);
    seeds.emplace_back(bytes.begin(), bytes.end());
  };
  for (const bool with_pattern : {false, true}) add(runtime::small_tokenizer(with_pattern));
  for (const bool lowercase : {false, true}) add(runtime::small_word_piece(lowercase));
  return seeds;
}

}  // namespace isthmus
