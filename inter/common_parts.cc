#include "inter/common_parts.h"

#include <algorithm>
#include <bitset>
#include <map>
#include <unordered_set>

#include "base/assert.h"

namespace isthmus::inter {
namespace {

constexpr std::size_t kLookedAtMax = 4096;

using Holders = std::bitset<kSitesMax>;

std::uint64_t tokens_of(const std::vector<Part>& parts) {
  std::uint64_t sum = 0;
  for (const auto& part : parts) sum += part.tokens;
  return sum;
}

bool better(const std::vector<Part>& a, const std::vector<Part>& b) {
  if (tokens_of(a) != tokens_of(b)) return tokens_of(a) > tokens_of(b);
  if (a.size() != b.size()) return a.size() > b.size();
  return a < b;
}

class Search {
 public:
  Search(const std::vector<const std::vector<Part>*>& held, std::size_t majority,
         std::size_t min_sites)
      : majority_(majority), min_sites_(std::max<std::size_t>(min_sites, 1)) {
    ISTHMUS_ASSERT(held.size() <= kSitesMax);
    for (std::size_t i = 0; i < held.size(); ++i) {
      all_.set(i);
      for (const auto& part : *held[i]) holders_of_[part].set(i);
    }
    std::erase_if(holders_of_, [&](const auto& of) { return of.second.count() < majority_; });
  }

  std::optional<std::vector<Part>> run() && {
    if (all_.count() >= majority_) look_at(all_);
    return std::move(best_);
  }

 private:
  struct Fewer {
    Holders holders;
    std::size_t count;
    std::uint64_t tokens;
  };

  // Holders of some parts, a majority: what else they share comes with it. Then those of one part
  // more, as long as they are a majority.
  void look_at(const Holders& holders) {
    if (seen_.size() >= kLookedAtMax || !seen_.insert(holders).second) return;
    std::vector<Part> shared;
    std::vector<Fewer> next;
    std::size_t parts_at_most = 0;
    std::uint64_t tokens_at_most = 0;
    for (const auto& [part, of] : holders_of_) {
      const auto both = holders & of;
      const auto count = both.count();
      if (count < majority_) continue;
      ++parts_at_most;
      tokens_at_most += part.tokens;
      if (both == holders)
        shared.push_back(part);
      else
        next.push_back({both, count, part.tokens});
    }
    if (parts_at_most < min_sites_ || (best_ && tokens_at_most < tokens_of(*best_))) return;
    if (shared.size() >= min_sites_ && (!best_ || better(shared, *best_)))
      best_ = std::move(shared);
    std::ranges::stable_sort(next, [](const auto& a, const auto& b) {
      return a.count != b.count ? a.count > b.count : a.tokens > b.tokens;
    });
    for (const auto& fewer : next) look_at(fewer.holders);
  }

  const std::size_t majority_, min_sites_;
  Holders all_;
  std::map<Part, Holders> holders_of_;
  std::unordered_set<Holders> seen_;
  std::optional<std::vector<Part>> best_;
};

}  // namespace

std::optional<std::vector<Part>> best_common_parts(
    const std::vector<const std::vector<Part>*>& held, std::size_t majority,
    std::size_t min_sites) {
  return Search(held, majority, min_sites).run();
}

}  // namespace isthmus::inter
