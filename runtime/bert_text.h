// BertText: what BERT's tokenizers do to a text before its words become pieces, as the `tokenizers`
// package does it (BertNormalizer, BertPreTokenizer), with its tables (runtime/bert_characters.h).
//
//   text ─► clean_text ─► space_han ─► strip_accents ─► lowercase ─► words
//           no controls,  each Han     form D without   character    between spaces; a
//           " " for all   character    its marks (Mn)   by itself    punctuation mark
//           white space   a word                                     is its own word
//
// Text is UTF-8.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

namespace isthmus::runtime {

struct BertText {
  bool clean_text = false;
  bool space_han = false;
  bool strip_accents = false;
  bool lowercase = false;

  std::string normalise(std::string_view text) const;
};

// Calls `word` for each word of a normalised text, in order, with how many characters it has.
void for_each_bert_word(std::string_view text,
                        const std::function<void(std::string_view, std::size_t)>& word);

}  // namespace isthmus::runtime
