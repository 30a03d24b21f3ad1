// Text that a terminal shows and does not obey: much of what we print came from peers, from files
// or from a model.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace isthmus {

// Length of the UTF-8 sequence at the front of `text`, 0 when it is not one.
std::size_t utf8_length(std::string_view text);

// Control characters become spaces, and what is no UTF-8 question marks.
std::string printable(std::string_view text);

// The same of text of several lines, which keeps their ends.
std::string printable_lines(std::string_view text);

}  // namespace isthmus
