// Tokenizer: text ↔ token ids, as the model was trained with it. Four kinds: bytes, SentencePiece
// models (tokenizer.model), and byte-level BPE and WordPiece as Hugging Face writes them
// (tokenizer.json). What is between documents, and how prompts and answers are laid out, is
// runtime/document_layout.h.
//
// Files come from anybody: a damaged one is an error, and one that asks for what we would compute
// differently is refused by name. All functions may be called from several threads at once.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/disk.h"
#include "base/result.h"
#include "security/hash.h"

namespace isthmus::runtime {

class Tokenizer {
 public:
  // Names of special tokens in a text: plain text, which anybody may write, or the tokens. Only a
  // tokenizer.json knows such names.
  enum class Specials { are_text, are_tokens };

  virtual ~Tokenizer() = default;

  // Appends the tokens of `text`, without begin and end. Errors: invalid_argument (a text that is
  // not UTF-8, except for bytes), too_large (the pattern that parts words gave up).
  virtual Result<void> encode(std::string_view text, std::vector<std::int32_t>& ids,
                              Specials specials = Specials::are_text) const = 0;

  // The text; special tokens stand for none. Ids are below vocabulary(). What a model wrote need
  // not be UTF-8.
  virtual std::string decode(std::span<const std::int32_t> ids) const = 0;

  // The bytes that a token adds to a text that goes on; of a special token none. A character may
  // span tokens.
  virtual std::string_view piece(std::int32_t id) const = 0;

  // One more than the largest id.
  virtual std::int32_t vocabulary() const = 0;

  // What opens a text, where the tokenizer says so, and what ends one.
  virtual std::optional<std::int32_t> begin() const = 0;
  virtual std::optional<std::int32_t> end() const = 0;

  // The special token of this name.
  virtual std::optional<std::int32_t> special(std::string_view name) const = 0;

  // Equal for equal files: text prepared with another one has other ids.
  virtual const security::Digest& digest() const = 0;

  // "byte-level BPE of 128256 tokens".
  virtual std::string description() const = 0;
};

// From "bytes", a tokenizer.json, a SentencePiece model, or a folder with one of these, where
// tokenizer.json comes first unless it is of another kind than ours and a tokenizer.model lies
// beside it. What ends a text is named in the folder's tokenizer_config.json or config.json.
// Errors: not_found, permission, io, corrupt, unsupported, too_large.
Result<std::unique_ptr<Tokenizer>> open_tokenizer(const Disk& disk, const std::string& path);

}  // namespace isthmus::runtime
