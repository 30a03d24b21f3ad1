// Sentences as lines of a given width.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace isthmus::launcher {

// `text` broken at spaces to lines of at most `width`, each with `prefix`.
std::string wrapped(std::string_view text, std::string_view prefix, std::size_t width);

}  // namespace isthmus::launcher
