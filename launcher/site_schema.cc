#include "launcher/site_schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "launcher/units.h"

namespace isthmus::launcher {
namespace {

// A number as TOML writes it, without a needless exponent or fraction.
std::string plain_number(double value) {
  if (value == static_cast<double>(static_cast<std::int64_t>(value)) && std::abs(value) < 1e16)
    return fmt::format("{}", static_cast<std::int64_t>(value));
  return fmt::format("{}", value);
}

std::string toml_number(double value) {
  std::string text = plain_number(value);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

std::string in_quotes(std::string_view text) { return fmt::format("\"{}\"", text); }

std::string bound_text(ValueKind kind, double bound) {
  const auto whole = static_cast<std::int64_t>(bound);
  if (kind == ValueKind::size) return in_quotes(exact_bytes(whole));
  if (kind == ValueKind::rate) return in_quotes(exact_rate(whole));
  if (kind == ValueKind::duration) return in_quotes(exact_duration(whole));
  return plain_number(bound);
}

std::string choices_text(std::span<const std::string_view> choices) {
  std::string text;
  for (std::size_t i = 0; i < choices.size(); ++i) {
    if (i > 0) text += i + 1 == choices.size() ? " or " : ", ";
    text += in_quotes(choices[i]);
  }
  return text;
}

struct ValueText {
  const SiteKey& key;
  SiteFile& file;

  std::string operator()(const FieldOf<bool>& get) const { return get(file) ? "true" : "false"; }
  std::string operator()(const FieldOf<int>& get) const { return fmt::format("{}", get(file)); }
  std::string operator()(const FieldOf<double>& get) const { return toml_number(get(file)); }
  std::string operator()(const FieldOf<std::string>& get) const { return in_quotes(get(file)); }
  std::string operator()(const FieldOf<std::int64_t>& get) const {
    const std::int64_t value = get(file);
    if (key.kind == ValueKind::size) return in_quotes(exact_bytes(value));
    if (key.kind == ValueKind::rate) return in_quotes(exact_rate(value));
    if (key.kind == ValueKind::duration) return in_quotes(exact_duration(value));
    return fmt::format("{}", value);
  }
  std::string operator()(const ChoiceField& choice) const {
    return in_quotes(key.choices[choice.get(file)]);
  }
  std::string operator()(const FieldOf<std::vector<std::string>>& get) const {
    std::vector<std::string> quoted;
    for (const auto& text : get(file)) quoted.push_back(in_quotes(text));
    return fmt::format("[{}]", fmt::join(quoted, ", "));
  }
  template <class Other>
  std::string operator()(const Other&) const {
    return "[]";
  }
};

}  // namespace

std::string SiteKey::full_name() const { return fmt::format("{}.{}", section, name); }

std::string SiteKey::allowed() const {
  switch (kind) {
    case ValueKind::flag:
      return "true or false";
    case ValueKind::whole_number:
    case ValueKind::number: {
      if (min == max) return fmt::format("{} in this version", plain_number(min));
      const auto range = fmt::format("{}{} to {}", above_min ? "above " : "", plain_number(min),
                                     plain_number(max));
      return unit.empty() ? range : fmt::format("{} {}", range, unit);
    }
    case ValueKind::text:
      return "text";
    case ValueKind::name:
      return "1 to 64 letters (a-z, A-Z), digits, '.', '_' or '-'";
    case ValueKind::key:
      return "64 hexadecimal digits or a path";
    case ValueKind::path:
      return "a path";
    case ValueKind::choice:
      return choices_text(choices);
    case ValueKind::rate:
      return fmt::format("{} to {} or \"unlimited\"", bound_text(kind, min), bound_text(kind, max));
    case ValueKind::size:
    case ValueKind::duration:
      return fmt::format("{} to {}", bound_text(kind, min), bound_text(kind, max));
    case ValueKind::address:
      return "\"host:port\" with a port from 1 to 65534";
    case ValueKind::ranges:
      return "a list like \"0-3,8\"";
    case ValueKind::texts:
      return "a list of texts, as [\"a\", \"b\"]";
    case ValueKind::train_texts:
      return "a list of { path, weight }";
    case ValueKind::held_out_texts:
      return "a list of { name, path }";
    case ValueKind::rate_windows:
      return "a list of { from, to, rate_limit }";
    case ValueKind::rate_factors:
      return "a list of { tensors, factor }";
  }
  return {};
}

std::string SiteKey::value_text(const SiteFile& file) const {
  SiteFile copy = file;  // fields give a mutable reference
  return std::visit(ValueText{*this, copy}, field);
}

std::string SiteKey::default_text() const {
  return required || !absent.empty() ? std::string() : value_text(SiteFile{});
}

std::optional<std::vector<int>> parse_ranges(std::string_view text) {
  constexpr int kCpuMax = 8191;
  std::vector<int> cpus;
  const auto take = [&text](int& number) {
    std::size_t digits = 0;
    number = 0;
    while (digits < text.size() && digits < 5 && text[digits] >= '0' && text[digits] <= '9')
      number = 10 * number + (text[digits++] - '0');
    text.remove_prefix(digits);
    return digits > 0 && number <= kCpuMax;
  };
  while (true) {
    int first = 0, last = 0;
    if (!take(first)) return std::nullopt;
    last = first;
    if (!text.empty() && text.front() == '-') {
      text.remove_prefix(1);
      if (!take(last)) return std::nullopt;
    }
    if (last < first || (!cpus.empty() && first <= cpus.back())) return std::nullopt;
    for (int cpu = first; cpu <= last; ++cpu) cpus.push_back(cpu);
    if (text.empty()) return cpus;
    if (text.front() != ',') return std::nullopt;
    text.remove_prefix(1);
    while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  }
}

std::optional<HostPort> parse_address(std::string_view text) {
  const auto colon = text.rfind(':');
  if (colon == std::string_view::npos || text.size() > 255) return std::nullopt;
  auto host = text.substr(0, colon);
  const auto port_text = text.substr(colon + 1);
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  if (host.empty() || port_text.empty() || port_text.size() > 5) return std::nullopt;
  int port = 0;
  for (const char c : port_text) {
    if (c < '0' || c > '9') return std::nullopt;
    port = 10 * port + (c - '0');
  }
  if (port < 1 || port > 65534) return std::nullopt;  // bulk data need the port after a gateway's
  const bool fits = std::all_of(host.begin(), host.end(), [&](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '-' || c == '_' || (bracketed && (c == ':' || c == '%'));
  });
  if (!fits && host != "*") return std::nullopt;
  return HostPort{std::string(host), static_cast<std::uint16_t>(port)};
}

bool same_host(const HostPort& a, const HostPort& b) {
  const auto number = [](const std::string& host) {
    return host.find_first_not_of("0123456789.") == std::string::npos && host != "0.0.0.0";
  };
  return a.host == b.host || !number(a.host) || !number(b.host);
}

}  // namespace isthmus::launcher
