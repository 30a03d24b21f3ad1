// Byte-level BPE as Hugging Face's `tokenizers` writes it into tokenizer.json: the ids are those of
// that package.
//
//   text ─► added tokens ─► normaliser (NFC) ─► added tokens ─► words (regex) ─► bytes ─► merges
//           (raw)                                (normalised)
//
// Understood: model BPE over the 256 bytes, with merges and `ignore_merges`; normalizer NFC;
// pre_tokenizer Split (Regex, Isolated), ByteLevel, or a Sequence of them; post_processor ByteLevel
// and TemplateProcessing, for what opens a text. Anything else is refused by name.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "runtime/tokenizer.h"

namespace isthmus::runtime {

// What ends a text: by name, or by id; neither: nothing does.
struct TextEnd {
  std::string name = {};
  std::optional<std::int64_t> id = {};
};

// `json`: the file's text. Errors: corrupt, unsupported.
Result<std::unique_ptr<Tokenizer>> make_bpe_tokenizer(std::string_view json,
                                                      const TextEnd& end = {});

}  // namespace isthmus::runtime
