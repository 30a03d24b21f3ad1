// WordPieceFile: what a tokenizer.json of WordPiece says, checked: every part is one that
// runtime/wordpiece_tokenizer.h understands, and ids agree.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "runtime/added_tokens.h"
#include "runtime/bert_text.h"

namespace isthmus::runtime {

struct WordPieceFile {
  std::vector<std::string> tokens;  // by id; "" where there is none
  std::vector<bool> of_model;       // by id: a word may have it as a piece
  std::vector<AddedToken> added;
  std::int32_t unknown = 0;             // of a word that has no pieces
  std::string prefix;                   // of pieces that continue a word: "##"
  std::size_t word_characters_max = 0;  // a longer word is unknown
  BertText text;
  bool cleans_up = false;                  // decoding leaves out spaces before punctuation
  std::optional<std::int32_t> begin, end;  // what is put around a text
};

// `json`: the file's text, of anybody. Errors: corrupt (no JSON, something missing or of another
// kind, ids that lead nowhere), unsupported (named).
Result<WordPieceFile> decode_wordpiece_file(std::string_view json);

}  // namespace isthmus::runtime
