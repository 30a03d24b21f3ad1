// A token is a byte (runtime/text_tokens.h): no tokenizer to speak of.
#pragma once

#include <memory>

#include "runtime/tokenizer.h"

namespace isthmus::runtime {

std::unique_ptr<Tokenizer> make_byte_tokenizer();
bool is_byte_tokenizer(const Tokenizer& tokenizer);

}  // namespace isthmus::runtime
