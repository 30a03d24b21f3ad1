#include "launcher/wrapped_text.h"

#include <fmt/format.h>

#include <algorithm>

namespace isthmus::launcher {

std::string wrapped(std::string_view text, std::string_view prefix, std::size_t width) {
  std::string out, line;
  while (!text.empty()) {
    const auto end = std::min(text.find(' '), text.size());
    const auto word = text.substr(0, end);
    if (!line.empty() && prefix.size() + line.size() + 1 + word.size() > width) {
      out += fmt::format("{}{}\n", prefix, line);
      line.clear();
    }
    if (!line.empty()) line += ' ';
    line += word;
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  if (!line.empty()) out += fmt::format("{}{}\n", prefix, line);
  return out;
}

std::string entry_of(std::string_view name, std::string_view meaning, std::size_t column,
                     std::size_t width) {
  const auto text = wrapped(meaning, std::string(column, ' '), width);
  auto line = fmt::format("  {}", name);
  if (text.empty()) return line + "\n";
  if (line.size() + 2 > column) return line + "\n" + text;
  line.resize(column, ' ');
  return line + text.substr(column);
}

}  // namespace isthmus::launcher
