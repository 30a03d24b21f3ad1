#include "launcher/site_meaning.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string_view>

#include "base/counted.h"
#include "base/listed.h"
#include "inter/returning_sites.h"
#include "launcher/site_memory.h"
#include "launcher/units.h"
#include "runtime/family.h"

namespace isthmus::launcher {

std::vector<std::string> loss_lines(const security::Roster& roster, const SyncOptions& sync) {
  const auto voters = roster.voters();
  const auto majority = voters / 2 + 1;
  const auto sites = roster.sites.size();
  std::map<std::string, std::vector<std::string>> lost_with;  // outcome → the sites that cause it
  std::vector<std::string> order;
  for (const auto& lost : roster.sites) {
    const auto voters_left = voters - (lost.voter ? 1 : 0);
    std::string outcome;
    if (sites == 1)
      outcome = "the run stops; it goes on when the site returns";
    else if (voters_left < majority)
      outcome = fmt::format(
          "nothing commits until it returns: {} of {} is no majority. Each other site trains on "
          "for {} past the last agreed state, then waits",
          voters_left, counted(voters, "voter"),
          counted(sync.max_lead * sync.inner_steps, "inner step"));
    else if (static_cast<std::int64_t>(sites - 1) < sync.min_sites)
      outcome = fmt::format(
          "nothing commits until it returns: min_sites = {}, and {} left", sync.min_sites,
          sites - 1 == 1 ? std::string("1 site is") : fmt::format("{} sites are", sites - 1));
    else
      outcome = "the others go on; its work is used when it returns";
    if (lost_with[outcome].empty()) order.push_back(outcome);
    lost_with[outcome].push_back(lost.name);
  }
  std::vector<std::string> lines;
  if (voters > 1)
    lines.push_back(fmt::format("the run begins when all {} voters are here", voters));
  for (const auto& outcome : order) {
    const auto& names = lost_with[outcome];
    lines.push_back(names.size() == 1
                        ? fmt::format("if {} is lost: {}", names.front(), outcome)
                        : fmt::format("if any one of {} is lost: {}", listed(names), outcome));
  }
  if (voters == 2 && sites == 2)
    lines.push_back(fmt::format(
        "to let one site go on without the other, give it the only vote (voter = false at the "
        "other, in the roster){}",
        sync.min_sites > 1 ? " and set min_sites = 1" : ""));
  else if (voters > 2)
    lines.push_back(fmt::format("voters that may be lost at the same time: {}", voters - majority));
  return lines;
}

namespace {

constexpr double kStepsKept = 3;

// How long it takes to send so many bytes to each of the other sites, as far as limits say it: they
// are of all links together.
std::string rates_text(const GatewayOptions& gateway, double bytes, std::size_t others) {
  constexpr std::size_t kWindowsShown = 4;
  const auto to_all = others == 1   ? std::string()
                      : others == 2 ? std::string(" to both")
                                    : fmt::format(" to all {}", others);
  const auto at = [&](std::int64_t rate) {
    return rate == 0 ? std::string("as fast as the line goes")
                     : fmt::format("{}{} at {}",
                                   about_duration(8 * bytes * static_cast<double>(others) /
                                                  static_cast<double>(rate)),
                                   to_all, exact_rate(rate));
  };
  const auto& windows = gateway.windows;
  if (windows.empty()) return gateway.rate_limit > 0 ? "; " + at(gateway.rate_limit) : "";
  std::string text;
  if (windows.size() > kWindowsShown) {
    const auto [least, most] = std::ranges::minmax(windows, {}, [](const RateWindow& w) {
      return static_cast<std::uint64_t>(w.rate_limit) - 1;
    });
    text = fmt::format("; in {} windows {}", windows.size(), at(least.rate_limit));
    if (most.rate_limit != least.rate_limit) text += " to " + at(most.rate_limit);
  } else {
    for (const auto& window : windows)
      text += fmt::format("; {} from {} to {}", at(window.rate_limit), time_of_day(window.from),
                          time_of_day(window.to));
  }
  if (!cover_the_day(windows)) text += fmt::format("; else {}", at(gateway.rate_limit));
  return text + fmt::format(" (time of {})", gateway.zone.empty() ? "this machine" : gateway.zone);
}

}  // namespace

std::string meaning_of(const SiteFile& file, const security::Roster* roster) {
  std::string out;
  const auto line = [&out](std::string_view name, const std::string& text) {
    out += fmt::format("  {:<10} {}\n", name, text);
  };
  const auto& model = file.model.config;
  const auto parameters = runtime::parameter_count(model);
  line("model",
       fmt::format("{} of {} parameters: {}, hidden {}, {} over {}{}{}", model.family,
                   about_count(static_cast<double>(parameters)), counted(model.layers, "layer"),
                   model.hidden, counted(model.heads, "head"), model.kv_heads,
                   model.experts == 0
                       ? ""
                       : fmt::format(", {} of which a token takes {}",
                                     counted(model.experts, "expert"), model.experts_per_token),
                   file.model.from.empty() ? "" : ", from " + file.model.from));
  const auto tuning = file.fine_tuning();
  const auto trained = runtime::trained_parameter_count(model, tuning);
  if (tuning.lora.rank > 0)
    line("lora",
         fmt::format("{} parameters train: adapters of rank {}, alpha {} beside {}",
                     about_count(static_cast<double>(trained)), tuning.lora.rank, tuning.lora.alpha,
                     counted(runtime::adapted_modules(tuning, model).size(), "product")));
  else if (trained < parameters)
    line("frozen", fmt::format("all but {} parameters", about_count(static_cast<double>(trained))));
  const auto tokens = file.tokens_per_inner_step();
  line(
      "steps",
      fmt::format(
          "{} of {}; {} tokens an inner step, {} in all{}",
          counted(file.sync.outer_steps, "outer step"),
          counted(file.sync.inner_steps, "inner step"), about_count(static_cast<double>(tokens)),
          about_count(static_cast<double>(tokens) * static_cast<double>(file.inner_steps_total())),
          runtime::objective_of(model) == runtime::Objective::next_token
              ? ""
              : fmt::format("; {:.3g} % of them hidden, and predicted", 100 * file.masking.share)));
  const auto ranks = file.mesh.ranks();
  line("ranks",
       fmt::format("{}{} {}", counted(ranks, "rank"), ranks == 1 ? "," : ", each",
                   file.train.threads == 0 ? std::string("a thread for each CPU it may use")
                                           : "of " + counted(file.train.threads, "thread")));
  const auto memory = memory_of(file, roster == nullptr ? 1 : roster->sites.size());
  const auto of_ranks = static_cast<double>(ranks) * memory.rank();
  auto needs =
      fmt::format("about {} for {}", about_bytes(memory.rank()),
                  ranks == 1 ? std::string("the rank") : fmt::format("each of {} ranks", ranks));
  if (roster == nullptr) {
    line("memory", needs);
    line("alone", "no roster: this site trains by itself, without a gateway");
    return out;
  }
  needs += fmt::format(", {} for the gateway, {} shared by both: {} in all",
                       about_bytes(memory.gateway_alone()), about_bytes(memory.gateway_shared),
                       about_bytes(of_ranks + memory.gateway()));
  line("memory", needs);
  const double bytes = 4.0 * static_cast<double>(trained);
  const double coded = bytes * codec_share(file.sync.codec);
  std::string exchange = fmt::format("{} of parameters, about {} on the wire to each other site",
                                     about_bytes(bytes), about_bytes(coded));
  if (const auto others = roster->sites.size() - 1; others > 0)
    exchange += rates_text(file.gateway, coded, others);
  if (file.gateway.polite) exchange += "; it yields to whoever else uses the line";
  line("exchange", exchange);
  // Two states, two feedbacks, and what every site contributed to the steps that some may still ask
  // for: a few, and more while a site that was away comes back.
  const double vectors = file.sync.outer == inter::OuterRuleKind::nesterov ? 6 : 4;
  const double step = static_cast<double>(roster->sites.size()) * coded;
  const double gateway = vectors * bytes + kStepsKept * step;
  const auto of_returns = static_cast<double>(inter::steps_kept_for_return(
                              static_cast<std::uint64_t>((vectors / 2 - 1) * bytes),
                              static_cast<std::uint64_t>(step))) *
                          step;
  // Parameters and the two moments of AdamW; the best one too, where there is any, and one more
  // while it is written, which has up to two vectors besides when the run is stopped
  // (runtime::TrainedOn).
  const auto count = file.train.checkpoints_kept + (file.train.evaluate_every > 0 ? 2 : 1);
  const double checkpoints = 3 * bytes * static_cast<double>(count) + 2 * bytes;
  line("disk",
       fmt::format("{} for the gateway, at most {} more while a site returns, {} for checkpoints; "
                   "logs grow with the steps",
                   about_bytes(gateway), about_bytes(of_returns), about_bytes(checkpoints)));
  std::vector<std::string> voters;
  for (const auto& site : roster->sites)
    if (site.voter) voters.push_back(site.name);
  line("votes", fmt::format("{} of {} must accept a step ({}), made of at least {}",
                            voters.size() / 2 + 1, counted(voters.size(), "voter"), listed(voters),
                            counted(file.sync.min_sites, "contribution")));
  for (const auto& loss : loss_lines(*roster, file.sync)) line("", loss);
  return out;
}

}  // namespace isthmus::launcher
