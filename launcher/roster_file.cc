#include "launcher/roster_file.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <ctime>
#include <optional>
#include <span>
#include <utility>

#include "base/byte_stream.h"
#include "launcher/toml_reader.h"
#include "security/hex.h"
#include "security/roster_signature.h"

namespace isthmus::launcher {
namespace {

constexpr std::int64_t kIdMax = 0xFFFF'FFFF;
constexpr std::size_t kPublicFileBytesMax = 4096;

constexpr std::array<std::string_view, 7> kRosterKeys = {"epoch", "expires",  "run",   "next_id",
                                                         "site",  "recovery", "former"};
constexpr std::array<std::string_view, 4> kRecoveryKeys = {"run", "step", "root", "voters"};
constexpr std::array<std::string_view, 5> kSiteKeys = {"id", "name", "voter", "identity",
                                                       "gateway"};
constexpr std::array<std::string_view, 3> kFormerKeys = {"id", "name", "identity"};
constexpr std::array<std::string_view, 3> kGatewayKeys = {"address", "curve_key",
                                                          "curve_signature"};

class RosterReader {
 public:
  explicit RosterReader(RosterText& text) : text_(text) {}

  void run() {
    auto& roster = text_.roster;
    roster.digest = security::blake2b(bytes_of(text_.source));
    const auto table = parse_toml(text_.source, text_.faults);
    if (!table) return;
    const TableReader top(*table, "the roster", text_.faults);
    top.refuse_unknown_keys(kRosterKeys);
    if (const auto epoch = top.whole_number("epoch", "counts up with every change", 1,
                                            std::numeric_limits<std::int64_t>::max()))
      roster.epoch = static_cast<std::uint64_t>(*epoch);
    expires(top);
    if (top.find("run") != nullptr) {
      security::Digest digest;
      key(top, "run", "which run these sites have", digest);
      roster.run = digest;
    }
    if (top.find("next_id") != nullptr)
      if (const auto next =
              top.whole_number("next_id", "above every id that was ever given", 1, kIdMax + 1))
        roster.next_id = static_cast<std::uint64_t>(*next);
    for_each(top, "recovery", [this](const auto& one) { recovery(one); });
    for_each(top, "former", [this](const auto& one) { former(one); });
    const auto* sites = list(top, "site", "[[site]]");
    if (sites == nullptr) return;
    for (const auto& node : *sites)
      if (const auto* site_table = node.as_table()) site(*site_table);
    if (!text_.faults.empty()) return;
    for (const auto& error : security::check_roster(roster))
      text_.faults.add(region_of(*sites), error.text());
  }

 private:
  // A list of tables with at least one; anything else is a fault.
  const toml::array* list(const TableReader& table, std::string_view key,
                          std::string_view written) {
    const auto* node = table.find(key);
    const auto* array = node != nullptr ? node->as_array() : nullptr;
    if (array != nullptr && !array->empty() && array->is_array_of_tables()) return array;
    if (node == nullptr)
      text_.faults.add(table.region(),
                       fmt::format("there is no {}: at least one is needed", written));
    else
      table.fault(key, fmt::format("{} must be written as {}", key, written));
    return nullptr;
  }

  void expires(const TableReader& top) {
    const auto* node = top.find("expires");
    if (node == nullptr) {
      top.fault("expires", "the roster needs expires: a date like 2027-06-30T00:00:00Z");
      return;
    }
    Result<Nanoseconds> time = Error{ErrorCode::invalid_argument, "it is no date"};
    if (const auto* moment = node->as_date_time()) {
      const auto& value = moment->get();
      if (value.offset && value.offset->minutes != 0)
        time = Error{ErrorCode::invalid_argument, "write it in UTC, with a Z at the end"};
      else
        time = parse_calendar(fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z", value.date.year,
                                          value.date.month, value.date.day, value.time.hour,
                                          value.time.minute, value.time.second));
    } else if (const auto* day = node->as_date()) {
      const auto& value = day->get();
      time = parse_calendar(fmt::format("{:04}-{:02}-{:02}", value.year, value.month, value.day));
    }
    if (time)
      text_.roster.expires = *time;
    else
      top.fault("expires", fmt::format("expires must be a date like 2027-06-30T00:00:00Z, without "
                                       "quotes: {}",
                                       time.error().text()));
  }

  // A list of tables that may be left out.
  template <class Read>
  void for_each(const TableReader& top, std::string_view key, const Read& read) {
    const auto* node = top.find(key);
    if (node == nullptr) return;
    const auto* tables = node->as_array();
    if (tables == nullptr || !tables->is_homogeneous(toml::node_type::table))
      return top.fault(key, fmt::format("{0} must be written as [[{0}]]", key));
    for (const auto& entry : *tables) read(*entry.as_table());
  }

  void former(const toml::table& table) {
    const TableReader reader(table, "[[former]]", text_.faults);
    reader.refuse_unknown_keys(kFormerKeys);
    security::FormerSite site;
    if (const auto id = reader.whole_number("id", "that it had", 0, kIdMax))
      site.id = static_cast<std::uint32_t>(*id);
    if (auto name = reader.text("name", "what the site was called")) site.name = std::move(*name);
    key(reader, "identity", "the public key that it had", site.identity);
    text_.roster.former.push_back(std::move(site));
  }

  void recovery(const toml::table& table) {
    const TableReader reader(table, "[[recovery]]", text_.faults);
    reader.refuse_unknown_keys(kRecoveryKeys);
    security::Recovery given;
    key(reader, "run", "which run goes on", given.run);
    if (const auto step = reader.whole_number("step", "the last step that counts", 0,
                                              std::numeric_limits<std::int64_t>::max()))
      given.step = static_cast<std::uint64_t>(*step);
    key(reader, "root", "of the state after that step", given.root);
    const auto* voters = reader.find("voters");
    const auto* list = voters != nullptr ? voters->as_array() : nullptr;
    if (list == nullptr) {
      reader.fault("voters", "voters must be a list of site ids: voters = [2, 3]");
    } else {
      for (const auto& entry : *list) {
        const auto id = entry.value<std::int64_t>();
        if (id && *id >= 0 && *id <= kIdMax)
          given.voters.push_back(static_cast<std::uint32_t>(*id));
        else
          reader.fault("voters", "voters must be a list of site ids: voters = [2, 3]");
      }
    }
    text_.roster.recoveries.push_back(std::move(given));
  }

  void site(const toml::table& table) {
    const TableReader reader(table, "[[site]]", text_.faults);
    reader.refuse_unknown_keys(kSiteKeys);
    security::RosterSite site;
    const auto place = text_.roster.sites.size();
    if (const auto id = reader.whole_number("id", "never given to another site", 0, kIdMax))
      site.id = static_cast<std::uint32_t>(*id);
    if (auto name = reader.text("name", "what the site is called")) site.name = std::move(*name);
    site.voter = reader.flag_or("voter", security::voter_by_default(place)).value_or(false);
    key(reader, "identity", "the site's public key", site.identity);
    if (const auto* gateways = list(reader, "gateway", "[[site.gateway]]"))
      for (const auto& node : *gateways) site.gateways.push_back(gateway(*node.as_table()));
    text_.roster.sites.push_back(std::move(site));
  }

  security::RosterGateway gateway(const toml::table& table) {
    const TableReader reader(table, "[[site.gateway]]", text_.faults);
    reader.refuse_unknown_keys(kGatewayKeys);
    security::RosterGateway gateway;
    if (reader.find("address") != nullptr)
      if (auto address = reader.text("address", "host:port")) gateway.address = std::move(*address);
    key(reader, "curve_key", "the key of its sockets", gateway.curve_key);
    key(reader, "curve_signature", "the site's signature of that key", gateway.curve_signature);
    return gateway;
  }

  template <class Key>
  void key(const TableReader& reader, std::string_view name, std::string_view meaning, Key& out) {
    const auto text = reader.text(name, meaning);
    if (!text) return;
    if (auto parsed = security::parse_hex<Key>(*text))
      out = *parsed;
    else
      reader.fault(name, fmt::format("{} ({}): {}", name, meaning, parsed.error().text()));
  }

  RosterText& text_;
};

// A line `operator_key = "…"` among comments and blank lines.
std::optional<security::PublicKey> operator_key_in(std::string_view text) {
  Faults ignored;
  const auto table = parse_toml(text, ignored);
  if (!table) return std::nullopt;
  const auto value = (*table)["operator_key"].value<std::string>();
  if (!value) return std::nullopt;
  const auto key = security::parse_hex<security::PublicKey>(*value);
  return key ? std::optional(*key) : std::nullopt;
}

}  // namespace

RosterText parse_roster_text(std::string path, std::string source) {
  RosterText text{.path = std::move(path), .source = std::move(source)};
  RosterReader(text).run();
  return text;
}

std::string roster_text(const security::Roster& roster) {
  std::string out = fmt::format(
      "# Who the sites of this federation are. Signed: after any change, count up epoch and run\n"
      "# `isthmus roster sign` again.\n"
      "epoch = {}\nexpires = {}\n",
      roster.epoch, calendar_text(roster.expires));
  if (roster.run) out += fmt::format("run = \"{}\"\n", roster.run->hex());
  if (roster.next_id > 0) out += fmt::format("next_id = {}\n", roster.next_id);
  for (const auto& site : roster.sites) {
    out += fmt::format("\n[[site]]\nid = {}\nname = \"{}\"\nvoter = {}\nidentity = \"{}\"\n",
                       site.id, site.name, site.voter, site.identity.hex());
    for (const auto& gateway : site.gateways) {
      out += "[[site.gateway]]\n";
      if (!gateway.address.empty()) out += fmt::format("address = \"{}\"\n", gateway.address);
      out += fmt::format("curve_key = \"{}\"\ncurve_signature = \"{}\"\n", gateway.curve_key.hex(),
                         gateway.curve_signature.hex());
    }
  }
  for (const auto& site : roster.former)
    out += fmt::format("\n[[former]]\nid = {}\nname = \"{}\"\nidentity = \"{}\"\n", site.id,
                       site.name, site.identity.hex());
  for (const auto& given : roster.recoveries)
    out +=
        fmt::format("\n[[recovery]]\nrun = \"{}\"\nstep = {}\nroot = \"{}\"\nvoters = [{}]\n",
                    given.run.hex(), given.step, given.root.hex(), fmt::join(given.voters, ", "));
  return out;
}

Result<security::Roster> read_roster(const Disk& disk, const std::string& path,
                                     const security::PublicKey& operator_key) {
  ISTHMUS_TRY(const auto file, security::read_signed_roster(disk, path, operator_key));
  auto text = parse_roster_text(path, std::string(text_of(file.bytes)));
  if (!text.faults.empty())
    return Error{ErrorCode::invalid_argument,
                 "the roster has faults:\n" + text.faults.text(text.path, text.source)};
  return std::move(text.roster);
}

Result<security::PublicKey> read_operator_key(const Disk& disk, const std::string& key_or_path) {
  if (auto key = security::parse_hex<security::PublicKey>(key_or_path)) return *key;
  auto bytes = read_file(disk, key_or_path, kPublicFileBytesMax);
  if (!bytes)
    return Error{
        bytes.error().code,
        fmt::format("\"{}\" is neither a key (64 hexadecimal digits) nor a file that can be "
                    "read",
                    key_or_path),
        std::move(bytes).error()};
  const auto key = operator_key_in(text_of(*bytes));
  if (!key)
    return Error{
        ErrorCode::corrupt,
        fmt::format("{} holds no operator_key = \"…\" as `isthmus keys generate --operator` "
                    "writes it",
                    key_or_path)};
  return *key;
}

Result<security::PublicIdentity> read_public_identity(const Disk& disk, const std::string& path) {
  ISTHMUS_TRY(const auto bytes, read_file(disk, path, kPublicFileBytesMax));
  auto identity = security::parse_public_identity(text_of(bytes));
  if (!identity)
    return Error{identity.error().code,
                 fmt::format("{} is no public part of an identity, as `isthmus keys generate` "
                             "writes it beside the secret one (PATH.pub)",
                             path),
                 identity.error()};
  return identity;
}

std::string calendar_text(Nanoseconds unix_time) {
  const auto second = static_cast<std::time_t>(unix_time / kSecond);
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}Z", fmt::gmtime(second));
}

Result<Nanoseconds> parse_calendar(std::string_view text) {
  const auto refuse = [text] {
    return Error{
        ErrorCode::invalid_argument,
        fmt::format("\"{}\" is no date; write it like 2027-06-30 or 2027-06-30T12:00:00Z", text)};
  };
  constexpr int kYearMin = 1970, kYearMax = 2261;  // what nanoseconds in 64 bits hold
  // Digits where the pattern has 0, the pattern's own characters elsewhere.
  static constexpr std::string_view kPattern = "0000-00-00T00:00:00Z";
  static constexpr std::size_t kDayLength = 10;
  if (text.size() != kPattern.size() && text.size() != kDayLength) return refuse();
  for (std::size_t i = 0; i < text.size(); ++i)
    if (kPattern[i] == '0' ? text[i] < '0' || text[i] > '9' : text[i] != kPattern[i])
      return refuse();
  const auto number = [text](std::size_t first, std::size_t count) {
    int value = 0;
    for (std::size_t i = first; i < first + count; ++i) value = 10 * value + (text[i] - '0');
    return value;
  };
  const std::chrono::year_month_day day{std::chrono::year(number(0, 4)),
                                        std::chrono::month(static_cast<unsigned>(number(5, 2))),
                                        std::chrono::day(static_cast<unsigned>(number(8, 2)))};
  if (!day.ok()) return refuse();
  if (number(0, 4) < kYearMin || number(0, 4) > kYearMax)
    return Error{ErrorCode::invalid_argument,
                 fmt::format("\"{}\" is not in the years {} to {}", text, kYearMin, kYearMax)};
  std::int64_t seconds =
      86400 * static_cast<std::int64_t>(std::chrono::sys_days(day).time_since_epoch().count());
  if (text.size() > kDayLength) {
    if (number(11, 2) > 23 || number(14, 2) > 59 || number(17, 2) > 59) return refuse();
    seconds += 3600 * number(11, 2) + 60 * number(14, 2) + number(17, 2);
  }
  return seconds * kSecond;
}

}  // namespace isthmus::launcher
