#include "inter/rank_values.h"

#include <algorithm>

#include "base/assert.h"
#include "base/copy_to.h"

namespace isthmus::inter {

void RankPieces::add(std::uint64_t canonical, std::span<const float> values) {
  elements_ += values.size();
  if (!pieces_.empty()) {
    auto& last = pieces_.back();
    const bool goes_on = last.canonical + last.values.size() == canonical &&
                         last.values.data() + last.values.size() == values.data();
    if (goes_on) {
      last.values = {last.values.data(), last.values.size() + values.size()};
      return;
    }
  }
  pieces_.push_back({canonical, values});
}

void RankPieces::sort() { std::ranges::sort(pieces_, {}, &Piece::canonical); }

void RankPieces::read(std::uint64_t first, std::span<float> out) const {
  auto piece = std::prev(std::ranges::upper_bound(pieces_, first, {}, &Piece::canonical));
  while (!out.empty()) {
    ISTHMUS_ASSERT(piece != pieces_.end() && first >= piece->canonical);
    const auto from = piece->values.subspan(first - piece->canonical);
    const auto part = from.first(std::min(from.size(), out.size()));
    copy_to(part, out.begin());
    first += part.size();
    out = out.subspan(part.size());
    ++piece;
  }
}

}  // namespace isthmus::inter
