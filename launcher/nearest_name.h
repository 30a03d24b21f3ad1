// The name a user probably meant: among the allowed ones, the one with the fewest slips (a letter
// left out, added, changed, or two swapped; Damerau 1964, restricted) from what was written.
#pragma once

#include <optional>
#include <span>
#include <string_view>

namespace isthmus::launcher {

// Nothing when even the nearest is too far to be a slip: more than a third of its letters, at least
// one and at most three slips. Letter case, '-' and '_' do not count. Ties go to the first.
std::optional<std::string_view> nearest_name(std::string_view written,
                                             std::span<const std::string_view> allowed);

}  // namespace isthmus::launcher
