// Unicode normal form C, and D (the same without composing), by libutf8proc, as the `tokenizers`
// package computes them: with the tables of Unicode 9. Marks and compositions that are younger stay
// as they are.
#pragma once

#include <string>
#include <string_view>

namespace isthmus::runtime {

// `text` must be UTF-8.
std::string to_nfc(std::string_view text);
std::string to_nfd(std::string_view text);

}  // namespace isthmus::runtime
