#include <fmt/format.h>

#include <cstdio>
#include <memory>

#include "base/disk.h"
#include "launcher/command.h"
#include "launcher/site_check.h"
#include "launcher/site_document.h"
#include "launcher/site_doubts.h"
#include "launcher/site_meaning.h"

namespace isthmus::launcher {
namespace {

struct CheckArguments {
  SiteArguments sites;
  bool document = false;
};

ExitCode run(const CheckArguments& options) {
  if (options.document) {
    fmt::print("{}", configuration_document());
    return ExitCode::done;
  }
  guard_secrets();  // it looks at each site's identity
  const auto sites = load_checked_sites(options.sites.paths, options.sites.overrides);
  if (!sites) return fail(sites.error());
  for (const auto& site : *sites)
    fmt::print("{}: site {} is fine\n{}", site.text.path, site.file().site.name,
               meaning_of(site.file(), site.roster ? &*site.roster : nullptr));
  for (const auto& doubt : doubts_about(*sites, this_machine())) fmt::print("note: {}\n", doubt);
  return ExitCode::done;
}

}  // namespace

void add_check(Command program) {
  const auto command = program.subcommand(
      "check",
      "Check site files whole, and say what they mean and what happens when a site is lost");
  const auto options =
      std::make_shared<CheckArguments>();  // outlives the parsing, held by the action
  add_site_arguments(command, options->sites, HowManySites::some).required(false);
  command.flag("--document", options->document, "Print docs/configuration.md instead");
  command.footer(
      "Every fault is told at once, with its place, what is allowed and the nearest name for a "
      "typo.\nExits with 2 when there is one. Several files are checked as sites of one run.\n\n"
      "Example:\n  isthmus check alpha.toml");
  command.runs([options] { return run(*options); },
               [options] {
                 const bool enough = options->document || !options->sites.paths.empty();
                 return std::string(enough ? "" : "FILE is required");
               });
}

}  // namespace isthmus::launcher
