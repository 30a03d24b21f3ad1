// AddedTokens: the tokens of a tokenizer.json that are looked for in a text before the model sees
// it, some in the text as it is, some in the normalised one. From the left, of several at one place
// the longest.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/result.h"
#include "runtime/tokenizer.h"

namespace isthmus::runtime {

struct AddedToken {
  std::string content;
  std::int32_t id = 0;
  bool special = false;
  bool normalized = false;  // looked for in the normalised text
};

// Finds texts by views of them.
struct TextHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const {
    return std::hash<std::string_view>()(text);
  }
};

class AddedTokens {
 public:
  // What becomes of a text before the model sees it; empty: it stays as it is.
  using Normalise = std::function<std::string(std::string_view)>;

  AddedTokens(std::span<const AddedToken> tokens, Normalise normalise);

  // Calls `text` for what is between tokens, normalised and not empty, and `token` for their ids.
  // Special ones that are text stand in the way of others, and stay where they are.
  template <class OnText, class OnToken>
  Result<void> part(std::string_view all, Tokenizer::Specials specials, const OnText& text,
                    const OnToken& token) const {
    return in_raw_text_.part(
        all, specials,
        [&](std::string_view raw) -> Result<void> {
          const auto normal = normalise_ ? normalise_(raw) : std::string();
          return in_normal_form_.part(normalise_ ? std::string_view(normal) : raw, specials, text,
                                      token);
        },
        token);
  }

  bool is_special(std::int32_t id) const {
    const auto at = static_cast<std::size_t>(id);
    return at < is_special_.size() && is_special_[at];
  }
  std::optional<std::int32_t> find(std::string_view name) const;

 private:
  class Finder {
   public:
    void add(std::string content, const AddedToken& token);

    template <class OnText, class OnToken>
    Result<void> part(std::string_view all, Tokenizer::Specials specials, const OnText& text,
                      const OnToken& token) const {
      std::size_t done = 0;
      for (std::size_t at = 0; at < all.size() && !tokens_.empty();) {
        const auto* const found = at_front(all.substr(at));
        if (found == nullptr) {
          ++at;
          continue;
        }
        const auto first = at;
        at += found->first.size();
        if (found->second.special && specials == Tokenizer::Specials::are_text) continue;
        if (first > done) ISTHMUS_CHECK(text(all.substr(done, first - done)));
        token(found->second.id);
        done = at;
      }
      if (done < all.size()) return text(all.substr(done));
      return {};
    }

   private:
    const std::pair<const std::string, AddedToken>* at_front(std::string_view text) const;

    std::unordered_map<std::string, AddedToken, TextHash, std::equal_to<>> tokens_;
    std::vector<std::size_t> lengths_;  // longest first
    std::array<bool, 256> begins_ = {};
  };

  const Normalise normalise_;
  Finder in_raw_text_, in_normal_form_;
  std::vector<bool> is_special_;  // by id
  std::unordered_map<std::string, std::int32_t, TextHash, std::equal_to<>> names_;
};

}  // namespace isthmus::runtime
