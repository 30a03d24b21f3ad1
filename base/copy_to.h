// copy_to: all elements of a contiguous range to where they belong, as one copy of memory. For
// std::ranges::copy g++ 12 makes a loop over single elements instead.
#pragma once

#include <algorithm>
#include <ranges>

namespace isthmus {

// Returns the end of what was written.
template <std::ranges::contiguous_range Range, class Out>
Out copy_to(const Range& from, Out to) {
  return std::copy(std::ranges::begin(from), std::ranges::end(from), to);
}

}  // namespace isthmus
