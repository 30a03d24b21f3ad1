// TokenFile: tokens on disk as nanoGPT lays them out: ids without a header (with that of llm.c a
// file is refused), little-endian, two or four bytes each; or text as it is, a byte each. Beside it
// may lie
//
//   X.mask       a byte for each token; 0: it is no target (a prompt)
//   X.documents  where each document begins: its first token's number, eight bytes little-endian,
//                rising; without it, and without X.json, one begins after each end token
//   X.json       what `isthmus data prepare` says of them (TokenFileFacts)
//
// Nothing in these files is trusted: an id outside the vocabulary is an error that names its place.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/disk.h"
#include "base/result.h"

namespace isthmus::runtime {

enum class TokenWidth : std::uint8_t { byte = 1, two = 2, four = 4 };  // bytes

// "uint8", "uint16", "uint32".
std::string_view to_string(TokenWidth width);
// The narrowest of the two for so many tokens.
TokenWidth width_for(std::int64_t vocabulary);

// Of tokens: how they are written and what they mean.
struct TokenFormat {
  TokenWidth width = TokenWidth::byte;   // of files without an X.json
  std::int32_t vocabulary = 256;         // ids are below
  std::string tokenizer = {};            // its digest, hex; "": of text as bytes
  std::optional<std::int32_t> end = {};  // what ends a document
};

struct TokenFileFacts {
  TokenWidth width = TokenWidth::byte;
  std::string tokenizer = {};       // digest, hex
  std::string tokenizer_name = {};  // for people
  std::uint64_t tokens = 0;
  std::uint64_t targets = 0;     // of them those that count
  std::uint64_t documents = 0;   // of JSON lines: that have a token
  std::uint64_t text_bytes = 0;  // what the tokens were made of
  bool has_mask = false;
  bool has_documents = false;   // X.documents
  bool tells_documents = true;  // whether there is one; the first versions wrote none
  // sampled_digest() of X.documents, hex; "": there is none, or a version before wrote it.
  std::string documents_digest = {};
  std::string source = {};  // for people
  std::string split = {};   // for people: which documents these are

  bool operator==(const TokenFileFacts&) const = default;
};
std::string facts_path(const std::string& path);
std::string mask_path(const std::string& path);
std::string documents_path(const std::string& path);
std::string to_json(const TokenFileFacts& facts);
// Errors: corrupt, unsupported (another version's).
Result<TokenFileFacts> parse_token_file_facts(std::string_view json);

class TokenFile {
 public:
  // Errors: not_found, permission, io, corrupt (the files do not fit each other), mismatch (another
  // tokenizer's), unsupported (a header of llm.c, another version's X.json).
  static Result<TokenFile> open(Disk& disk, const std::string& path, const TokenFormat& format);

  const std::string& path() const { return path_; }
  std::uint64_t tokens() const { return tokens_; }
  TokenWidth width() const { return width_; }
  bool has_mask() const { return mask_ != nullptr; }
  // Whether its X.json names the tokenizer, which is the format's then.
  bool names_tokenizer() const { return names_tokenizer_; }
  const File& file() const { return *file_; }
  const File* mask() const { return mask_.get(); }
  // Whether it is known where documents begin: by a file, or by end tokens.
  bool knows_documents() const { return documents_ != nullptr || end_.has_value(); }
  // Error: invalid_argument.
  Result<void> must_know_documents() const;
  const File* documents() const { return documents_.get(); }

  // The tokens from `first` on. Errors: corrupt (the file has become shorter, an id outside the
  // vocabulary), io.
  Result<void> read(std::uint64_t first, std::span<std::int32_t> out) const;
  // Makes kIgnoredTarget of those tokens from `first` on that are no targets. Errors: as read.
  Result<void> hide(std::uint64_t first, std::span<std::int32_t> targets) const;
  // Of tokens read from `first` on: where among them each one's document begins, 0 for one that
  // began before; and of their targets, one token further, makes kIgnoredTarget of those that
  // begin a document. Of a file that knows them. Errors: as read.
  Result<void> part(std::uint64_t first, std::span<const std::int32_t> tokens,
                    std::span<std::int32_t> starts, std::span<std::int32_t> targets) const;

 private:
  Result<void> open_documents(Disk& disk, const std::optional<TokenFileFacts>& facts);
  // The first document that begins after a token, by its number.
  Result<std::uint64_t> document_after(std::uint64_t token) const;
  Result<void> read_documents(std::uint64_t document, std::span<std::uint64_t> first_tokens) const;

  std::string path_;
  std::unique_ptr<File> file_, mask_, documents_;
  std::optional<std::int32_t> end_;     // where this is what tells documents
  std::string_view to_know_documents_;  // what must be done, where nothing tells them
  std::uint64_t tokens_ = 0;
  std::uint64_t document_count_ = 0;  // of documents_
  TokenWidth width_ = TokenWidth::byte;
  std::int32_t vocabulary_ = 0;
  bool names_tokenizer_ = false;
};

}  // namespace isthmus::runtime
