#include "base/printable.h"

#include <algorithm>

namespace isthmus {

std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char c = byte(0);
  const std::size_t n = c < 0x80                ? 1
                        : c >= 0xC2 && c < 0xE0 ? 2
                        : c >= 0xE0 && c < 0xF0 ? 3
                        : c >= 0xF0 && c < 0xF5 ? 4
                                                : 0;
  if (n == 0 || n > text.size()) return 0;
  for (std::size_t i = 1; i < n; ++i)
    if ((byte(i) & 0xC0) != 0x80) return 0;
  if (n == 3 && c == 0xE0 && byte(1) < 0xA0) return 0;   // overlong
  if (n == 3 && c == 0xED && byte(1) >= 0xA0) return 0;  // surrogate
  if (n == 4 && c == 0xF0 && byte(1) < 0x90) return 0;
  if (n == 4 && c == 0xF4 && byte(1) >= 0x90) return 0;
  return n;
}

std::string printable(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const auto c = static_cast<unsigned char>(text.front());
    const auto n = utf8_length(text);
    const bool control = c < 0x20 || c == 0x7f ||
                         (n == 2 && c == 0xC2 && static_cast<unsigned char>(text[1]) < 0xA0);
    if (n == 0)
      out += '?';
    else if (control)
      out += ' ';
    else
      out += text.substr(0, n);
    text.remove_prefix(n == 0 ? 1 : n);
  }
  return out;
}

std::string printable_lines(std::string_view text) {
  std::string out;
  for (;;) {
    const auto end = std::min(text.find('\n'), text.size());
    out += printable(text.substr(0, end));
    if (end == text.size()) return out;
    out += '\n';
    text.remove_prefix(end + 1);
  }
}

}  // namespace isthmus
