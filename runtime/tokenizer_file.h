// TokenizerFile: what a tokenizer.json of byte-level BPE says, checked: every part is one that
// runtime/bpe_tokenizer.h understands, ids agree, and each merge joins two tokens to a third.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "runtime/added_tokens.h"

namespace isthmus::runtime {

struct TokenMerge {
  std::int32_t left = 0, right = 0, whole = 0;  // earlier ones first
};

// One step on the way from a text to its words.
struct WordStep {
  bool adds_space = false;     // before a part that does not begin with one
  std::string pattern = {};    // of the parts; "": stays whole
  bool drops_between = false;  // what the pattern does not match
};

struct TokenizerFile {
  std::vector<std::string> pieces;  // by id: the bytes it stands for; "" where there is no token
  std::vector<bool> is_word;        // by id: a token of the model, which a word may be as a whole
  std::array<std::int32_t, 256> byte_ids = {};
  std::vector<TokenMerge> merges;
  bool ignore_merges = false;  // a word that is a token is that token
  std::vector<AddedToken> added;
  bool normal_form_c = false;
  std::vector<WordStep> steps;
  std::optional<std::int32_t> begin;
};

// `json`: the file's text, of anybody. Errors: corrupt (no JSON, something missing or of another
// kind, ids or merges that lead nowhere), unsupported (named).
Result<TokenizerFile> decode_tokenizer_file(std::string_view json);

}  // namespace isthmus::runtime
