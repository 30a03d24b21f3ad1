// The byte-level vocabulary: a token is a byte of UTF-8 text, or one of a few special tokens above
// them. No tokenizer, no merges; any text of any language is representable.
#pragma once

#include <cstdint>

namespace isthmus::runtime {

inline constexpr std::int32_t kByteTokens = 256;  // token = byte
inline constexpr std::int32_t kBeginToken = 256;
inline constexpr std::int32_t kEndToken = 257;
inline constexpr std::int32_t kPadToken = 258;
inline constexpr std::int32_t kMaskToken = 259;  // in place of a hidden one (runtime/masking.h)
inline constexpr std::int32_t kTextVocabulary = 260;

}  // namespace isthmus::runtime
