// What the site file and the roster share in reading TOML: parsing without exceptions, places,
// and the faults that every table can have. The only header that includes TOML++.
#pragma once

#include <toml++/toml.h>

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "launcher/fault.h"

namespace isthmus::launcher {

// Nothing when the text is no TOML; then `faults` has the reason. TOML++ stops at its first fault.
// Text without quotes is a fault as well, but is read as text, so that the others are found.
std::optional<toml::table> parse_toml(std::string_view text, Faults& faults);

// The one line a region begins on.
Region region_of(const toml::source_region& source);
Region region_of(const toml::node& node);
Region region_of(const toml::key& key);

// "text", "a whole number", "a list": what a value is, for a fault that says what it should be.
std::string_view kind_of(const toml::node& node);

// `"rate" is unknown; did you mean "rate_limit"?`, or the list of names when none is near.
std::string unknown_name(std::string_view what, std::string_view written,
                         std::span<const std::string_view> allowed);

// One table whose keys are known. Each accessor adds a fault when a value is missing or of another
// kind, and then gives nothing.
class TableReader {
 public:
  // `name` as the user knows it: "[[site]]".
  TableReader(const toml::table& table, std::string name, Faults& faults);

  const toml::node* find(std::string_view key) const;
  // A missing value is a fault where the table begins.
  std::optional<std::string> text(std::string_view key, std::string_view meaning) const;
  std::optional<std::int64_t> whole_number(std::string_view key, std::string_view meaning,
                                           std::int64_t min, std::int64_t max) const;
  std::optional<bool> flag_or(std::string_view key, bool otherwise) const;

  void refuse_unknown_keys(std::span<const std::string_view> known) const;
  void fault(std::string_view key, std::string message) const;  // at the key's value
  Region region() const { return region_of(table_); }
  Region region(std::string_view key) const;

 private:
  const toml::node* require(std::string_view key, std::string_view meaning) const;

  const toml::table& table_;
  std::string name_;
  Faults& faults_;
};

}  // namespace isthmus::launcher
