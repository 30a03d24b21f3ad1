// Counts in sentences: "1 site", "2 sites".
#pragma once

#include <fmt/format.h>

#include <concepts>
#include <string>
#include <string_view>

namespace isthmus {

// Of a thing whose plural ends in s.
std::string counted(std::integral auto n, std::string_view thing) {
  return fmt::format("{} {}{}", n, thing, n == 1 ? "" : "s");
}

}  // namespace isthmus
