// Sentences as lines of a given width.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace isthmus::launcher {

// `text` broken at spaces to lines of at most `width`, each with `prefix`.
std::string wrapped(std::string_view text, std::string_view prefix, std::size_t width);

// A name, and beside it, from `column` on, what it means; below a name that is too long.
std::string entry_of(std::string_view name, std::string_view meaning, std::size_t column,
                     std::size_t width);

}  // namespace isthmus::launcher
