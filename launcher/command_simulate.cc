#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdio>
#include <limits>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "base/counted.h"
#include "base/disk.h"
#include "inter/sim/federation.h"
#include "inter/sim/shrink.h"
#include "inter/sim/storm.h"
#include "launcher/command.h"
#include "launcher/progress_line.h"
#include "launcher/scenario_file.h"
#include "launcher/seed_record.h"
#include "launcher/seed_runs.h"
#include "launcher/stop_request.h"
#include "launcher/units.h"
#include "security/hash.h"

namespace isthmus::launcher {
namespace {

using inter::sim::Outcome;
using inter::sim::PartOfRun;
using inter::sim::Scenario;

constexpr std::uint64_t kSeedMax = std::numeric_limits<std::int64_t>::max();
// Failing seeds that are made shorter; of all others the whole run can be replayed.
constexpr std::size_t kShrunkMax = 5;

struct SimulateArguments {
  std::string scenario;
  bool storm = false;
  std::uint64_t seed = 1;
  std::string faults;
  std::uint32_t sites = 0;  // 0: all
  std::uint64_t steps = 0;  // 0: all
  bool shrink = false;
  bool json = false;
  bool log = false;

  std::uint64_t seeds = 0;  // 0: `seed` alone
  std::uint64_t first_seed = 1;
  unsigned cpus = 0;  // 0: all
  std::string resume;

  std::string name() const { return storm ? "--storm" : scenario; }
};

// What each seed runs: the same scenario, or its own.
class Scenarios {
 public:
  static Result<Scenarios> of(const SimulateArguments& options) {
    Scenarios scenarios;
    if (options.storm == !options.scenario.empty())
      return Error{ErrorCode::invalid_argument,
                   options.storm ? "--storm draws its scenarios: it takes no SCENARIO beside it"
                                 : "name a SCENARIO, or --storm; isthmus simulate --help lists the "
                                   "standard scenarios"};
    if (options.seeds > 0 && options.first_seed > kSeedMax - (options.seeds - 1))
      return Error{ErrorCode::invalid_argument,
                   fmt::format("{} seeds from {} on end beyond {}, the last that there is",
                               options.seeds, options.first_seed, kSeedMax)};
    if (!options.storm) {
      ISTHMUS_TRY(scenarios.one_, read_scenario(options.scenario));
    }
    return scenarios;
  }
  Scenario operator()(std::uint64_t seed) const {
    return one_ ? *one_ : inter::sim::storm_scenario(seed);
  }

 private:
  std::optional<Scenario> one_;
};

// "3,9,12", ascending, or "none"; nothing of "all".
Result<std::optional<std::vector<std::uint32_t>>> parse_faults(const std::string& text) {
  if (text == "all") return std::optional<std::vector<std::uint32_t>>();
  std::vector<std::uint32_t> faults;
  if (text == "none") return std::optional(faults);
  const auto wrong = [&] {
    return Error{ErrorCode::invalid_argument,
                 fmt::format("places in the list of a run's faults are wanted, each once, as "
                             "3,9,12, or all, or none; not \"{}\"",
                             text)};
  };
  for (const char *at = text.data(), *const end = at + text.size(); at <= end;) {
    std::uint32_t fault = 0;
    const auto read = std::from_chars(at, end, fault);
    if (read.ec != std::errc{} || (read.ptr != end && *read.ptr != ',')) return wrong();
    faults.push_back(fault);
    at = read.ptr + 1;
  }
  std::ranges::sort(faults);
  if (std::ranges::adjacent_find(faults) != faults.end()) return wrong();
  return std::optional(faults);
}

// As one word of a shell.
std::string quoted(const std::string& word) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./=:,+@%";
  if (!word.empty() && word.find_first_not_of(kPlain) == word.npos) return word;
  std::string text = "'";
  for (const char letter : word) text += letter == '\'' ? "'\\''" : std::string(1, letter);
  return text + "'";
}

std::string replay_command(const SimulateArguments& options, std::uint64_t seed,
                           const PartOfRun& part) {
  auto command = fmt::format("isthmus simulate {} --seed {}", quoted(options.name()), seed);
  if (part.faults)
    command += part.faults->empty() ? " --faults none"
                                    : fmt::format(" --faults {}", fmt::join(*part.faults, ","));
  if (part.sites) command += fmt::format(" --sites {}", *part.sites);
  if (part.outer_steps) command += fmt::format(" --steps {}", *part.outer_steps);
  return command;
}

void print_faults(const std::vector<inter::sim::Fault>& faults,
                  const std::vector<std::uint32_t>& places, std::string_view margin) {
  for (const auto i : places)
    fmt::print("{}{:>4}  {}: {}\n", margin, i, time_text_of(faults[i]), text_of(faults[i]));
}

// What is wrong with a run; "": nothing.
std::string violation_of(const Outcome& outcome) {
  if (!outcome.violations.empty()) return outcome.violations.front();
  return outcome.finished ? "" : "the run did not finish";
}

struct ShrunkSeed {
  inter::sim::Shrunk shrunk;
  std::vector<inter::sim::Fault> faults;
};

// Errors: those of run_apart.
Result<ShrunkSeed> shrink_seed(const Scenario& scenario, std::uint64_t seed,
                               const std::string& violation, const std::atomic<bool>& stop) {
  std::optional<Error> failed;
  const auto run = [&](const PartOfRun& part) -> std::optional<std::string> {
    const auto said = run_apart(
        [&] { return violation_of(inter::sim::run_federation(scenario, seed, false, part)); },
        stop);
    if (!said) {
      failed = said.error();
      return std::nullopt;
    }
    if (said->empty()) return std::nullopt;
    return *said;
  };
  ShrunkSeed result;
  result.faults = inter::sim::faults_of(scenario, seed);
  result.shrunk = inter::sim::shrink(
      run, violation, static_cast<std::uint32_t>(result.faults.size()), scenario.sites,
      inter::sim::least_sites(scenario), scenario.outer_steps, [&] { return failed.has_value(); });
  if (failed) return *failed;
  return result;
}

void print_shrunk(const SimulateArguments& options, std::uint64_t seed,
                  const ShrunkSeed& seed_shrunk, std::string_view margin) {
  const auto& [shrunk, faults] = seed_shrunk;
  fmt::print("{}shrunk from {} to {} in {}:\n", margin, counted(faults.size(), "fault"),
             shrunk.part.faults->size(), counted(shrunk.runs, "run"));
  print_faults(faults, *shrunk.part.faults, margin);
  fmt::print("{}  {}\n{}replay: {}\n", margin, shrunk.violation, margin,
             replay_command(options, seed, shrunk.part));
}

// --- One seed

Result<PartOfRun> part_of(const SimulateArguments& options, const Scenario& scenario) {
  PartOfRun part;
  if (!options.faults.empty()) {
    ISTHMUS_TRY(part.faults, parse_faults(options.faults));
    const auto all = inter::sim::faults_of(scenario, options.seed).size();
    if (part.faults && !part.faults->empty() && part.faults->back() >= all)
      return Error{
          ErrorCode::invalid_argument,
          fmt::format("--faults {}: this run has {}", part.faults->back(),
                      all == 0 ? std::string("none") : counted(all, "fault") + ", counted from 0")};
  }
  if (options.sites > scenario.sites)
    return Error{
        ErrorCode::invalid_argument,
        fmt::format("--sites {}: this run has {}", options.sites, counted(scenario.sites, "site"))};
  if (options.steps > scenario.outer_steps)
    return Error{ErrorCode::invalid_argument,
                 fmt::format("--steps {}: this run has {}", options.steps,
                             counted(scenario.outer_steps, "outer step"))};
  if (options.sites > 0) part.sites = options.sites;
  if (options.steps > 0) part.outer_steps = options.steps;
  return part;
}

nlohmann::ordered_json json_of(const SimulateArguments& options, const Outcome& outcome) {
  nlohmann::ordered_json json;
  json["scenario"] = options.name();
  json["seed"] = options.seed;
  json["finished"] = outcome.finished;
  json["violations"] = outcome.violations;
  json["steps"] = outcome.steps;
  json["simulated_seconds"] = outcome.simulated_seconds;
  json["events"] = outcome.events;
  json["counters"] = outcome.counters;
  json["faults"] = nlohmann::ordered_json::array();
  for (const auto i : outcome.happened)
    json["faults"].push_back({{"place", i},
                              {"when", time_text_of(outcome.faults[i])},
                              {"what", text_of(outcome.faults[i])}});
  json["log_hash"] = outcome.log_hash;
  if (options.log) {
    json["log"] = nlohmann::ordered_json::array();
    for (const auto& event : outcome.history.log) json["log"].push_back(event.line);
  }
  return json;
}

ExitCode run_one(const SimulateArguments& options, const Scenario& scenario) {
  const auto part = part_of(options, scenario);
  if (!part) return fail(part.error());
  const auto outcome = inter::sim::run_federation(scenario, options.seed, options.log, *part);
  const auto violation = violation_of(outcome);
  if (options.json) {
    fmt::print(
        "{}\n",
        json_of(options, outcome).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
    return violation.empty() ? ExitCode::done : ExitCode::failed;
  }
  for (const auto& event : outcome.history.log) fmt::print("{}\n", event.line);
  fmt::print("{} with seed {}: {}, {} in {:.1f} simulated seconds, {}\n", options.name(),
             options.seed, counted(part->sites.value_or(scenario.sites), "site"),
             counted(outcome.steps, "outer step"), outcome.simulated_seconds,
             counted(outcome.events, "event"));
  if (!options.faults.empty() || !violation.empty())
    print_faults(outcome.faults, outcome.happened, "");
  std::size_t width = 0;
  for (const auto& [name, count] : outcome.counters) width = std::max(width, name.size());
  for (const auto& [name, count] : outcome.counters)
    fmt::print("  {:<{}} {}\n", name, width, count);
  for (const auto& violated : outcome.violations) fmt::print("  VIOLATED: {}\n", violated);
  fmt::print("  log {}\n{}\n", outcome.log_hash,
             violation.empty()             ? "all invariants held"
             : !outcome.violations.empty() ? "invariants were violated"
                                           : "the run did not finish");
  if (violation.empty()) {
    if (options.shrink) fmt::print("there is nothing to shrink\n");
    return ExitCode::done;
  }
  if (options.shrink) {
    std::fflush(stdout);  // the children have copies of what is not written yet
    const auto shrunk = shrink_seed(scenario, options.seed, violation, catch_stop());
    if (!shrunk) return fail(shrunk.error());
    print_shrunk(options, options.seed, *shrunk, "");
  }
  return ExitCode::failed;
}

// --- Many

// Another build may do another thing with the same seed.
Result<std::string> identity_of(const SimulateArguments& options) {
  constexpr std::uint64_t kProgramBytesMax = std::uint64_t{1} << 32;
  const auto disk = make_system_disk();
  ISTHMUS_TRY(const auto program, read_file(*disk, "/proc/self/exe", kProgramBytesMax));
  auto identity = fmt::format("{} {}", security::blake2b(program).hex(), options.name());
  if (const auto file = read_file(*disk, options.scenario, kProgramBytesMax);
      file && !options.storm)
    identity += " " + security::blake2b(*file).hex();
  return identity;
}

std::string record_path(const SimulateArguments& options) {
  if (!options.resume.empty()) return options.resume;
  auto name = options.storm ? "-storm" : options.scenario;  // there may be a scenario "storm"
  std::ranges::replace(name, '/', '-');
  return fmt::format("isthmus-{}.seeds", name);
}

class ManySeeds {
 public:
  ManySeeds(const SimulateArguments& options, const Scenarios& scenarios, SeedRecord& record)
      : options_(options), scenarios_(scenarios), record_(record) {}

  ExitCode run() {
    const auto& stop = catch_stop();
    const auto clock = make_system_clock();
    begun_ = clock->now();
    for (auto seed = options_.first_seed; seed <= last(); ++seed) count(seed);
    done_before_ = done_;
    std::optional<Error> error;
    if (done_ < options_.seeds) {
      ProgressLine line(stderr, *clock);
      auto next = options_.first_seed;
      SeedRuns runs;
      runs.processes =
          options_.cpus > 0 ? options_.cpus : std::max(1U, std::thread::hardware_concurrency());
      runs.next = [&]() -> std::optional<std::uint64_t> {
        while (next <= last() && record_.results().contains(next)) ++next;
        if (next > last()) return std::nullopt;
        return next++;
      };
      runs.run = [&](std::uint64_t seed) { return run_seed(seed); };
      runs.done = [&](const SeedResult& result) -> Result<void> {
        ISTHMUS_CHECK(record_.add(result));
        count(result.seed);
        if (result.violation.empty()) return {};
        line.clear();
        fmt::print(stderr, "seed {}: {}\n", result.seed, result.violation);
        return {};
      };
      runs.tick = [&] {
        seconds_ = seconds_of(clock->now() - begun_);
        line.show({.done = done_,
                   .total = options_.seeds,
                   .done_before = done_before_,
                   .failed = failed_.size(),
                   .seconds = seconds_});
      };
      std::fflush(stdout);
      if (auto ran = run_seeds(runs, stop); !ran) error = ran.error();
      runs.tick();
    }
    print_sum(stop);
    if (error && error->code == ErrorCode::cancelled) {
      // With --json the other stream has one object alone.
      fmt::print(options_.json ? stderr : stdout, "stopped; the same command goes on from here\n");
      return ExitCode::stopped;
    }
    if (error) return fail(*error);
    if (!options_.json) print_failed(stop);
    return failed_.empty() ? ExitCode::done : ExitCode::failed;
  }

 private:
  std::uint64_t last() const { return options_.first_seed + options_.seeds - 1; }

  SeedResult run_seed(std::uint64_t seed) const {
    const auto outcome = inter::sim::run_federation(scenarios_(seed), seed);
    return {.seed = seed,
            .events = outcome.events,
            .faults = outcome.happened.size(),
            .simulated_seconds = outcome.simulated_seconds,
            .violation = violation_of(outcome)};
  }

  void count(std::uint64_t seed) {
    const auto found = record_.results().find(seed);
    if (found == record_.results().end()) return;
    const auto& result = found->second;
    ++done_;
    events_ += result.events;
    faults_ += result.faults;
    simulated_seconds_ += result.simulated_seconds;
    if (!result.violation.empty()) failed_[result.seed] = result.violation;
  }

  void print_sum(const std::atomic<bool>& stop) const {
    const double pace = seconds_ > 0 ? static_cast<double>(done_ - done_before_) / seconds_ : 0;
    if (options_.json) {
      nlohmann::ordered_json json;
      json["scenario"] = options_.name();
      json["first_seed"] = options_.first_seed;
      json["seeds"] = options_.seeds;
      json["done"] = done_;
      json["events"] = events_;
      json["faults"] = faults_;
      json["simulated_seconds"] = simulated_seconds_;
      if (pace > 0) json["seeds_per_second"] = pace;  // else all were done before
      json["failed"] = nlohmann::ordered_json::array();
      std::size_t shrunk_seeds = 0;
      for (const auto& [seed, violation] : failed_) {
        nlohmann::ordered_json one = {{"seed", seed}, {"violation", violation}};
        PartOfRun part;
        if (shrunk_seeds++ < kShrunkMax && !stop)
          if (auto smaller = shrink_seed(scenarios_(seed), seed, violation, stop)) {
            part = std::move(smaller->shrunk.part);
            one["shrunk_to_faults"] = *part.faults;
            one["shrunk_violation"] = smaller->shrunk.violation;
          }
        one["replay"] = replay_command(options_, seed, part);
        json["failed"].push_back(std::move(one));
      }
      fmt::print("{}\n", json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
      return;
    }
    fmt::print(
        "{}, seeds {} to {}: {} of {} done, {} failed; {} faults, {} events, {} simulated{}\n",
        options_.name(), options_.first_seed, last(), done_, options_.seeds, failed_.size(),
        about_count(static_cast<double>(faults_)), about_count(static_cast<double>(events_)),
        about_duration(simulated_seconds_),
        pace > 0 ? fmt::format("; {:.1f} seeds/s", pace) : std::string());
  }

  void print_failed(const std::atomic<bool>& stop) const {
    std::size_t shrunk_seeds = 0;
    for (const auto& [seed, violation] : failed_) {
      fmt::print("seed {}: {}\n", seed, violation);
      if (shrunk_seeds++ < kShrunkMax && !stop) {
        std::fflush(stdout);
        if (const auto shrunk = shrink_seed(scenarios_(seed), seed, violation, stop)) {
          print_shrunk(options_, seed, *shrunk, "  ");
          continue;
        }
      }
      fmt::print("  replay: {}\n", replay_command(options_, seed, {}));
    }
  }

  const SimulateArguments& options_;
  const Scenarios& scenarios_;
  SeedRecord& record_;
  Nanoseconds begun_ = 0;
  double seconds_ = 0;
  std::uint64_t done_ = 0, done_before_ = 0, events_ = 0, faults_ = 0;
  double simulated_seconds_ = 0;
  std::map<std::uint64_t, std::string> failed_;
};

ExitCode run(const SimulateArguments& options) {
  const auto scenarios = Scenarios::of(options);
  if (!scenarios) return fail(scenarios.error());
  if (options.seeds == 0) return run_one(options, (*scenarios)(options.seed));
  const auto identity = identity_of(options);
  if (!identity) return fail(identity.error());
  const auto disk = make_system_disk();
  auto record = SeedRecord::open(*disk, record_path(options), *identity);
  if (!record) return fail(record.error());
  return ManySeeds(options, *scenarios, *record).run();
}

void add_options(Command command, SimulateArguments& options) {
  command.option("SCENARIO", options.scenario, "A TOML file, or a standard scenario");
  command.flag("--storm", options.storm,
               "Instead: of each seed a federation of its own, under every kind of fault");
  const auto seed =
      command.option("--seed", options.seed, "The same seed gives the same run, event for event")
          .type_name("NUMBER")
          .whole_number()
          .shows_default();
  const std::vector<Option> of_one = {
      seed,
      command
          .option("--faults", options.faults,
                  "Only these of the run's faults happen, and are listed: places in that list, as "
                  "3,9,12; all; or none")
          .type_name("LIST")
          .check([](const std::string& text) {
            const auto faults = parse_faults(text);
            return faults ? std::string() : faults.error().text();
          }),
      command.option("--sites", options.sites, "Only the first of its sites")
          .type_name("NUMBER")
          .in_range(1, 1000),
      command.option("--steps", options.steps, "Only so many outer steps")
          .type_name("NUMBER")
          .in_range(1, 1000),
      command.flag("--shrink", options.shrink,
                   "If it fails: find the shortest list of faults with which it does"),
      command.flag("--log", options.log, "The events of all gateways as well")};
  command.flag("--json", options.json, "One JSON object");
  const auto seeds =
      command.option("--seeds", options.seeds, "Run so many seeds; failing ones are shrunk")
          .type_name("NUMBER")
          .in_range(std::uint64_t{1}, std::uint64_t{1'000'000'000});
  for (const auto option : of_one) seeds.excludes(option);
  command.option("--first-seed", options.first_seed, "The first of them")
      .type_name("NUMBER")
      .whole_number()
      .shows_default()
      .needs(seeds);
  command.option("--cpus", options.cpus, "Processes at once (default: one for each CPU)")
      .type_name("NUMBER")
      .in_range(1, 4096)
      .needs(seeds);
  command
      .option("--resume", options.resume,
              "Record of the seeds that are done, which are not run again (default: "
              "isthmus-SCENARIO.seeds in this folder; of --storm isthmus--storm.seeds)")
      .type_name("FILE")
      .needs(seeds);
}

}  // namespace

void add_simulate(Command program) {
  const auto command = program.subcommand(
      "simulate",
      "Run whole federations, each in one thread and virtual time, with faults, from seeds");
  const auto options = std::make_shared<SimulateArguments>();
  add_options(command, *options);
  command.footer(fmt::format(
      "Exits with 1 when an invariant was violated or a run did not finish; with 4 while another "
      "process\nadds to the record of seeds, and with 6 when that is damaged.\n\n"
      "Standard scenarios:\n{}\nKeys of a file, all optional; from = \"NAME\" starts "
      "from a standard "
      "scenario:\n{}\nExample:\n  isthmus simulate storm --seed 7\n  isthmus simulate "
      "configs/scenarios/storm.toml --seed 7 --json\n  isthmus simulate --storm --seeds "
      "100000",
      standard_scenarios_text(), scenario_keys_text()));
  command.runs([options] { return run(*options); });
}

}  // namespace isthmus::launcher
