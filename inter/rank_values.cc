#include "inter/rank_values.h"

#include <algorithm>
#include <mutex>

#include "base/assert.h"
#include "base/copy_to.h"
#include "kernels/stream_copy.h"

namespace isthmus::inter {

void RankPieces::add(std::uint64_t canonical, std::span<float> values) {
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

template <class Body>
void RankPieces::each_part(std::uint64_t first, std::uint64_t count, const Body& body) const {
  auto piece = std::prev(std::ranges::upper_bound(pieces_, first, {}, &Piece::canonical));
  for (std::uint64_t done = 0; done < count; ++piece) {
    ISTHMUS_ASSERT(piece != pieces_.end() && first + done >= piece->canonical);
    const auto from = piece->values.subspan(first + done - piece->canonical);
    const auto part = from.first(std::min<std::uint64_t>(from.size(), count - done));
    body(part, done);
    done += part.size();
  }
}

std::span<const float> RankPieces::read(std::uint64_t first, std::span<float> out) const {
  std::span<const float> found = out;
  each_part(first, out.size(), [&](std::span<const float> part, std::uint64_t at) {
    if (part.size() == out.size())
      found = part;
    else
      copy_to(part, out.begin() + static_cast<std::ptrdiff_t>(at));
  });
  return found;
}

void RankPieces::write(std::uint64_t first, std::span<const float> values) const {
  each_part(first, values.size(), [&](std::span<float> part, std::uint64_t at) {
    kernels::stream_copy(values.subspan(at, part.size()), part);
  });
}

void RankDraft::write(std::uint64_t first, std::span<const float> values) {
  const std::shared_lock lock(mutex_);
  if (!closed_) areas_->write(first, values);
}

void RankDraft::close() {
  const std::unique_lock lock(mutex_);
  closed_ = true;
}

}  // namespace isthmus::inter
