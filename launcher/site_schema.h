// The table of all keys of a site file: what a key is called, what it means, what it may hold, and
// which field it fills. The reader, the defaults and what is written for people
// (launcher/site_document.h) all come from it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "launcher/site_file.h"

namespace isthmus::launcher {

enum class ValueKind : std::uint8_t {
  flag,
  whole_number,
  number,
  text,
  name,      // of a site or data set: letters, digits, '.', '_', '-'
  key,       // 64 hexadecimal digits, or a path
  path,      // made relative to the file's folder
  choice,    // one of `choices`
  size,      // "64 MiB"
  rate,      // "20 Mbit/s"
  duration,  // "60 s"
  address,   // "host:port"
  ranges,    // "0-3,8"
  texts,     // a list of texts
  train_texts,
  held_out_texts,
  rate_windows,
  rate_factors,
};

// The field a key fills.
struct ChoiceField {
  std::function<std::size_t(const SiteFile&)> get;  // index in `choices`
  std::function<void(SiteFile&, std::size_t)> set;
};
template <class T>
using FieldOf = std::function<T&(SiteFile&)>;
using SiteField =
    std::variant<FieldOf<bool>, FieldOf<int>, FieldOf<std::int64_t>, FieldOf<double>,
                 FieldOf<std::string>, FieldOf<std::vector<int>>, FieldOf<std::vector<std::string>>,
                 FieldOf<std::vector<TrainText>>, FieldOf<std::vector<runtime::HeldOutText>>,
                 FieldOf<std::vector<RateWindow>>, FieldOf<std::vector<runtime::RateFactor>>,
                 ChoiceField>;

struct SiteKey {
  std::string_view section = {};
  std::string_view name = {};
  ValueKind kind = ValueKind::text;
  SiteField field = {};
  double min = 0, max = 0;  // of whole numbers, numbers, sizes, rates (of windows), durations
  bool above_min = false;   // min itself is refused
  std::vector<std::string_view> choices = {};
  std::string_view unit = {};     // "tokens"; "" when the kind says it
  std::string_view meaning = {};  // sentences, without a unit and without the default
  bool required = false;
  std::string_view absent = {};   // what leaving it out means, where that is no value
  std::string_view example = {};  // TOML; what `init` writes, "": the default, as a comment
  bool shared = false;            // must be equal at all sites: part of the fingerprint

  std::string full_name() const;  // "sync.codec"
  std::string allowed() const;    // "1 to 64 sequences", "\"average\" or \"nesterov\""
  std::string value_text(const SiteFile& file) const;  // TOML
  std::string default_text() const;                    // TOML, or "" when there is none
};

struct SiteSection {
  std::string_view name;
  std::string_view meaning;
};

std::span<const SiteSection> site_sections();
std::span<const SiteKey> site_keys();  // in the order of the document

// "0-3,8" → 0 1 2 3 8: ascending and unique; nothing when it is written otherwise.
std::optional<std::vector<int>> parse_ranges(std::string_view text);

struct HostPort {
  std::string host;  // without the brackets of an IPv6 address
  std::uint16_t port = 0;
};
// "host:port", "[::1]:7700", "*:7700" (all interfaces).
std::optional<HostPort> parse_address(std::string_view text);
// Whether two sockets of one machine could be in each other's way, were their ports equal. Of names
// nobody knows: then they could.
bool same_host(const HostPort& a, const HostPort& b);

}  // namespace isthmus::launcher
