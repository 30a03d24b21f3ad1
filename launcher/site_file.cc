#include "launcher/site_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <set>
#include <utility>

#include "base/byte_stream.h"
#include "base/disk.h"
#include "launcher/nearest_name.h"
#include "launcher/site_schema.h"
#include "launcher/toml_reader.h"
#include "launcher/units.h"
#include "security/keys.h"
#include "security/roster.h"

namespace isthmus::launcher {
namespace {

// Reads one text into the fields of a SiteFile, by the table.
class SiteReader {
 public:
  explicit SiteReader(SiteText& text)
      : text_(text), folder_(std::filesystem::path(text.path).parent_path()) {}

  void run(std::span<const std::string> overrides) {
    auto table = parse_toml(text_.source, text_.faults);
    if (!table) return;
    if (const auto* epoch = table->get("epoch");
        epoch != nullptr && table->get_as<toml::array>("site"))
      return text_.faults.add(region_of(*epoch),
                              "this is a roster; a site file names it as site.roster");
    text_.is_toml = true;
    for (const auto& one : overrides) override_key(*table, one);
    refuse_unknown(*table);
    for (const auto& [section, written] : meant_sections(*table)) {
      const auto& values = *table->get_as<toml::table>(written);
      text_.regions.emplace(section, place(values));
      const auto keys = meant_keys(section, values);
      for (const auto& key : site_keys())
        if (const auto name = keys.find(key.name); key.section == section && name != keys.end())
          read(key, *values.get(name->second), overridden(written, name->second));
    }
    for (const auto& key : site_keys())
      if (key.required && !text_.written(key.full_name()))
        text_.faults.add(text_.region(key.full_name()),
                         fmt::format("[{}] needs {}: {} Allowed: {}", key.section, key.name,
                                     key.meaning, key.allowed()));
  }

 private:
  // Which is written in quotes in a file.
  static bool takes_text(std::string_view section, std::string_view name) {
    const auto keys = site_keys();
    const auto key = std::ranges::find_if(
        keys, [&](const SiteKey& each) { return each.section == section && each.name == name; });
    return key != keys.end() && (std::holds_alternative<FieldOf<std::string>>(key->field) ||
                                 std::holds_alternative<FieldOf<std::vector<int>>>(key->field) ||
                                 std::holds_alternative<ChoiceField>(key->field));
  }

  // "section.key=value"; a value that is no TOML is taken as text, and so is "1" where text stands.
  void override_key(toml::table& table, const std::string& written) {
    const auto equals = written.find('=');
    const auto dot = written.find('.');
    if (equals == std::string::npos || dot == std::string::npos || dot > equals) {
      text_.faults.add(kNotInFile, fmt::format("\"{}\": write it as section.key=value", written));
      return;
    }
    const auto section = trimmed(written.substr(0, dot));
    const auto key = trimmed(written.substr(dot + 1, equals - dot - 1));
    const auto value = trimmed(written.substr(equals + 1));
    Faults no_toml;
    auto parsed = parse_toml("value = " + value, no_toml);
    if (!no_toml.empty() || !parsed || parsed->size() != 1 ||
        (takes_text(section, key) && !parsed->get("value")->is_string())) {
      parsed = toml::table{};
      parsed->insert("value", value);
    }
    auto* values = table.get_as<toml::table>(section);
    if (values == nullptr) {
      if (table.contains(section)) return;  // no table: refused with the rest of the file
      values = table.insert(section, toml::table{}).first->second.as_table();
      overridden_.insert(section);
    }
    parsed->get("value")->visit(
        [&](auto& node) { values->insert_or_assign(key, std::move(node)); });
    overridden_.insert(section + "." + key);
  }

  static std::string trimmed(const std::string& text) {
    const auto first = text.find_first_not_of(" \t");
    if (first == std::string::npos) return {};
    return text.substr(first, text.find_last_not_of(" \t") - first + 1);
  }

  bool overridden(std::string_view section, std::string_view key) const {
    return overridden_.contains(fmt::format("{}.{}", section, key));
  }

  Region place(const toml::node& node) const { return in_override_ ? kNotInFile : region_of(node); }

  // Known names → those written for them. A misspelt one stands for the nearest that is not there
  // itself: so what it holds is checked too, and is not taken as left out.
  using Meant = std::map<std::string_view, std::string_view>;
  template <class Counts>
  static Meant meant(const toml::table& table, std::span<const std::string_view> known,
                     const Counts& counts) {
    Meant names;
    for (const auto name : known)
      if (const auto found = table.find(name); found != table.end() && counts(*found))
        names.emplace(name, found->first.str());
    for (const auto& entry : table) {
      const auto written = entry.first.str();
      if (std::find(known.begin(), known.end(), written) != known.end() || !counts(entry)) continue;
      if (const auto near = nearest_name(written, known); near && !table.contains(*near))
        names.emplace(*near, written);
    }
    return names;
  }

  static Meant meant_sections(const toml::table& table) {
    return meant(table, section_names(), [](const auto& entry) { return entry.second.is_table(); });
  }
  static Meant meant_keys(std::string_view section, const toml::table& values) {
    const auto known = key_names(section);
    return meant(values, known, [&](const auto& entry) {
      const auto name = entry.first.str();
      return std::find(known.begin(), known.end(), name) != known.end() || homes(name).empty();
    });
  }

  static std::vector<std::string_view> section_names() {
    std::vector<std::string_view> names;
    for (const auto& section : site_sections()) names.push_back(section.name);
    return names;
  }
  static std::vector<std::string_view> key_names(std::string_view section) {
    std::vector<std::string_view> names;
    for (const auto& key : site_keys())
      if (key.section == section) names.push_back(key.name);
    return names;
  }

  void refuse_unknown(const toml::table& table) {
    const auto sections = section_names();
    for (const auto& [section, written] : meant_sections(table))
      refuse_unknown_keys(section, written, *table.get_as<toml::table>(written));
    for (const auto& [key, node] : table) {
      const auto region = overridden_.contains(key.str()) ? kNotInFile : region_of(key);
      const bool known = std::find(sections.begin(), sections.end(), key.str()) != sections.end();
      if (known && node.is_table()) continue;
      if (known) {
        text_.faults.add(
            region, fmt::format("{} must be a section: write [{}] on a line of its own", key.str(),
                                key.str()));
      } else if (const auto home = homes(key.str()); !node.is_table() && !home.empty()) {
        text_.faults.add(region, fmt::format("\"{}\" stands outside any section; it belongs in {}",
                                             key.str(), home));
      } else {
        text_.faults.add(region, unknown_name("there is no section", key.str(), sections));
      }
    }
  }

  // `written`: how the section is spelt.
  void refuse_unknown_keys(std::string_view section, std::string_view written,
                           const toml::table& values) {
    const auto known = key_names(section);
    for (const auto& [key, node] : values) {
      if (std::find(known.begin(), known.end(), key.str()) != known.end()) continue;
      const auto region = overridden(written, key.str()) ? kNotInFile : region_of(key);
      if (const auto home = homes(key.str()); !home.empty())
        text_.faults.add(
            region, fmt::format("[{}] has no \"{}\"; it belongs in {}", section, key.str(), home));
      else
        text_.faults.add(region,
                         unknown_name(fmt::format("[{}] has no", section), key.str(), known));
    }
  }

  // "[sync]", or "[model] or [train]": the sections that have such a key.
  static std::string homes(std::string_view name) {
    std::string text;
    for (const auto& key : site_keys())
      if (key.name == name) text += fmt::format("{}[{}]", text.empty() ? "" : " or ", key.section);
    return text;
  }

  void read(const SiteKey& key, const toml::node& node, bool in_override) {
    in_override_ = in_override;
    text_.regions.emplace(key.full_name(), place(node));
    std::visit([&](const auto& field) { read_into(key, node, field); }, key.field);
    in_override_ = false;
  }

  void fault(const SiteKey& key, const toml::node& node, std::string_view what) {
    text_.faults.add(place(node), fmt::format("{} {}", key.full_name(), what));
  }
  void refuse(const SiteKey& key, const toml::node& node) {
    fault(key, node, fmt::format("must be {}, not {}", key.allowed(), shown(node)));
  }

  // The value itself when it is short, else its kind.
  static std::string shown(const toml::node& node) {
    if (const auto* value = node.as_integer()) return fmt::format("{}", value->get());
    if (const auto* value = node.as_floating_point()) return fmt::format("{}", value->get());
    if (const auto* value = node.as_boolean()) return value->get() ? "true" : "false";
    if (const auto* value = node.as_string()) {
      constexpr std::size_t kShown = 40;
      const std::string& text = value->get();
      auto end = std::min(text.size(), kShown);
      while (end > 0 && end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80)
        --end;  // between characters
      return fmt::format("\"{}\"", text.substr(0, end) + (end < text.size() ? "…" : ""));
    }
    return std::string(kind_of(node));
  }

  static bool in_range(const SiteKey& key, double value) {
    return value <= key.max && (key.above_min ? value > key.min : value >= key.min);
  }

  void read_into(const SiteKey& key, const toml::node& node, const FieldOf<bool>& field) {
    if (const auto* value = node.as_boolean())
      field(text_.file) = value->get();
    else
      refuse(key, node);
  }

  template <class Number>
  void read_whole(const SiteKey& key, const toml::node& node, const FieldOf<Number>& field) {
    const auto* value = node.as_integer();
    if (value != nullptr && in_range(key, static_cast<double>(value->get())))
      field(text_.file) = static_cast<Number>(value->get());
    else if (node.is_floating_point())
      fault(key, node,
            fmt::format("must be a whole number, {}, written without a fraction or an exponent",
                        key.allowed()));
    else
      refuse(key, node);
  }

  void read_into(const SiteKey& key, const toml::node& node, const FieldOf<int>& field) {
    read_whole(key, node, field);
  }

  void read_into(const SiteKey& key, const toml::node& node, const FieldOf<std::int64_t>& field) {
    if (key.kind == ValueKind::whole_number) return read_whole(key, node, field);
    const auto* value = node.as_string();
    if (value == nullptr) {
      const auto* number = node.as_integer();
      if (number != nullptr)
        return fault(key, node,
                     fmt::format("needs a unit: {}, not {}", key.allowed(), number->get()));
      return refuse(key, node);
    }
    auto parsed = key.kind == ValueKind::size   ? parse_bytes(value->get())
                  : key.kind == ValueKind::rate ? parse_rate(value->get())
                                                : parse_duration(value->get());
    if (!parsed) return fault(key, node, fmt::format("is wrong: {}", parsed.error().text()));
    const bool unlimited = key.kind == ValueKind::rate && *parsed == 0;
    if (!unlimited && !in_range(key, static_cast<double>(*parsed))) return refuse(key, node);
    field(text_.file) = *parsed;
  }

  void read_into(const SiteKey& key, const toml::node& node, const FieldOf<double>& field) {
    const auto value = node.value<double>();
    if (node.is_number() && value && std::isfinite(*value) && in_range(key, *value))
      field(text_.file) = *value;
    else
      refuse(key, node);
  }

  void read_into(const SiteKey& key, const toml::node& node, const FieldOf<std::string>& field) {
    const auto* value = node.as_string();
    if (value == nullptr) return refuse(key, node);
    if (auto text = accepted_text(key, node, value->get())) field(text_.file) = std::move(*text);
  }

  std::optional<std::string> accepted_text(const SiteKey& key, const toml::node& node,
                                           const std::string& written) {
    bool fits = !written.empty() && written.find('\0') == std::string::npos;
    if (key.kind == ValueKind::name) fits = fits && security::is_site_name(written);
    if (key.kind == ValueKind::address) fits = fits && parse_address(written).has_value();
    if (!fits) {
      if (written.empty() && !key.absent.empty())
        fault(key, node, fmt::format("is empty; leave it out instead (left out: {})", key.absent));
      else if (written.empty() && !key.default_text().empty())
        fault(key, node, fmt::format("is empty; leave it out for {}", key.default_text()));
      else
        refuse(key, node);
      return std::nullopt;
    }
    const bool is_path = key.kind == ValueKind::path ||
                         (key.kind == ValueKind::key &&
                          !security::parse_hex<security::PublicKey>(written).has_value());
    return is_path ? joined(written) : written;
  }

  std::string joined(const std::string& path) const {
    return (folder_ / path).lexically_normal().string();
  }

  void read_into(const SiteKey& key, const toml::node& node,
                 const FieldOf<std::vector<int>>& field) {
    const auto* value = node.as_string();
    const auto numbers = value != nullptr ? parse_ranges(value->get()) : std::nullopt;
    if (!numbers) return refuse(key, node);
    field(text_.file) = *numbers;
  }

  void read_into(const SiteKey& key, const toml::node& node,
                 const FieldOf<std::vector<std::string>>& field) {
    const auto* list = node.as_array();
    if (list == nullptr || list->empty()) return refuse(key, node);
    std::vector<std::string> texts;
    for (const auto& entry : *list) {
      const auto* text = entry.as_string();
      if (text == nullptr || text->get().empty() || text->get().find('\0') != std::string::npos)
        return refuse(key, entry);
      texts.push_back(text->get());
    }
    field(text_.file) = std::move(texts);
  }

  void read_into(const SiteKey& key, const toml::node& node, const ChoiceField& field) {
    const auto* value = node.as_string();
    if (value == nullptr) return refuse(key, node);
    const auto found = std::find(key.choices.begin(), key.choices.end(), value->get());
    if (found != key.choices.end()) {
      field.set(text_.file, static_cast<std::size_t>(found - key.choices.begin()));
    } else if (const auto near = nearest_name(value->get(), key.choices)) {
      fault(key, node, fmt::format("must be {}; did you mean \"{}\"?", key.allowed(), *near));
    } else {
      refuse(key, node);
    }
  }

  // Each table of the list `node`, through a reader that has already refused unknown keys.
  template <class Each>
  void for_each_table(const SiteKey& key, const toml::node& node,
                      std::span<const std::string_view> known, const Each& each) {
    const auto* list = node.as_array();
    if (list == nullptr) return refuse(key, node);
    if (list->empty())
      return fault(key, node, fmt::format("must be {}, with at least one entry", key.allowed()));
    Faults found;
    for (const auto& entry : *list) {
      const auto* table = entry.as_table();
      if (table == nullptr) {
        refuse(key, entry);
        continue;
      }
      const TableReader reader(*table, key.full_name(), found);
      reader.refuse_unknown_keys(known);
      each(reader);
    }
    for (const auto& [region, message] : found.sorted())
      text_.faults.add(in_override_ ? kNotInFile : region, message);
  }

  // Where the path of an entry stands, for faults of the file itself.
  void remember(const SiteKey& key, std::size_t index, const TableReader& entry) {
    text_.regions.emplace(fmt::format("{}[{}]", key.full_name(), index),
                          in_override_ ? kNotInFile : entry.region("path"));
  }

  void read_into(const SiteKey& key, const toml::node& node,
                 const FieldOf<std::vector<TrainText>>& field) {
    static constexpr std::array<std::string_view, 2> kKnown = {"path", "weight"};
    for_each_table(key, node, kKnown, [&](const TableReader& entry) {
      TrainText text;
      const auto path = entry.text("path", "a text file");
      if (const auto* weight = entry.find("weight")) {
        text.weight = weight->value<double>().value_or(0);
        if (!weight->is_number() || !std::isfinite(text.weight) || text.weight <= 0)
          entry.fault("weight", fmt::format("{} weight must be a number above 0, not {}",
                                            key.full_name(), shown(*weight)));
      }
      if (!path) return;
      text.path = joined(*path);
      remember(key, field(text_.file).size(), entry);
      field(text_.file).push_back(std::move(text));
    });
  }

  // Nothing: there is none, or it is wrong; then there is a fault.
  static std::optional<int> read_time(const SiteKey& key, const TableReader& entry,
                                      std::string_view name) {
    const auto written = entry.text(name, "a time of the day in quotes, as \"08:00\"");
    const auto time = written ? parse_time_of_day(*written) : std::nullopt;
    if (written && !time) {
      const auto near = near_time_of_day(*written);
      entry.fault(name,
                  fmt::format("{} = \"{}\" of [[{}]] is no time of the day: hours and minutes with "
                              "two digits each, from \"00:00\" to \"24:00\", as \"08:00\"{}",
                              name, *written, key.full_name(),
                              near ? fmt::format("; did you mean \"{}\"?", *near) : ""));
    }
    return time;
  }

  std::optional<std::int64_t> read_window_rate(const SiteKey& key, const TableReader& entry,
                                               const std::string& written) {
    const auto rate = parse_rate(written);
    if (rate && (*rate == 0 || in_range(key, static_cast<double>(*rate)))) return *rate;
    entry.fault(
        "rate_limit",
        rate ? fmt::format("rate_limit of [[{}]] must be {} to {} or \"unlimited\", not \"{}\"",
                           key.full_name(), exact_rate(static_cast<std::int64_t>(key.min)),
                           exact_rate(static_cast<std::int64_t>(key.max)), written)
             : fmt::format("rate_limit of [[{}]] is wrong: {}", key.full_name(),
                           rate.error().text()));
    return std::nullopt;
  }

  void read_into(const SiteKey& key, const toml::node& node,
                 const FieldOf<std::vector<RateWindow>>& field) {
    static constexpr std::array<std::string_view, 3> kKnown = {"from", "to", "rate_limit"};
    auto& windows = field(text_.file);
    for_each_table(key, node, kKnown, [&](const TableReader& entry) {
      const auto from = read_time(key, entry, "from");
      const auto to = read_time(key, entry, "to");
      const auto written = entry.text("rate_limit", "the rate that holds then");
      const auto rate = written ? read_window_rate(key, entry, *written) : std::nullopt;
      if (from && *from == kMinutesPerDay)
        return entry.fault("from", fmt::format("from = \"24:00\" of [[{}]] is the end of the day: "
                                               "a window from midnight on has from = \"00:00\"",
                                               key.full_name()));
      if (from && to && *from == *to)
        return entry.fault(
            "from", fmt::format("a window of [[{0}]] from \"{1}\" to \"{1}\" is no time at all; "
                                "the whole day is from = \"00:00\", to = \"24:00\"",
                                key.full_name(), time_of_day(*from)));
      if (!from || !to) return;
      windows.push_back({*from, *to, rate.value_or(0)});  // a wrong one is a fault already
      const auto both = overlapping(windows);
      if (!both) return;
      const auto& other = windows[both->first];
      entry.fault("from",
                  fmt::format("[[{}]]: the window from \"{}\" to \"{}\" overlaps with the one from "
                              "\"{}\" to \"{}\"; at any time one holds at most",
                              key.full_name(), time_of_day(*from), time_of_day(*to),
                              time_of_day(other.from), time_of_day(other.to)));
      windows.pop_back();
    });
  }

  void read_into(const SiteKey& key, const toml::node& node,
                 const FieldOf<std::vector<runtime::HeldOutText>>& field) {
    static constexpr std::array<std::string_view, 2> kKnown = {"name", "path"};
    std::set<std::string> names;
    for_each_table(key, node, kKnown, [&](const TableReader& entry) {
      const auto name = entry.text("name", "what reports call it");
      const auto path = entry.text("path", "a text file");
      if (name && !security::is_site_name(*name))
        entry.fault(
            "name",
            fmt::format("{} name must be 1 to 64 letters (a-z, A-Z), digits, '.', '_' or '-'",
                        key.full_name()));
      if (name && !names.insert(*name).second)
        entry.fault("name", fmt::format("{} has the name \"{}\" twice", key.full_name(), *name));
      if (!name || !path) return;
      remember(key, field(text_.file).size(), entry);
      field(text_.file).push_back({*name, joined(*path)});
    });
  }

  void read_into(const SiteKey& key, const toml::node& node,
                 const FieldOf<std::vector<runtime::RateFactor>>& field) {
    static constexpr std::array<std::string_view, 2> kKnown = {"tensors", "factor"};
    for_each_table(key, node, kKnown, [&](const TableReader& entry) {
      const auto tensors = entry.text("tensors", "a name, or a pattern with `*` and `?`");
      const auto* factor = entry.find("factor");
      if (factor == nullptr || !factor->is_number())
        entry.fault("factor", fmt::format("{} factor must be a number above 0{}", key.full_name(),
                                          factor ? ", not " + shown(*factor) : ""));
      if (!tensors || factor == nullptr || !factor->is_number()) return;
      field(text_.file).push_back({*tensors, factor->value<double>().value_or(0)});
    });
  }

  SiteText& text_;
  std::filesystem::path folder_;
  std::set<std::string, std::less<>> overridden_;
  bool in_override_ = false;
};

}  // namespace

std::int64_t GatewayOptions::rate_limit_min() const {
  std::int64_t least = cover_the_day(windows) ? 0 : rate_limit;
  for (const auto& window : windows)
    if (window.rate_limit > 0 && (least == 0 || window.rate_limit < least))
      least = window.rate_limit;
  return least;
}

Region SiteText::region(std::string_view key) const {
  if (const auto found = regions.find(key); found != regions.end()) return found->second;
  const auto section = regions.find(key.substr(0, key.find('.')));
  return section != regions.end() ? section->second : Region{};
}

SiteText parse_site_text(std::string path, std::string source,
                         std::span<const std::string> overrides) {
  SiteText text{.path = std::move(path), .source = std::move(source)};
  SiteReader(text).run(overrides);
  auto& file = text.file;
  auto& config = file.model.config;
  if (config.kv_heads == 0) config.kv_heads = config.heads;
  const auto* family = runtime::find_family(config.family);
  if (config.token_types == 0 && family != nullptr) config.token_types = family->token_types;
  file.train.rate.steps = file.inner_steps_total();
  return text;
}

Result<SiteText> read_site_file(const std::string& path, std::span<const std::string> overrides) {
  auto bytes = read_file(*make_system_disk(), path, kSiteFileBytesMax);
  if (!bytes)
    return Error{ErrorCode::invalid_argument, fmt::format("cannot read the site file {}", path),
                 std::move(bytes).error()};
  return parse_site_text(path, std::string(text_of(*bytes)), overrides);
}

}  // namespace isthmus::launcher
