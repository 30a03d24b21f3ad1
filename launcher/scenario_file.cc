#include "launcher/scenario_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <string_view>
#include <type_traits>
#include <variant>

#include "base/byte_stream.h"
#include "base/counted.h"
#include "base/disk.h"
#include "launcher/nearest_name.h"
#include "launcher/toml_reader.h"
#include "launcher/units.h"
#include "launcher/wrapped_text.h"

namespace isthmus::launcher {
namespace {

using inter::sim::Scenario;

constexpr std::array<std::string_view, 3> kCodecs = {"none", "bf16", "int8"};
constexpr std::array<std::string_view, 2> kOuterRules = {"average", "nesterov"};
constexpr std::array<std::string_view, 7> kBugs = {"none",
                                                   "lying_disk",
                                                   "acknowledge_early",
                                                   "skip_gap",
                                                   "announce_before_saved",
                                                   "two_contributions",
                                                   "drop_feedback"};

constexpr std::array<std::string_view, 7> kOutagePoints = {
    "drawn",  "any_moment", "before_close", "feedback_written", "between_vote_and_accept",
    "saving", "merging"};
constexpr std::array<std::string_view, 3> kTcps = {"unseen", "reno", "bbr"};
constexpr std::array<std::string_view, 4> kOutageReturns = {"drawn", "soon", "one_late",
                                                            "one_never"};

struct Count {
  std::function<void(Scenario&, std::int64_t)> set;
  std::int64_t min = 1;
};
struct Choice {
  std::span<const std::string_view> names;
  std::function<void(Scenario&, std::size_t)> set;
};
struct Rate {
  double Scenario::*field;
};
struct NetworkRate {
  double inter::sim::NetworkFaults::*field;
};
struct OuterRate {
  float inter::OuterRule::*field;
};
struct Time {
  std::function<Nanoseconds&(Scenario&)> field;
  bool may_be_zero = false;
};
struct Flag {
  bool Scenario::*field;
};
struct Speed {
  std::function<double&(Scenario&)> bytes_per_second;
  std::string_view example;
};

struct Size {
  std::function<std::size_t&(Scenario&)> bytes;
};

struct ScenarioKey {
  std::string_view name;
  std::variant<Count, Choice, Rate, NetworkRate, OuterRate, Time, Flag, Speed, Size> value;
  double max;  // of numbers
  std::string_view meaning;
};

template <class Integer>
Count count(Integer Scenario::*field, std::int64_t min = 1) {
  return {[field](Scenario& s, std::int64_t value) { s.*field = static_cast<Integer>(value); },
          min};
}
Time time(Nanoseconds Scenario::*field, bool may_be_zero = false) {
  return {[field](Scenario& s) -> Nanoseconds& { return s.*field; }, may_be_zero};
}

const std::vector<ScenarioKey>& keys() {
  using inter::sim::NetworkFaults;
  static const std::vector<ScenarioKey> all = {
      {"sites", count(&Scenario::sites), 1000, "sites of the federation"},
      {"voters", count(&Scenario::voters), 1000, "of them, the first ones"},
      {"outer_steps", count(&Scenario::outer_steps), 1000, "length of the run"},
      {"min_sites", count(&Scenario::min_sites), 1000, "parts that make a step worth committing"},
      {"absent_steps", count(&Scenario::absent_steps), 1000,
       "records without a site before it is dropped from the view"},
      {"outer",
       Choice{kOuterRules,
              [](Scenario& s, std::size_t i) { s.outer.kind = inter::OuterRuleKind(i); }},
       0, "the outer optimizer"},
      {"outer_rate", OuterRate{&inter::OuterRule::rate}, 10, "of nesterov"},
      {"outer_momentum", OuterRate{&inter::OuterRule::momentum}, 0.9999, "of nesterov"},
      {"codec", Choice{kCodecs, [](Scenario& s, std::size_t i) { s.codec = compress::CodecId(i); }},
       0, "of pseudo-gradients"},
      {"elements", count(&Scenario::elements, 2000), 1 << 20,
       "of the model's largest tensor, about"},
      {"window_chunks", count(&Scenario::window_chunks, 0), 1024,
       "of credit, for each peer; 0: as links have it"},
      {"bug", Choice{kBugs, [](Scenario& s, std::size_t i) { s.bug = inter::PlantedBug(i); }}, 0,
       "a planted one, which the invariants must find"},
      {"partitions", Rate{&Scenario::partitions}, 60,
       "a site and minute: a pair is cut for up to half a minute"},
      {"one_way", Rate{&Scenario::one_way}, 1, "share of partitions that cut one direction only"},
      {"broken_connections", Rate{&Scenario::broken_connections}, 60, "a site and minute"},
      {"crashes", Rate{&Scenario::crashes}, 60,
       "a site and minute: at a random moment, or at a named point of a step"},
      {"killed_again", Rate{&Scenario::killed_again}, 1,
       "who was killed at a named point: probability that it is again, at the same one"},
      {"outages", Rate{&Scenario::outages}, 60, "a minute: several sites are killed together"},
      {"outage_sites", count(&Scenario::outage_sites, 0), 1000, "the first ones; 0: all"},
      {"outage_point",
       Choice{kOutagePoints,
              [](Scenario& s, std::size_t i) { s.outage_point = inter::sim::OutagePoint(i); }},
       0, "of a step, where each of them is killed"},
      {"outage_return",
       Choice{kOutageReturns,
              [](Scenario& s, std::size_t i) { s.outage_return = inter::sim::OutageReturn(i); }},
       0, "how they come back"},
      {"disk_full", Rate{&Scenario::disk_full}, 60,
       "a site and minute: for a quarter of a minute half of the writes fail"},
      {"no_descriptors", Rate{&Scenario::no_descriptors}, 60,
       "a site and minute: for up to a quarter of a minute it opens no file and takes no "
       "connection"},
      {"votes_lost", Rate{&Scenario::votes_lost}, 1,
       "with a crash: probability that the vote file is gone"},
      {"wipes", Rate{&Scenario::wipes}, 60, "a site and minute: killed, and its disk is empty"},
      {"wiped_again", Rate{&Scenario::wiped_again}, 1,
       "who was wiped: probability that it is again as soon as it has its vote back"},
      {"memory_errors", Rate{&Scenario::memory_errors}, 1,
       "probability that a site computes a step wrongly; half, once more"},
      {"memory_errors_max", count(&Scenario::memory_errors_max, 0), 1000,
       "of one step at one site"},
      {"leaves", Rate{&Scenario::leaves}, 60,
       "a site and minute: its gateway is asked to end, and returns within a minute"},
      {"pauses", Rate{&Scenario::pauses}, 60,
       "a site and minute: all of it stands still for up to 45 s"},
      {"gone_for", time(&Scenario::gone_for, true), 0, "crashes and pauses last so long at least"},
      {"clock_jumps", Rate{&Scenario::clock_jumps}, 60,
       "a site and minute: its calendar jumps by up to an hour"},
      {"roster_expires", time(&Scenario::roster_expires), 0,
       "after the beginning, by the calendars of the sites"},
      {"clock_drift", Rate{&Scenario::clock_drift}, 0.1,
       "share by which a site's clock is too fast or too slow at most"},
      {"slow_disks", Rate{&Scenario::slow_disks}, 60,
       "a site and minute: its disk takes 10 to 100 times as long for up to half a minute"},
      {"slow_access", Rate{&Scenario::slow_access}, 60,
       "a site and minute: its access link has a 100th of its rate for up to half a minute"},
      {"bad_network", Rate{&Scenario::bad_network}, 60,
       "a minute: for up to 20 s up to half of all messages are lost"},
      {"any_fault_every", time(&Scenario::any_fault_every, true), 0,
       "mean time between faults of any kind that may come at any time; 0: none"},
      {"slow_sites", Rate{&Scenario::slow_sites}, 1,
       "share of sites whose ranks take ten times as long"},
      {"absent_start", Rate{&Scenario::absent_start}, 1,
       "share of sites that come after the run has begun"},
      {"one_leaves_for_good", Flag{&Scenario::one_leaves_for_good}, 0,
       "the last site, when a third of the run is done"},
      {"majority_lost", Flag{&Scenario::majority_lost}, 0,
       "for good, or of half of the seeds their disks alone, when a third of the run is done, and "
       "the operator says where to go on"},
      {"roster_changes", Flag{&Scenario::roster_changes}, 0,
       "when a third of the run is done: the first voter loses its vote, all others get one"},
      {"roster_drops", Flag{&Scenario::roster_drops}, 0,
       "the newer roster has the first voter as a former site"},
      {"other_settings", Flag{&Scenario::other_settings}, 0,
       "when a third of the run is done all sites are started with another one, in vain"},
      {"dead_ranks", time(&Scenario::dead_ranks, true), 0,
       "the last site's ranks die or hang, when a third of the run is done, for so long; 0: never"},
      {"away", time(&Scenario::away, true), 0,
       "the last site sees nobody, when a third of the run is done, for so long; 0: never"},
      {"back_within", count(&Scenario::back_within, 0), 1000,
       "steps in which it must take part again, once it sees somebody"},
      {"narrow_site", Flag{&Scenario::narrow_site}, 0,
       "the last site sees nobody but the last voter beside it"},
      {"narrow_vote_lost", Flag{&Scenario::narrow_vote_lost}, 0,
       "its vote file is lost when a third of the run is done"},
      {"blind_pair", Flag{&Scenario::blind_pair}, 0,
       "two sites never see each other: others pass on"},
      {"compute", time(&Scenario::compute), 0,
       "of the inner steps between two outer steps, give or take 30 %"},
      {"trouble_ends", time(&Scenario::trouble_ends), 0,
       "then all faults heal, and the run must finish"},
      {"limit", time(&Scenario::limit), 0, "a run that takes longer has not finished"},
      {"delay", Time{[](Scenario& s) -> Nanoseconds& { return s.network.delay; }}, 0,
       "of a path, one way"},
      {"jitter", NetworkRate{&NetworkFaults::jitter}, 10, "times delay, uniform, of one message"},
      {"loss", NetworkRate{&NetworkFaults::loss}, 0.9, "of one message"},
      {"duplicate", NetworkRate{&NetworkFaults::duplicate}, 0.9, "of one message"},
      {"reorder", NetworkRate{&NetworkFaults::reorder}, 0.9,
       "of one message: held up by up to ten delays"},
      {"silent_deaths", NetworkRate{&NetworkFaults::silent_deaths}, 1,
       "share of dead connections that the other end does not notice"},
      {"speed",
       Speed{[](Scenario& s) -> double& { return s.network.bytes_per_second; }, "100 Mbit/s"}, 0,
       "of each site's access link, down and, times up_share, up: for all paths and lanes"},
      {"up_share", NetworkRate{&NetworkFaults::up_share}, 1, "of speed, towards the others"},
      {"slow_lines", Rate{&Scenario::slow_lines}, 1,
       "share of sites whose access link has a tenth of the speed"},
      {"rate_limited", Flag{&Scenario::rate_limited}, 0,
       "gateways are told nine tenths of their line's rate upwards, as a rate_limit"},
      {"few_connections", Rate{&Scenario::few_connections}, 1,
       "share of sites that take at most four connections of a peer's bulk lane"},
      {"queue", Size{[](Scenario& s) -> std::size_t& { return s.network.queue_bytes; }}, 0,
       "of an access link, each way; packets that find no room are lost"},
      {"packet_loss", NetworkRate{&NetworkFaults::packet_loss}, 0.5,
       "of one packet, which comes again later"},
      {"tcp",
       Choice{kTcps,
              [](Scenario& s, std::size_t i) { s.network.tcp = inter::sim::SimulatedTcp(i); }},
       0,
       "of the bulk lane: one connection, and what its TCP knows unseen; or several, under this "
       "congestion control, with paces and copies as a kernel's"},
      {"delay_spread", Rate{&Scenario::delay_spread}, 1,
       "each path's own delay is up to this share longer or shorter"},
      {"disk_operation", Time{[](Scenario& s) -> Nanoseconds& { return s.disk.operation; }, true},
       0, "what a disk takes for each operation but reading"},
      {"disk_sync", Time{[](Scenario& s) -> Nanoseconds& { return s.disk.sync; }, true}, 0,
       "and for each sync besides"},
      {"disk_speed",
       Speed{[](Scenario& s) -> double& { return s.disk.bytes_per_second; }, "500 MB/s"}, 0,
       "of what is written"},
  };
  return all;
}

class ScenarioReader {
 public:
  ScenarioReader(const toml::table& table, Faults& faults)
      : reader_(table, "the scenario", faults) {}

  Scenario run() {
    std::vector<std::string_view> known = {"from"};
    for (const auto& key : keys()) known.push_back(key.name);
    reader_.refuse_unknown_keys(known);
    start();
    for (const auto& key : keys())
      if (const auto* node = reader_.find(key.name))
        std::visit([&](const auto& value) { read(key, *node, value); }, key.value);
    at_most_all_sites("voters", scenario_.voters);
    at_most_all_sites("min_sites", scenario_.min_sites);
    at_most_all_sites("outage_sites", scenario_.outage_sites);
    return scenario_;
  }

 private:
  void start() {
    if (reader_.find("from") == nullptr) return;
    const auto name = reader_.text("from", "a standard scenario");
    if (!name) return;
    std::vector<std::string> names;
    for (auto& standard : inter::sim::standard_scenarios()) {
      if (standard.name == *name) scenario_ = standard;
      names.push_back(standard.name);
    }
    if (scenario_.name == *name) return;
    const std::vector<std::string_view> views(names.begin(), names.end());
    reader_.fault("from", unknown_name("there is no scenario", *name, views));
  }

  // What a standard scenario says of more sites is no fault.
  void at_most_all_sites(std::string_view key, std::uint32_t& count) const {
    if (count <= scenario_.sites) return;
    if (reader_.find(key) != nullptr)
      reader_.fault(
          key, fmt::format("{} = {}, but there {} {}", key, count,
                           scenario_.sites == 1 ? "is" : "are", counted(scenario_.sites, "site")));
    count = scenario_.sites;
  }

  void read(const ScenarioKey& key, const toml::node&, const Count& count) {
    if (const auto value = reader_.whole_number(key.name, "a count", count.min,
                                                static_cast<std::int64_t>(key.max)))
      count.set(scenario_, *value);
  }
  void read(const ScenarioKey& key, const toml::node& node, const Choice& choice) {
    const auto text = node.value<std::string>().value_or("");
    const auto found = std::find(choice.names.begin(), choice.names.end(), text);
    if (found != choice.names.end())
      choice.set(scenario_, static_cast<std::size_t>(found - choice.names.begin()));
    else
      reader_.fault(key.name,
                    unknown_name(fmt::format("{} has no value", key.name), text, choice.names));
  }
  void read(const ScenarioKey& key, const toml::node& node, const Rate& rate) {
    read_number(key, node, scenario_.*rate.field);
  }
  void read(const ScenarioKey& key, const toml::node& node, const NetworkRate& rate) {
    read_number(key, node, scenario_.network.*rate.field);
  }
  void read(const ScenarioKey& key, const toml::node& node, const OuterRate& rate) {
    double value = scenario_.outer.*rate.field;
    read_number(key, node, value);
    scenario_.outer.*rate.field = static_cast<float>(value);
  }
  void read_number(const ScenarioKey& key, const toml::node& node, double& out) {
    const auto value = node.value<double>();
    if (node.is_number() && value && std::isfinite(*value) && *value >= 0 && *value <= key.max)
      out = *value;
    else
      reader_.fault(key.name, fmt::format("{} must be a number from 0 to {}", key.name, key.max));
  }
  void read(const ScenarioKey& key, const toml::node&, const Time& time) {
    const auto text = reader_.text(key.name, "a duration");
    if (!text) return;
    const auto parsed = parse_duration(*text);
    if (parsed && (*parsed > 0 || (time.may_be_zero && *parsed == 0)))
      time.field(scenario_) = *parsed;
    else
      reader_.fault(key.name,
                    parsed ? fmt::format("{} must be above 0", key.name) : parsed.error().text());
  }
  void read(const ScenarioKey& key, const toml::node& node, const Flag& flag) {
    if (const auto value = reader_.flag_or(key.name, false); node.is_boolean() && value)
      scenario_.*flag.field = *value;
  }
  void read(const ScenarioKey& key, const toml::node&, const Speed& speed) {
    const auto text = reader_.text(key.name, "a rate");
    if (!text) return;
    const auto parsed = parse_rate(*text);
    if (parsed && *parsed > 0)
      speed.bytes_per_second(scenario_) = static_cast<double>(*parsed) / 8;
    else
      reader_.fault(key.name, parsed ? "what is simulated has some speed" : parsed.error().text());
  }

  void read(const ScenarioKey& key, const toml::node&, const Size& size) {
    const auto text = reader_.text(key.name, "a size");
    if (!text) return;
    const auto parsed = parse_bytes(*text);
    if (parsed && *parsed > 0)
      size.bytes(scenario_) = static_cast<std::size_t>(*parsed);
    else
      reader_.fault(key.name,
                    parsed ? fmt::format("{} must be above 0", key.name) : parsed.error().text());
  }

  TableReader reader_;
  Scenario scenario_;
};

std::string kind_text(const ScenarioKey& key) {
  struct Kind {
    const ScenarioKey& key;
    std::string operator()(const Count& count) const {
      return fmt::format("{} to {}", count.min, key.max);
    }
    std::string operator()(const Choice& choice) const {
      std::string text;
      for (const auto name : choice.names)
        text += fmt::format("{}\"{}\"", text.empty() ? "" : ", ", name);
      return text;
    }
    std::string operator()(const Rate&) const { return fmt::format("0 to {}", key.max); }
    std::string operator()(const NetworkRate&) const { return fmt::format("0 to {}", key.max); }
    std::string operator()(const OuterRate&) const { return fmt::format("0 to {}", key.max); }
    std::string operator()(const Time&) const { return "\"3 s\""; }
    std::string operator()(const Flag&) const { return "true or false"; }
    std::string operator()(const Size&) const { return "\"256 KiB\""; }
    std::string operator()(const Speed& speed) const {
      return fmt::format("\"{}\"", speed.example);
    }
  };
  return std::visit(Kind{key}, key.value);
}

}  // namespace

Result<Scenario> parse_scenario(const std::string& path, const std::string& source) {
  Faults faults;
  Scenario scenario;
  if (const auto table = parse_toml(source, faults))
    scenario = ScenarioReader(*table, faults).run();
  if (!faults.empty()) return Error{ErrorCode::invalid_argument, faults.text(path, source)};
  return scenario;
}

Result<Scenario> read_scenario(const std::string& name_or_path) {
  constexpr std::size_t kBytesMax = std::size_t{1} << 20;
  std::vector<std::string> names;
  for (auto& standard : inter::sim::standard_scenarios()) {
    if (standard.name == name_or_path) return standard;
    names.push_back(standard.name);
  }
  const auto bytes = read_file(*make_system_disk(), name_or_path, kBytesMax);
  if (!bytes) {
    const bool is_path = name_or_path.ends_with(".toml") ||
                         name_or_path.find('/') != std::string::npos ||
                         bytes.error().code != ErrorCode::not_found;
    const std::vector<std::string_view> views(names.begin(), names.end());
    if (is_path)
      return Error{ErrorCode::invalid_argument, "cannot read the scenario file", bytes.error()};
    const auto near = nearest_name(name_or_path, views);
    return Error{ErrorCode::invalid_argument,
                 fmt::format("there is no standard scenario or file \"{}\"; {}", name_or_path,
                             near ? fmt::format("did you mean \"{}\"?", *near)
                                  : std::string("isthmus simulate --help lists them"))};
  }
  return parse_scenario(name_or_path, std::string(text_of(*bytes)));
}

namespace {
constexpr std::size_t kHelpColumn = 26, kHelpWidth = 80;
}

std::string standard_scenarios_text() {
  std::string text;
  for (const auto& standard : inter::sim::standard_scenarios())
    text += entry_of(standard.name, standard.about, kHelpColumn, kHelpWidth);
  return text;
}

std::string scenario_keys_text() {
  std::string text;
  for (const auto& key : keys())
    text += entry_of(key.name, fmt::format("{}: {}", kind_text(key), key.meaning), kHelpColumn,
                     kHelpWidth);
  return text;
}

}  // namespace isthmus::launcher
