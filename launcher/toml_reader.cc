#include "launcher/toml_reader.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <utility>

#include "launcher/nearest_name.h"

namespace isthmus::launcher {

namespace {

// Of a line `key = word`, where text lacks its quotes, the commonest slip: where the word is.
struct UnquotedWord {
  std::size_t first = 0, length = 0;  // in the whole text
};
std::optional<UnquotedWord> unquoted_word(std::string_view text, std::size_t line) {
  std::size_t begin = 0;
  for (; line > 1; --line) {
    const auto end = text.find('\n', begin);
    if (end == std::string_view::npos) return std::nullopt;
    begin = end + 1;
  }
  const auto whole = text.substr(begin, text.substr(begin).find('\n'));
  const auto equals = whole.find('=');
  if (equals == std::string_view::npos) return std::nullopt;
  const auto first = whole.find_first_not_of(" \t", equals + 1);
  if (first == std::string_view::npos ||
      std::isalpha(static_cast<unsigned char>(whole[first])) == 0)
    return std::nullopt;
  const auto past = std::min(whole.find_first_of(" \t#\r", first), whole.size());
  const auto rest = whole.find_first_not_of(" \t\r", past);
  if (rest != std::string_view::npos && whole[rest] != '#') return std::nullopt;
  const auto word = whole.substr(first, past - first);
  if (word.find_first_of("\"'[]{},=\\") != std::string_view::npos) return std::nullopt;
  return UnquotedWord{begin + first, word.size()};
}

// TOML++ bounds what nests in brackets, but not the parts of a key, whose tables it frees by
// recursion. No key of ours has more than two.
constexpr std::size_t kKeyPartsMax = 16;

// Where a key has too many parts: dots outside of strings and comments, with nothing between them
// that ends a key.
std::optional<Region> too_deep_key(std::string_view text) {
  Region at;
  std::size_t dots = 0;
  char quote = 0;
  bool comment = false;
  for (const char c : text) {
    if (c == '\n') {
      at = {.line = at.line + 1, .column = 0, .length = 1};
      dots = 0;
      quote = 0;
      comment = false;
    }
    ++at.column;
    if (comment) continue;
    if (quote != 0) {
      if (c == quote) quote = 0;
    } else if (c == '"' || c == '\'') {
      quote = c;
    } else if (c == '#') {
      comment = true;
    } else if (c == '.') {
      if (++dots >= kKeyPartsMax) return at;
    } else if (std::string_view("=,[]{}").find(c) != std::string_view::npos) {
      dots = 0;
    }
  }
  return std::nullopt;
}

// Each is found by reading everything anew.
constexpr int kUnquotedMax = 20;

}  // namespace

std::optional<toml::table> parse_toml(std::string_view source, Faults& faults) {
  if (const auto place = too_deep_key(source)) {
    faults.add(*place, fmt::format("a key of more than {} parts", kKeyPartsMax));
    return std::nullopt;
  }
  std::string text(source);
  for (int unquoted = 0;; ++unquoted) {
    try {
      return toml::parse(text);
    } catch (const toml::parse_error& error) {
      const auto region = region_of(error.source());
      if (const auto word = unquoted_word(text, region.line); word && unquoted < kUnquotedMax) {
        const auto value = text.substr(word->first, word->length);
        faults.add(region, fmt::format("text needs quotes: \"{}\"", value));
        text.replace(word->first, word->length, fmt::format("\"{}\"", value));
        continue;  // so that the other faults are found as well
      }
      faults.add(region,
                 fmt::format("{}; other faults show once this is mended", error.description()));
    } catch (const std::exception& error) {
      faults.add({}, error.what());
    }
    return std::nullopt;
  }
}

Region region_of(const toml::source_region& source) {
  Region region{.line = std::max<std::size_t>(source.begin.line, 1),
                .column = std::max<std::size_t>(source.begin.column, 1),
                .length = 1};
  if (source.end.line == source.begin.line && source.end.column > source.begin.column)
    region.length = source.end.column - source.begin.column;
  return region;
}

Region region_of(const toml::node& node) { return region_of(node.source()); }
Region region_of(const toml::key& key) { return region_of(key.source()); }

std::string_view kind_of(const toml::node& node) {
  switch (node.type()) {
    case toml::node_type::table:
      return "a table";
    case toml::node_type::array:
      return "a list";
    case toml::node_type::string:
      return "text";
    case toml::node_type::integer:
      return "a whole number";
    case toml::node_type::floating_point:
      return "a number with a fraction";
    case toml::node_type::boolean:
      return "true or false";
    case toml::node_type::date:
    case toml::node_type::time:
    case toml::node_type::date_time:
      return "a date or time";
    case toml::node_type::none:
      break;
  }
  return "nothing";
}

std::string unknown_name(std::string_view what, std::string_view written,
                         std::span<const std::string_view> allowed) {
  if (const auto near = nearest_name(written, allowed))
    return fmt::format("{} \"{}\"; did you mean \"{}\"?", what, written, *near);
  return fmt::format("{} \"{}\"; there are {}", what, written, fmt::join(allowed, ", "));
}

TableReader::TableReader(const toml::table& table, std::string name, Faults& faults)
    : table_(table), name_(std::move(name)), faults_(faults) {}

const toml::node* TableReader::find(std::string_view key) const { return table_.get(key); }

const toml::node* TableReader::require(std::string_view key, std::string_view meaning) const {
  const auto* node = find(key);
  if (node == nullptr) faults_.add(region(), fmt::format("{} needs {}: {}", name_, key, meaning));
  return node;
}

std::optional<std::string> TableReader::text(std::string_view key, std::string_view meaning) const {
  const auto* node = require(key, meaning);
  if (node == nullptr) return std::nullopt;
  const auto* value = node->as_string();
  if (value != nullptr && !value->get().empty()) return value->get();
  fault(key, fmt::format("{} must be text ({}), not {}", key, meaning,
                         value != nullptr ? "empty" : kind_of(*node)));
  return std::nullopt;
}

std::optional<std::int64_t> TableReader::whole_number(std::string_view key,
                                                      std::string_view meaning, std::int64_t min,
                                                      std::int64_t max) const {
  const auto* node = require(key, meaning);
  if (node == nullptr) return std::nullopt;
  const auto* value = node->as_integer();
  if (value != nullptr && value->get() >= min && value->get() <= max) return value->get();
  fault(key, fmt::format("{} must be a whole number from {} to {} ({})", key, min, max, meaning));
  return std::nullopt;
}

std::optional<bool> TableReader::flag_or(std::string_view key, bool otherwise) const {
  const auto* node = find(key);
  if (node == nullptr) return otherwise;
  if (const auto* value = node->as_boolean()) return value->get();
  fault(key, fmt::format("{} must be true or false, not {}", key, kind_of(*node)));
  return std::nullopt;
}

void TableReader::refuse_unknown_keys(std::span<const std::string_view> known) const {
  for (const auto& [key, node] : table_)
    if (std::find(known.begin(), known.end(), key.str()) == known.end())
      faults_.add(region_of(key), unknown_name(fmt::format("{} has no", name_), key.str(), known));
}

Region TableReader::region(std::string_view key) const {
  const auto* node = find(key);
  return node != nullptr ? region_of(*node) : region();
}

void TableReader::fault(std::string_view key, std::string message) const {
  faults_.add(region(key), std::move(message));
}

}  // namespace isthmus::launcher
