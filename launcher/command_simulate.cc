#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/counted.h"
#include "inter/sim/federation.h"
#include "launcher/command.h"
#include "launcher/scenario_file.h"

namespace isthmus::launcher {
namespace {

struct Options {
  std::string scenario;
  std::uint64_t seed = 1;
  bool json = false;
  bool log = false;
};

ExitCode run(const Options& options) {
  const auto scenario = read_scenario(options.scenario);
  if (!scenario) return fail(scenario.error());
  const auto outcome = inter::sim::run_federation(*scenario, options.seed, options.log);
  const bool good = outcome.finished && outcome.violations.empty();
  if (options.json) {
    nlohmann::ordered_json json;
    json["scenario"] = options.scenario;
    json["seed"] = options.seed;
    json["finished"] = outcome.finished;
    json["violations"] = outcome.violations;
    json["steps"] = outcome.steps;
    json["simulated_seconds"] = outcome.simulated_seconds;
    json["events"] = outcome.events;
    json["counters"] = outcome.counters;
    json["log_hash"] = outcome.log_hash;
    if (options.log) json["log"] = outcome.log;
    fmt::print("{}\n", json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  } else {
    for (const auto& line : outcome.log) fmt::print("{}\n", line);
    fmt::print("{} with seed {}: {}, {} in {:.1f} simulated seconds, {}\n", options.scenario,
               options.seed, counted(scenario->sites, "site"), counted(outcome.steps, "outer step"),
               outcome.simulated_seconds, counted(outcome.events, "event"));
    for (const auto& [name, count] : outcome.counters) fmt::print("  {:<24} {}\n", name, count);
    for (const auto& violation : outcome.violations) fmt::print("  VIOLATED: {}\n", violation);
    fmt::print("  log {}\n{}\n", outcome.log_hash,
               good                          ? "all invariants held"
               : !outcome.violations.empty() ? "invariants were violated"
                                             : "the run did not finish");
  }
  return good ? ExitCode::done : ExitCode::failed;
}

}  // namespace

void add_simulate(CLI::App& program, Action& action) {
  auto* command = program.add_subcommand(
      "simulate",
      "Run a whole federation in one thread and virtual time, with faults, from a seed");
  const auto options = std::make_shared<Options>();
  command->add_option("SCENARIO", options->scenario, "A TOML file, or a standard scenario")
      ->required();
  command->add_option("--seed", options->seed, "The same seed gives the same run, event for event")
      ->type_name("NUMBER")
      ->check(whole_number)
      ->capture_default_str();
  command->add_flag("--json", options->json, "One JSON object");
  command->add_flag("--log", options->log, "The events of all gateways as well");
  command->footer(
      fmt::format("Exits with 1 when an invariant was violated or the run did not finish.\n\n"
                  "Standard scenarios:\n{}\nKeys of a file, all optional; from = \"NAME\" starts "
                  "from a standard "
                  "scenario:\n{}\nExample:\n  isthmus simulate storm --seed 7\n  isthmus simulate "
                  "configs/scenarios/storm.toml --seed 7 --json",
                  standard_scenarios_text(), scenario_keys_text()));
  command->callback([options, &action] { action = [options] { return run(*options); }; });
}

}  // namespace isthmus::launcher
