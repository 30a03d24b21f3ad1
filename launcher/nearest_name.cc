#include "launcher/nearest_name.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

namespace isthmus::launcher {
namespace {

constexpr std::size_t kLengthMax = 64;  // longer is no name of ours; bounds the work

std::string folded(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '-' || c == ' ')
      out += '_';
    else
      out += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  }
  return out;
}

std::size_t slips(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before, last(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], before[j - 2] + 1);
    }
    before = last;
    last = row;
  }
  return last[b.size()];
}

}  // namespace

std::optional<std::string_view> nearest_name(std::string_view written,
                                             std::span<const std::string_view> allowed) {
  if (written.size() > kLengthMax) return std::nullopt;
  std::optional<std::string_view> nearest;
  std::size_t fewest = 0;
  for (const auto name : allowed) {
    const auto limit = std::clamp<std::size_t>(name.size() / 3, 1, 3);
    const auto n = slips(folded(written), folded(name));
    if (n > limit || n >= name.size() || (nearest && n >= fewest)) continue;
    nearest = name;
    fewest = n;
  }
  return nearest;
}

}  // namespace isthmus::launcher
