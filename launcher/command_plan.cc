#include <fmt/format.h>

#include <cstdio>
#include <memory>

#include "launcher/command.h"
#include "launcher/site_check.h"
#include "launcher/site_plan.h"

namespace isthmus::launcher {
namespace {

struct PlanArguments {
  SiteArguments site;
  bool json = false;
};

ExitCode run(const PlanArguments& options) {
  guard_secrets();  // the check looks at the site's identity
  auto sites = load_checked_sites(options.site.paths, options.site.overrides);
  if (!sites) return fail(sites.error());
  const auto& site = sites->front();
  const auto plan = plan_of(site.file(), site.roster ? site.roster->sites.size() : 1,
                            this_machine().memory_bytes);
  fmt::print("{}", options.json ? json_of(plan) + "\n" : text_of(plan));
  return ExitCode::done;
}

}  // namespace

void add_plan(Command program) {
  const auto command = program.subcommand(
      "plan",
      "Memory that a site will need, by kind, and what it writes, before anything is started");
  const auto options = std::make_shared<PlanArguments>();
  add_site_arguments(command, options->site, HowManySites::one);
  command.flag("--json", options->json, "One JSON object; bytes");
  command.footer(
      "Also what recomputation (train.recompute) saves and costs.\n\n"
      "Example:\n  isthmus plan alpha.toml\n  isthmus plan alpha.toml --set train.recompute=all");
  command.runs([options] { return run(*options); });
}

}  // namespace isthmus::launcher
