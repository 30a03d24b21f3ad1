#include "launcher/fault.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "base/counted.h"
#include "base/printable.h"

namespace isthmus::launcher {
namespace {

constexpr std::size_t kExcerptCharacters = 100, kAfterPlace = 40;

bool continues_character(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

std::string_view line_of(std::string_view source, std::size_t line) {
  for (; line > 1; --line) {
    const auto end = source.find('\n');
    if (end == std::string_view::npos) return {};
    source.remove_prefix(end + 1);
  }
  auto text = source.substr(0, source.find('\n'));
  if (!text.empty() && text.back() == '\r') text.remove_suffix(1);
  return text;
}

std::size_t characters(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return !continues_character(c); }));
}

// The first `count` characters of UTF-8, whole.
std::string_view first_characters(std::string_view text, std::size_t count) {
  std::size_t i = 0;
  for (; i < text.size(); ++i)
    if (!continues_character(text[i]) && count-- == 0) break;
  return text.substr(0, i);
}

}  // namespace

bool Faults::has_override() const {
  return std::any_of(all_.begin(), all_.end(),
                     [](const Fault& fault) { return fault.region.line == kNotInFile.line; });
}

std::vector<Fault> Faults::sorted() const {
  auto faults = all_;
  std::stable_sort(faults.begin(), faults.end(), [](const Fault& a, const Fault& b) {
    return std::tie(a.region.line, a.region.column) < std::tie(b.region.line, b.region.column);
  });
  return faults;
}

std::string Faults::text(std::string_view path, std::string_view source) const {
  std::string out;
  for (const auto& [region, message] : sorted()) {
    if (region.line == kNotInFile.line) {
      out += fmt::format("{}: error: --set: {}\n", path, printable(message));
      continue;
    }
    out +=
        fmt::format("{}:{}:{}: error: {}\n", path, region.line, region.column, printable(message));
    const auto line = line_of(source, region.line);
    if (line.find_first_not_of(" \t") == std::string_view::npos) continue;
    // Of a long line the stretch around the place.
    const auto place = region.column - 1;
    const auto end = std::min(place + kAfterPlace, characters(line));
    const auto skipped = end < kExcerptCharacters ? 0 : end - kExcerptCharacters;
    const auto rest = line.substr(first_characters(line, skipped).size());
    const auto shown = first_characters(rest, kExcerptCharacters);
    const std::string_view before = skipped > 0 ? "…" : "", after = shown != rest ? "…" : "";
    out += fmt::format("{:5} | {}{}{}\n", region.line, before, printable(shown), after);
    const auto width = characters(shown);
    if (place - skipped >= width) continue;
    const auto length = std::clamp<std::size_t>(region.length, 1, width - (place - skipped));
    out += fmt::format("      | {}^{}\n", std::string(place - skipped + (skipped > 0 ? 1 : 0), ' '),
                       std::string(length - 1, '~'));
  }
  if (!all_.empty()) out += fmt::format("{}: {}\n", path, counted(all_.size(), "fault"));
  return out;
}

}  // namespace isthmus::launcher
