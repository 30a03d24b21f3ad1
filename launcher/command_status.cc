#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "launcher/command.h"
#include "launcher/monitor.h"
#include "launcher/site_file.h"
#include "launcher/status_source.h"
#include "launcher/stop_request.h"
#include "launcher/terminal.h"

namespace isthmus::launcher {
namespace {

struct StatusArguments {
  SiteArguments sites;
  bool json = false;
};

struct Watched {
  std::string path;
  SiteHistory history;
  std::unique_ptr<StatusSource> source;
};

// Without files: every site file in this folder. A file with faults is still good to find its site.
Result<std::vector<Watched>> watched_sites(const SiteArguments& arguments) {
  auto paths = arguments.paths;
  const bool search = paths.empty();
  if (search) {
    std::error_code ignored;
    for (const auto& entry : std::filesystem::directory_iterator(".", ignored))
      if (entry.path().extension() == ".toml") paths.push_back(entry.path().filename().string());
    std::sort(paths.begin(), paths.end());
  }
  std::vector<Watched> sites;
  for (const auto& path : paths) {
    ISTHMUS_TRY(const auto text, read_site_file(path, arguments.overrides));
    if (text.faults.has_override()) return Error{ErrorCode::invalid_argument, text.fault_text()};
    const auto& site = text.file.site;
    if (site.name.empty() || site.run_dir.empty()) {
      if (search) continue;  // another kind of file
      return Error{ErrorCode::invalid_argument, text.fault_text()};
    }
    sites.push_back({path, SiteHistory(site.name), make_status_source(text.file)});
  }
  if (sites.empty())
    return Error{ErrorCode::invalid_argument,
                 "which site? There is no site file in this folder: name one"};
  return sites;
}

ExitCode show_status(const StatusArguments& options) {
  auto sites = watched_sites(options.sites);
  if (!sites) return fail(sites.error());
  auto code = ExitCode::done;
  for (const auto& site : *sites) {
    const auto status = site.source->poll();
    if (status) {
      fmt::print("{}", options.json ? inter::to_json(*status) + "\n" : status_text(*status));
      continue;
    }
    if (const auto steps = site.source->complete_at()) {
      const nlohmann::ordered_json json = {
          {"site", site.history.name()}, {"complete", true}, {"outer_step", *steps}};
      if (options.json)
        fmt::print("{}\n", json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
      else
        fmt::print("{}: {}\n", site.history.name(), status.error().text());
      continue;
    }
    if (options.json) fmt::print("{}\n", error_json("site", site.history.name(), status.error()));
    code = fail(Error{status.error().code,
                      fmt::format("{} (site {})", site.path, site.history.name()), status.error()});
  }
  return code;
}

ExitCode show_top(const StatusArguments& options) {
  constexpr Nanoseconds kPollEvery = kSecond;
  constexpr Nanoseconds kLook = 100 * kMillisecond;
  auto sites = watched_sites(options.sites);
  if (!sites) return fail(sites.error());
  const auto& stop = catch_stop();
  auto terminal = Terminal::open();
  if (!terminal)
    return fail(Error{terminal.error().code, "top needs a terminal (isthmus status does not)",
                      terminal.error()});
  const auto clock = make_system_clock();
  Nanoseconds next_poll = clock->now();
  for (bool draw = true; !stop;) {
    if (clock->now() >= next_poll) {
      for (auto& site : *sites) poll_into(site.history, *site.source);
      next_poll = clock->now() + kPollEvery;
      draw = true;
    }
    if (draw) {
      std::vector<SiteHistory> histories;
      for (const auto& site : *sites) histories.push_back(site.history);
      (*terminal)->draw(render_monitor(histories, {}, "q quits", (*terminal)->width(),
                                       (*terminal)->height(), (*terminal)->glyphs()));
    }
    const auto key = (*terminal)->read_key(kLook);
    if (key == Key::quit) break;
    draw = key == Key::resized;
  }
  return ExitCode::done;
}

}  // namespace

void add_status(Command program) {
  const auto command = program.subcommand("status", "Where running sites stand: links and ranks");
  const auto options = std::make_shared<StatusArguments>();
  add_site_arguments(command, options->sites, HowManySites::any_in_folder);
  command.flag("--json", options->json, "One JSON object a line for each site");
  command.footer(
      "In JSON, null is a number that there is not: the cap of a link without a rate_limit, a loss "
      "that is\nnot finite. While a site catches up, catching_up_to is the outer step that the "
      "others have done,\nand loss and speed of its ranks are null. A site that does not run has "
      "its name and an \"error\"\n(code, message) instead, and the exit code is 4; where its run "
      "is complete, it has its name,\n\"complete\": true and outer_step, and the exit code is "
      "0.\n\nExample:\n  isthmus status alpha.toml --json");
  command.runs([options] { return show_status(*options); });
}

void add_top(Command program) {
  const auto command = program.subcommand(
      "top", "The same, live on the terminal: a row for each link and each rank");
  const auto options = std::make_shared<StatusArguments>();
  add_site_arguments(command, options->sites, HowManySites::any_in_folder);
  command.footer(
      "q quits. Colour where the terminal has it and NO_COLOR is not set.\n\n"
      "Example:\n  isthmus top alpha.toml");
  command.runs([options] { return show_top(*options); });
}

}  // namespace isthmus::launcher
