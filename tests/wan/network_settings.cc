#include "tests/wan/network_settings.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <optional>
#include <set>
#include <span>
#include <string>

#include "base/assert.h"

namespace isthmus::wan {

namespace {

constexpr std::string_view kSpaces = " \t\r";

Error bad(std::string sentence) { return Error{ErrorCode::invalid_argument, std::move(sentence)}; }

std::vector<std::string_view> words_of(std::string_view line) {
  std::vector<std::string_view> words;
  for (;;) {
    const auto begin = line.find_first_not_of(kSpaces);
    if (begin == std::string_view::npos) return words;
    line.remove_prefix(begin);
    const auto word = line.substr(0, line.find_first_of(kSpaces));
    words.push_back(word);
    line.remove_prefix(word.size());
  }
}

std::string lower_case(std::string_view text) {
  std::string lower(text);
  for (char& c : lower)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return lower;
}

struct Unit {
  std::string_view name;
  double factor;
};

// A kind of value: its units, its bounds (in the base unit), and how one writes it.
struct Quantity {
  std::span<const Unit> units;
  double least;
  double most;
  std::string_view example;
  bool needs_unit = true;  // except for 0
};

constexpr std::array kTimeUnits = {Unit{"s", 1e9}, Unit{"ms", 1e6}, Unit{"us", 1e3}};
constexpr std::array kRateUnits = {Unit{"bit", 1}, Unit{"kbit", 1e3}, Unit{"mbit", 1e6},
                                   Unit{"gbit", 1e9}};
constexpr std::array kSizeUnits = {Unit{"b", 1}, Unit{"kb", 1e3}, Unit{"mb", 1e6},
                                   Unit{"kib", 1024}, Unit{"mib", 1024 * 1024}};
constexpr std::array kShareUnits = {Unit{"%", 0.01}};

constexpr Quantity kTime{kTimeUnits, 0, 3600e9, "50ms (s, ms, us; at most an hour)"};
constexpr Quantity kRate{kRateUnits, 0, 1e12,
                         "100mbit (bit, kbit, mbit, gbit a second; 0 is no limit)"};
constexpr Quantity kSize{kSizeUnits, 0, 1e12, "4mb (b, kb, mb, kib, mib)"};
constexpr Quantity kShare{kShareUnits, 0, 1, "0.1% or 0.001, from 0 to 100%", false};
constexpr Quantity kRunLength{{}, 1, 1e9, "20, a number of packets from 1", false};

Result<double> parse_value(const Quantity& quantity, std::string_view name, std::string_view text) {
  const auto refuse = [&](std::string_view why) {
    return bad(
        fmt::format("{}={}: {}; write it like {}={}", name, text, why, name, quantity.example));
  };
  double number = 0;
  const auto [end, fault] = std::from_chars(text.begin(), text.end(), number);
  if (fault != std::errc{} || !std::isfinite(number)) return refuse("no number begins it");
  const std::string_view unit_name(end, static_cast<std::size_t>(text.end() - end));
  const auto unit = std::find_if(quantity.units.begin(), quantity.units.end(),
                                 [&](const Unit& u) { return u.name == lower_case(unit_name); });
  if (!unit_name.empty() && unit == quantity.units.end())
    return refuse(fmt::format("\"{}\" is no unit of it", unit_name));
  if (unit_name.empty() && quantity.needs_unit && number != 0) return refuse("the unit is missing");
  const double value = unit_name.empty() ? number : number * unit->factor;
  if (value < quantity.least || value > quantity.most) return refuse("it is out of bounds");
  return value;
}

struct ValueSetting {
  std::string_view name;
  const Quantity& quantity;
  void (*set)(PathSettings&, double);
  bool access_line = false;  // an access line has it too
};
constexpr std::array<ValueSetting, 8> kValueSettings = {{
    {"delay", kTime, [](PathSettings& p, double v) { p.delay = std::llround(v); }},
    {"jitter", kTime, [](PathSettings& p, double v) { p.jitter = std::llround(v); }},
    {"rate", kRate, [](PathSettings& p, double v) { p.bits_per_second = v; }, true},
    {"queue", kSize, [](PathSettings& p, double v) { p.queue_bytes = v; }, true},
    {"loss", kShare, [](PathSettings& p, double v) { p.loss = v; }},
    {"burst", kRunLength, [](PathSettings& p, double v) { p.burst = v; }},
    {"dup", kShare, [](PathSettings& p, double v) { p.duplicate = v; }},
    {"corrupt", kShare, [](PathSettings& p, double v) { p.corrupt = v; }},
}};

struct WordSetting {
  std::string_view name;
  void (*set)(PathSettings&);
  bool access_line = false;
};
constexpr std::array<WordSetting, 4> kWordSettings = {{
    {"reorder", [](PathSettings& p) { p.reorder = true; }},
    {"in_order", [](PathSettings& p) { p.reorder = false; }},
    {"down", [](PathSettings& p) { p.down = true; }, true},
    {"up", [](PathSettings& p) { p.down = false; }, true},
}};

template <class Setting, std::size_t count>
const Setting* find(const std::array<Setting, count>& settings, std::string_view name) {
  const auto found = std::find_if(settings.begin(), settings.end(),
                                  [&](const Setting& s) { return s.name == name; });
  return found == settings.end() ? nullptr : &*found;
}

Error unknown_setting(std::string_view word) {
  std::vector<std::string> known;
  for (const auto& setting : kValueSettings) known.push_back(fmt::format("{}=", setting.name));
  for (const auto& setting : kWordSettings) known.emplace_back(setting.name);
  return bad(fmt::format("\"{}\" is no setting; there are {}", word, fmt::join(known, ", ")));
}

Error not_of_access_lines(std::string_view name) {
  return bad(
      fmt::format("an access line has no {}, only rate=, queue=, down and up; "
                  "set it on a path, a link or the default",
                  name));
}

// What a line speaks of.
struct Target {
  std::vector<PathSettings*> settings;
  bool access_line = false;
};

Result<void> apply_value(const Target& target, std::string_view name, std::string_view text) {
  const auto* setting = find(kValueSettings, name);
  if (setting == nullptr && find(kWordSettings, name) != nullptr)
    return bad(fmt::format("{} takes no value; write {}", name, name));
  if (setting == nullptr) return unknown_setting(name);
  if (target.access_line && !setting->access_line) return not_of_access_lines(name);
  ISTHMUS_TRY(const double value, parse_value(setting->quantity, name, text));
  for (auto* settings : target.settings) setting->set(*settings, value);
  return {};
}

Result<void> apply_word(const Target& target, std::string_view word) {
  const auto* setting = find(kWordSettings, word);
  if (const auto* value = find(kValueSettings, word); value != nullptr)
    return bad(
        fmt::format("{} needs a value; write it like {}={}", word, word, value->quantity.example));
  if (setting == nullptr) return unknown_setting(word);
  if (target.access_line && !setting->access_line) return not_of_access_lines(word);
  for (auto* settings : target.settings) setting->set(*settings);
  return {};
}

// Between two runs of losses at least one packet passes, so runs of a length allow only so much
// loss.
Result<void> check_loss(const PathSettings& settings) {
  if (settings.burst <= 1 || settings.loss >= 1) return {};
  constexpr double kRounding = 1e-9;
  const double burst_least = settings.loss / (1 - settings.loss) - kRounding;
  if (settings.burst >= burst_least) return {};
  return bad(fmt::format("a loss of {:g}% needs burst=1 or runs of at least burst={:g}",
                         settings.loss * 100, std::ceil(burst_least)));
}

Result<std::size_t> parse_site(const NetworkSettings& network,
                               std::span<const std::string_view> words, std::size_t at) {
  if (at >= words.size())
    return bad(
        fmt::format("{} needs the number of a site, from 0 to {}", words[0], network.sites - 1));
  std::size_t site = 0;
  const auto [end, fault] = std::from_chars(words[at].begin(), words[at].end(), site);
  if (fault != std::errc{} || end != words[at].end() || site >= network.sites)
    return bad(
        fmt::format("there is no site \"{}\"; sites are 0 to {}", words[at], network.sites - 1));
  return site;
}

Result<void> apply_seed(NetworkSettings& network, std::span<const std::string_view> words) {
  constexpr std::string_view kExample = "write it like seed 42";
  if (words.size() != 2) return bad(fmt::format("seed takes one number; {}", kExample));
  const auto [end, fault] = std::from_chars(words[1].begin(), words[1].end(), network.seed);
  if (fault != std::errc{} || end != words[1].end())
    return bad(fmt::format("\"{}\" is no whole number below 2^64; {}", words[1], kExample));
  return {};
}

struct TargetAndRest {
  Target target;
  std::span<const std::string_view> rest;  // the settings
};

Result<TargetAndRest> target_of_pair(NetworkSettings& network,
                                     std::span<const std::string_view> words) {
  ISTHMUS_TRY(const auto from, parse_site(network, words, 1));
  ISTHMUS_TRY(const auto to, parse_site(network, words, 2));
  if (from == to) return bad("a site has no path to itself; name two sites");
  Target target{{&network.path(from, to)}};
  if (words[0] == "link") target.settings.push_back(&network.path(to, from));
  return TargetAndRest{std::move(target), words.subspan(3)};
}

Result<TargetAndRest> target_of(NetworkSettings& network, std::span<const std::string_view> words) {
  const auto verb = words[0];
  if (verb == "link" || verb == "path") return target_of_pair(network, words);
  if (verb == "default") {
    Target target;
    for (auto& path : network.paths) target.settings.push_back(&path);
    return TargetAndRest{std::move(target), words.subspan(1)};
  }
  if (verb == "uplink" || verb == "downlink") {
    ISTHMUS_TRY(const auto site, parse_site(network, words, 1));
    auto& line = (verb == "uplink" ? network.uplinks : network.downlinks)[site];
    return TargetAndRest{Target{{&line}, true}, words.subspan(2)};
  }
  return bad(fmt::format(
      "\"{}\" begins no line; one begins with seed, default, link, path, uplink or downlink",
      verb));
}

// What a setting is about: a word and its contrary are about the same.
std::string_view subject_of(std::string_view name) {
  return name == "up" ? "down" : name == "in_order" ? "reorder" : name;
}

Result<void> apply_line(NetworkSettings& network, std::span<const std::string_view> words) {
  if (words[0] == "seed") return apply_seed(network, words);
  ISTHMUS_TRY(const auto found, target_of(network, words));
  if (found.rest.empty()) return bad("it sets nothing; add a setting, such as delay=50ms");
  std::set<std::string_view> said;
  for (const auto word : found.rest) {
    const auto equals = word.find('=');
    if (!said.insert(subject_of(word.substr(0, equals))).second)
      return bad(fmt::format("\"{}\" is said twice in one line, or its contrary; once is enough",
                             word.substr(0, equals)));
    ISTHMUS_CHECK(equals == std::string_view::npos
                      ? apply_word(found.target, word)
                      : apply_value(found.target, word.substr(0, equals), word.substr(equals + 1)));
  }
  for (const auto* settings : found.target.settings) ISTHMUS_CHECK(check_loss(*settings));
  return {};
}

}  // namespace

Result<NetworkSettings> parse_network_settings(std::string_view text, std::size_t sites) {
  ISTHMUS_ASSERT(sites > 0);
  NetworkSettings network(sites);
  for (std::size_t number = 1; !text.empty(); ++number) {
    const auto line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    const auto words = words_of(line.substr(0, line.find('#')));
    if (words.empty()) continue;
    if (auto applied = apply_line(network, words); !applied)
      return Error{ErrorCode::invalid_argument, fmt::format("line {}, \"{}\"", number, line),
                   std::move(applied).error()};
  }
  return network;
}

}  // namespace isthmus::wan
