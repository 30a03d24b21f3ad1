// SentencePiece models (tokenizer.model): unigram and BPE, with or without byte fallback, by
// Debian's libsentencepiece (Kudo and Richardson, 2018).
#pragma once

#include <memory>
#include <string_view>

#include "base/result.h"
#include "runtime/tokenizer.h"

namespace isthmus::runtime {

// `model`: the file's content. Errors: corrupt, unsupported.
Result<std::unique_ptr<Tokenizer>> make_sentencepiece_tokenizer(std::string_view model);

}  // namespace isthmus::runtime
