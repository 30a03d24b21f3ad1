// WordPiece (Schuster and Nakajima 2012; Wu et al. 2016, section 4.1) as BERT uses it and Hugging
// Face's `tokenizers` writes it into tokenizer.json: the ids are those of that package.
//
//   text ─► added tokens ─► BertText ─► added tokens ─► words ─► longest pieces, from the left
//           (raw)                       (normalised)
//
//   "Isthmuses!" ─► "isthmuses", "!" ─► is ##th ##mus ##es !      a word that has no such pieces,
//                                                                 or is too long, is one [UNK]
//
// Understood: model WordPiece; normalizer BertNormalizer; pre_tokenizer BertPreTokenizer;
// post_processor TemplateProcessing or BertProcessing, for what opens and ends a text ([CLS],
// [SEP]); decoder WordPiece. Anything else is refused by name.
//
// A text does not come back: decoding gives what the normaliser left of it, without unknown words,
// with one space before each word, but none before the first and, where the decoder cleans up, none
// before . ? ! and ,. piece() is what a token adds behind others: such a space, and its characters.
#pragma once

#include <memory>
#include <string_view>

#include "base/result.h"
#include "runtime/tokenizer.h"

namespace isthmus::runtime {

// `json`: the file's text. Errors: corrupt, unsupported.
Result<std::unique_ptr<Tokenizer>> make_wordpiece_tokenizer(std::string_view json);

}  // namespace isthmus::runtime
