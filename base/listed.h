// Names in sentences: "alpha", "alpha and beta", "alpha, beta or gamma".
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace isthmus {

inline std::string listed(std::span<const std::string> names, std::string_view last = "and") {
  if (names.size() < 2) return names.empty() ? std::string() : names.front();
  return fmt::format("{} {} {}", fmt::join(names.first(names.size() - 1), ", "), last,
                     names.back());
}

// So many of them do: "alpha or beta" for one, "2 of alpha, beta and gamma", "alpha and beta" for
// all.
inline std::string some_of(std::span<const std::string> names, std::size_t wanted) {
  if (wanted >= names.size()) return listed(names);
  return wanted == 1 ? listed(names, "or") : fmt::format("{} of {}", wanted, listed(names));
}

}  // namespace isthmus
