#include "runtime/bpe_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <limits>
#include <mutex>
#include <queue>
#include <unordered_map>
#include <utility>

#include "base/assert.h"
#include "base/byte_stream.h"
#include "runtime/added_tokens.h"
#include "runtime/tokenizer_file.h"
#include "runtime/unicode_nfc.h"
#include "runtime/utf8_state.h"
#include "runtime/word_pattern.h"

namespace isthmus::runtime {
namespace {

using Ids = std::vector<std::int32_t>;

// Pairs of tokens that become one: open addressing, at most half full.
class MergeTable {
 public:
  struct Merge {
    std::uint32_t rank = std::numeric_limits<std::uint32_t>::max();  // lower ones come first
    std::int32_t whole = -1;
  };

  explicit MergeTable(std::span<const TokenMerge> merges)
      : slots_(std::bit_ceil(2 * merges.size() + 2)) {
    for (std::size_t rank = 0; rank < merges.size(); ++rank) {
      const auto& merge = merges[rank];
      auto& slot = slots_[place(merge.left, merge.right)];
      // A pair that is listed twice counts where it stands last.
      slot = {merge.left, merge.right, {static_cast<std::uint32_t>(rank), merge.whole}};
    }
  }
  Merge find(std::int32_t left, std::int32_t right) const {
    return slots_[place(left, right)].merge;
  }

 private:
  struct Slot {
    std::int32_t left = -1, right = -1;
    Merge merge = {};
  };
  // Where the pair is, or would be.
  std::size_t place(std::int32_t left, std::int32_t right) const {
    const auto key = static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 |
                     static_cast<std::uint32_t>(right);
    auto at = (key * 0x9E3779B97F4A7C15U) >> 20 & (slots_.size() - 1);
    while (slots_[at].left >= 0 && (slots_[at].left != left || slots_[at].right != right))
      at = (at + 1) & (slots_.size() - 1);
    return at;
  }
  std::vector<Slot> slots_;
};

// Merges the bytes of a word, the pair of the lowest rank first, of equals the leftmost.
class WordMerger {
 public:
  WordMerger(const MergeTable& merges, std::span<const std::int32_t, 256> byte_ids)
      : merges_(merges), byte_ids_(byte_ids) {}

  void merge(std::string_view word, Ids& ids) {
    ISTHMUS_ASSERT(word.size() < std::numeric_limits<std::uint32_t>::max());
    parts_.resize(word.size());
    due_ = {};
    for (std::size_t i = 0; i < word.size(); ++i)
      parts_[i] = {byte_ids_[static_cast<std::uint8_t>(word[i])], static_cast<std::int64_t>(i) - 1,
                   static_cast<std::int64_t>(i) + 1};
    for (std::size_t i = 0; i + 1 < word.size(); ++i) consider(i);
    while (!due_.empty()) {
      const Due due = due_.top();
      due_.pop();
      if (is_due(due)) join(due);
    }
    for (std::size_t i = 0; i < parts_.size(); i = static_cast<std::size_t>(parts_[i].next))
      ids.push_back(parts_[i].id);
  }

 private:
  struct Part {
    std::int32_t id = -1;  // -1: is in the part before it
    std::int64_t before = 0, next = 0;
  };
  struct Due {
    std::uint32_t rank;
    std::uint32_t at;  // of the left part
    std::int32_t left, right;
    bool operator>(const Due& other) const {
      return rank != other.rank ? rank > other.rank : at > other.at;
    }
  };

  bool has_next(std::size_t at) const {
    return parts_[at].next < static_cast<std::int64_t>(parts_.size());
  }
  void consider(std::size_t at) {
    const auto left = parts_[at].id;
    const auto right = parts_[static_cast<std::size_t>(parts_[at].next)].id;
    const auto merge = merges_.find(left, right);
    if (merge.whole >= 0) due_.push({merge.rank, static_cast<std::uint32_t>(at), left, right});
  }
  // Neither part has been merged since.
  bool is_due(const Due& due) const {
    return parts_[due.at].id == due.left && has_next(due.at) &&
           parts_[static_cast<std::size_t>(parts_[due.at].next)].id == due.right;
  }
  void join(const Due& due) {
    auto& left = parts_[due.at];
    auto& right = parts_[static_cast<std::size_t>(left.next)];
    left.id = merges_.find(due.left, due.right).whole;
    right.id = -1;
    left.next = right.next;
    if (has_next(due.at)) {
      parts_[static_cast<std::size_t>(left.next)].before = due.at;
      consider(due.at);
    }
    if (left.before >= 0) consider(static_cast<std::size_t>(left.before));
  }

  const MergeTable& merges_;
  std::span<const std::int32_t, 256> byte_ids_;
  std::vector<Part> parts_;
  std::priority_queue<Due, std::vector<Due>, std::greater<>> due_;
};

// Words met before, and their tokens: texts repeat most of theirs. Full, it stays as it is.
class WordCache {
 public:
  bool find(std::string_view word, Ids& ids) const {
    auto& shelf = shelf_of(word);
    const std::lock_guard lock(shelf.mutex);
    const auto found = shelf.words.find(word);
    if (found == shelf.words.end()) return false;
    ids.insert(ids.end(), found->second.begin(), found->second.end());
    return true;
  }
  void keep(std::string_view word, std::span<const std::int32_t> ids) const {
    if (word.size() > kWordBytesMax) return;
    auto& shelf = shelf_of(word);
    const std::lock_guard lock(shelf.mutex);
    if (shelf.words.size() < kWordsMax) shelf.words.emplace(word, Ids(ids.begin(), ids.end()));
  }

 private:
  static constexpr std::size_t kWordsMax = 2048, kWordBytesMax = 64;
  struct Shelf {
    std::mutex mutex;
    std::unordered_map<std::string, Ids, TextHash, std::equal_to<>> words;
  };
  Shelf& shelf_of(std::string_view word) const {
    return shelves_[TextHash()(word) >> 7 & (shelves_.size() - 1)];
  }
  mutable std::array<Shelf, 64> shelves_;  // so that threads seldom wait for each other
};

struct Step {
  bool adds_space = false;
  std::optional<WordPattern> pattern = {};
  WordPattern::Between between = WordPattern::Between::is_word;
};

class BpeTokenizer final : public Tokenizer {
 public:
  BpeTokenizer(TokenizerFile file, std::vector<Step> steps, std::optional<std::int32_t> end,
               security::Digest digest)
      : file_(std::move(file)),
        steps_(std::move(steps)),
        end_(end),
        digest_(digest),
        merges_(file_.merges),
        added_(file_.added, file_.normal_form_c ? to_nfc : AddedTokens::Normalise()) {
    if (file_.ignore_merges) {
      for (std::size_t id = 0; id < file_.pieces.size(); ++id)
        if (file_.is_word[id])
          whole_words_.emplace(file_.pieces[id], static_cast<std::int32_t>(id));
    }
    file_.merges.clear();
    file_.merges.shrink_to_fit();
  }

  Result<void> encode(std::string_view text, Ids& ids, Specials specials) const override {
    if (!is_utf8(text))
      return Error{ErrorCode::invalid_argument,
                   "the text is not UTF-8, which this tokenizer needs; convert it (iconv)"};
    WordMerger merger(merges_, file_.byte_ids);
    return added_.part(
        text, specials, [&](std::string_view part) { return words(part, steps_, merger, ids); },
        [&ids](std::int32_t id) { ids.push_back(id); });
  }

  std::string decode(std::span<const std::int32_t> ids) const override {
    std::string text;
    for (const auto id : ids) text += piece(id);
    return text;
  }
  std::string_view piece(std::int32_t id) const override {
    ISTHMUS_ASSERT(id >= 0 && id < vocabulary());
    if (added_.is_special(id)) return {};
    return file_.pieces[static_cast<std::size_t>(id)];
  }
  std::int32_t vocabulary() const override {
    return static_cast<std::int32_t>(file_.pieces.size());
  }
  std::optional<std::int32_t> begin() const override { return file_.begin; }
  std::optional<std::int32_t> end() const override { return end_; }
  std::optional<std::int32_t> special(std::string_view name) const override {
    return added_.find(name);
  }
  const security::Digest& digest() const override { return digest_; }
  std::string description() const override {
    return fmt::format("byte-level BPE of {} tokens", vocabulary());
  }

 private:
  Result<void> words(std::string_view part, std::span<const Step> steps, WordMerger& merger,
                     Ids& ids) const {
    if (steps.empty()) {
      add_word(part, merger, ids);
      return {};
    }
    const auto& step = steps.front();
    std::string with_space;
    if (step.adds_space && !part.starts_with(' ')) {
      with_space.assign(1, ' ').append(part);
      part = with_space;
    }
    const auto rest = steps.subspan(1);
    if (!step.pattern) return words(part, rest, merger, ids);
    return step.pattern->for_each(
        part, step.between, [&](std::string_view word) { return words(word, rest, merger, ids); });
  }

  void add_word(std::string_view word, WordMerger& merger, Ids& ids) const {
    if (const auto whole = whole_words_.find(word); whole != whole_words_.end()) {
      ids.push_back(whole->second);
      return;
    }
    if (cache_.find(word, ids)) return;
    const auto first = ids.size();
    merger.merge(word, ids);
    cache_.keep(word, std::span(ids).subspan(first));
  }

  TokenizerFile file_;
  const std::vector<Step> steps_;
  const std::optional<std::int32_t> end_;
  const security::Digest digest_;
  const MergeTable merges_;
  const AddedTokens added_;
  std::unordered_map<std::string_view, std::int32_t> whole_words_;  // views of pieces
  const WordCache cache_;
};

Result<std::vector<Step>> compile(const TokenizerFile& file) {
  std::vector<Step> steps;
  for (const auto& written : file.steps) {
    Step step{.adds_space = written.adds_space};
    if (written.drops_between) step.between = WordPattern::Between::is_dropped;
    if (!written.pattern.empty()) {
      ISTHMUS_TRY(step.pattern, WordPattern::compile(written.pattern));
    }
    steps.push_back(std::move(step));
  }
  return steps;
}

Result<std::optional<std::int32_t>> end_of(const TokenizerFile& file, const TextEnd& end) {
  const auto none = std::optional<std::int32_t>();
  if (!end.name.empty()) {
    for (const auto& token : file.added)
      if (token.content == end.name) return std::optional(token.id);
    return Error{ErrorCode::corrupt,
                 fmt::format("tokenizer_config.json ends texts with \"{}\", which is none of the "
                             "tokenizer's added tokens",
                             end.name)};
  }
  if (!end.id) return none;
  if (*end.id < 0 || *end.id >= static_cast<std::int64_t>(file.pieces.size()))
    return Error{ErrorCode::corrupt,
                 fmt::format("config.json ends texts with the token {}, but the tokenizer has {}",
                             *end.id, file.pieces.size())};
  return std::optional(static_cast<std::int32_t>(*end.id));
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> make_bpe_tokenizer(std::string_view json, const TextEnd& end) {
  ISTHMUS_TRY(auto file, decode_tokenizer_file(json));
  ISTHMUS_TRY(auto steps, compile(file));
  ISTHMUS_TRY(const auto ends, end_of(file, end));
  security::Hasher hasher;
  hasher.update(bytes_of("isthmus byte-level BPE 1"));
  hasher.update(bytes_of(json));
  return std::make_unique<BpeTokenizer>(std::move(file), std::move(steps), ends, hasher.finish());
}

}  // namespace isthmus::runtime
