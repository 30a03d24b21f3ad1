#include "runtime/added_tokens.h"

#include <algorithm>

namespace isthmus::runtime {

AddedTokens::AddedTokens(std::span<const AddedToken> tokens, Normalise normalise)
    : normalise_(std::move(normalise)) {
  for (const auto& token : tokens) {
    const auto id = static_cast<std::size_t>(token.id);
    if (id >= is_special_.size()) is_special_.resize(id + 1);
    is_special_[id] = token.special;
    names_.emplace(token.content, token.id);
    if (token.normalized)
      in_normal_form_.add(normalise_ ? normalise_(token.content) : token.content, token);
    else
      in_raw_text_.add(token.content, token);
  }
}

std::optional<std::int32_t> AddedTokens::find(std::string_view name) const {
  const auto found = names_.find(name);
  if (found == names_.end()) return std::nullopt;
  return found->second;
}

void AddedTokens::Finder::add(std::string content, const AddedToken& token) {
  if (content.empty()) return;
  begins_[static_cast<std::uint8_t>(content.front())] = true;
  lengths_.push_back(content.size());
  std::sort(lengths_.begin(), lengths_.end(), std::greater<>());
  lengths_.erase(std::unique(lengths_.begin(), lengths_.end()), lengths_.end());
  tokens_.emplace(std::move(content), token);
}

const std::pair<const std::string, AddedToken>* AddedTokens::Finder::at_front(
    std::string_view text) const {
  if (!begins_[static_cast<std::uint8_t>(text.front())]) return nullptr;
  for (const auto length : lengths_) {
    if (length > text.size()) continue;
    const auto found = tokens_.find(text.substr(0, length));
    if (found != tokens_.end()) return &*found;
  }
  return nullptr;
}

}  // namespace isthmus::runtime
