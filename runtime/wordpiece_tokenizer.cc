#include "runtime/wordpiece_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "base/assert.h"
#include "base/byte_stream.h"
#include "runtime/added_tokens.h"
#include "runtime/utf8_state.h"
#include "runtime/wordpiece_file.h"

namespace isthmus::runtime {
namespace {

// What the package's decoder makes of a token, in this order.
constexpr std::pair<std::string_view, std::string_view> kCleanUps[] = {
    {" .", "."},   {" ?", "?"},     {" !", "!"},     {" ,", ","},
    {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},   {" do not", " don't"},
    {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"},
};

std::string cleaned_up(std::string text) {
  for (const auto& [from, to] : kCleanUps)
    for (auto at = text.find(from); at != text.npos; at = text.find(from, at + to.size()))
      text.replace(at, from.size(), to);
  return text;
}

// Pieces that may stand at one place of a word.
class Pieces {
 public:
  void add(std::string_view text, std::int32_t id) {
    if (text.empty()) return;
    ids_.emplace(text, id);
    longest_ = std::max(longest_, text.size());
  }
  struct Found {
    std::int32_t id = -1;
    std::size_t size = 0;  // 0: none
  };
  // The longest that `rest` begins with, and that ends with a character.
  Found longest_of(std::string_view rest) const {
    for (auto size = std::min(rest.size(), longest_); size > 0; --size) {
      const bool parts_character =
          size < rest.size() && (static_cast<std::uint8_t>(rest[size]) & 0xC0) == 0x80;
      if (parts_character) continue;
      if (const auto found = ids_.find(rest.substr(0, size)); found != ids_.end())
        return {found->second, size};
    }
    return {};
  }

 private:
  std::unordered_map<std::string_view, std::int32_t> ids_;
  std::size_t longest_ = 0;  // in bytes
};

class WordPieceTokenizer final : public Tokenizer {
 public:
  WordPieceTokenizer(WordPieceFile file, security::Digest digest)
      : file_(std::move(file)),
        digest_(digest),
        added_(file_.added,
               [text = file_.text](std::string_view raw) { return text.normalise(raw); }) {
    for (std::int32_t id = 0; id < vocabulary(); ++id) {
      const std::string_view token = file_.tokens[static_cast<std::size_t>(id)];
      const bool is_token = !token.empty() && !added_.is_special(id);
      pieces_.push_back(is_token ? piece_of(token) : "");
      if (!file_.of_model[static_cast<std::size_t>(id)]) continue;
      first_.add(token, id);
      if (token.starts_with(file_.prefix)) next_.add(token.substr(file_.prefix.size()), id);
    }
  }

  Result<void> encode(std::string_view text, std::vector<std::int32_t>& ids,
                      Specials specials) const override {
    if (!is_utf8(text))
      return Error{ErrorCode::invalid_argument,
                   "the text is not UTF-8, which this tokenizer needs; convert it (iconv)"};
    return added_.part(
        text, specials,
        [&](std::string_view part) -> Result<void> {
          for_each_bert_word(part, [&](std::string_view word, std::size_t characters) {
            add_word(word, characters, ids);
          });
          return {};
        },
        [&ids](std::int32_t id) { ids.push_back(id); });
  }

  std::string decode(std::span<const std::int32_t> ids) const override {
    std::string text;
    bool is_first = true;
    for (const auto id : ids) {
      const auto piece = this->piece(id);
      if (added_.is_special(id)) continue;
      text += is_first ? as_first(file_.tokens[static_cast<std::size_t>(id)]) : std::string(piece);
      is_first = false;
    }
    return text;
  }
  std::string_view piece(std::int32_t id) const override {
    ISTHMUS_ASSERT(id >= 0 && id < vocabulary());
    return pieces_[static_cast<std::size_t>(id)];
  }
  std::int32_t vocabulary() const override {
    return static_cast<std::int32_t>(file_.tokens.size());
  }
  std::optional<std::int32_t> begin() const override { return file_.begin; }
  std::optional<std::int32_t> end() const override { return file_.end; }
  std::optional<std::int32_t> special(std::string_view name) const override {
    return added_.find(name);
  }
  const security::Digest& digest() const override { return digest_; }
  std::string description() const override {
    return fmt::format("WordPiece of {} tokens", vocabulary());
  }

 private:
  // The first keeps its prefix, as in the package.
  std::string as_first(std::string_view token) const {
    return file_.cleans_up ? cleaned_up(std::string(token)) : std::string(token);
  }
  std::string piece_of(std::string_view token) const {
    if (token.starts_with(file_.prefix)) return as_first(token.substr(file_.prefix.size()));
    return as_first(std::string(1, ' ').append(token));
  }

  void add_word(std::string_view word, std::size_t characters,
                std::vector<std::int32_t>& ids) const {
    const auto count = ids.size();
    bool is_known = characters <= file_.word_characters_max;
    for (std::size_t at = 0; is_known && at < word.size();) {
      const auto found = (at == 0 ? first_ : next_).longest_of(word.substr(at));
      is_known = found.size > 0;
      if (is_known) ids.push_back(found.id);
      at += found.size;
    }
    if (is_known) return;
    ids.resize(count);
    ids.push_back(file_.unknown);
  }

  const WordPieceFile file_;
  const security::Digest digest_;
  const AddedTokens added_;
  std::vector<std::string> pieces_;
  Pieces first_, next_;  // views of the file's tokens
};

}  // namespace

Result<std::unique_ptr<Tokenizer>> make_wordpiece_tokenizer(std::string_view json) {
  ISTHMUS_TRY(auto file, decode_wordpiece_file(json));
  security::Hasher hasher;
  hasher.update(bytes_of("isthmus WordPiece 1"));
  hasher.update(bytes_of(json));
  return std::make_unique<WordPieceTokenizer>(std::move(file), hasher.finish());
}

}  // namespace isthmus::runtime
