#include "launcher/site_doubts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "base/counted.h"
#include "base/listed.h"
#include "launcher/site_schema.h"
#include "launcher/units.h"

namespace isthmus::launcher {
namespace {

bool is_loopback(std::string_view host) {
  return host == "localhost" || host.starts_with("127.") || host == "::1" || host == "[::1]";
}

void about_one(const CheckedSite& site, const Machine& machine, std::vector<std::string>& doubts) {
  const auto& file = site.file();
  const auto doubt = [&](const std::string& what) {
    doubts.push_back(fmt::format("{}: {}", site.text.path, what));
  };
  if (const auto metrics = parse_address(file.gateway.metrics);
      metrics && !is_loopback(metrics->host))
    doubt(
        fmt::format("gateway.metrics = \"{}\" shows the run to whoever can reach it: nobody is "
                    "asked for a key there",
                    file.gateway.metrics));
  const auto& control = file.gateway.congestion_control;
  if (const auto& known = machine.congestion_controls;
      site.text.written("gateway.congestion_control") && control != "system" && !known.empty() &&
      std::ranges::find(known, control) == known.end())
    doubt(fmt::format(
        "gateway.congestion_control = \"{}\" is not in force on this machine, which has "
        "{}: there it would be the system's choice",
        control, fmt::join(known, ", ")));
  if (const auto listen = parse_address(file.gateway.listen);
      listen && machine.is_here && !machine.is_here(listen->host))
    doubt(fmt::format(
        "gateway.listen = \"{}\": that is no address of this machine, so no gateway can "
        "listen there; right only if it runs on another machine. \"0.0.0.0:{}\" is all "
        "addresses of its machine",
        file.gateway.listen, listen->port));
  const auto* self = site.roster ? site.roster->find(file.site.name) : nullptr;
  if (self == nullptr) return;
  const auto& all = site.roster->sites;
  const auto first = std::ranges::find_if(all, [](const auto& other) { return other.voter; });
  if (!file.model.from.empty() && first != all.end() && first->name != file.site.name)
    doubt(
        fmt::format("a run begins with the parameters of its first voter, {}: model.from = \"{}\" "
                    "counts only if {} has the same",
                    first->name, file.model.from, first->name));
  // As far apart as heartbeats get (inter/gateway.cc).
  constexpr double kControlBits = 2000;
  const auto peers = all.size() - 1;
  const auto slowest = file.gateway.rate_limit_min();
  const double share =
      slowest > 0 ? kControlBits * static_cast<double>(peers) / static_cast<double>(slowest) : 0;
  if (share > 0.1)
    doubt(
        fmt::format("{} = \"{}\": what keeps the links to {} alive takes about "
                    "{:.0f} % of it",
                    slowest == file.gateway.rate_limit ? "gateway.rate_limit"
                                                       : "rate_limit of [[gateway.windows]]",
                    exact_rate(slowest), counted(peers, "site"), 100 * std::min(share, 1.0)));
  const auto listen = parse_address(file.gateway.listen);
  const auto told = parse_address(self->gateways.front().address);
  if (listen && told && listen->port != told->port)
    doubt(
        fmt::format("gateway.listen = \"{}\", but the roster sends others to {}: right only if "
                    "something in between passes that port, and the next, on to this one",
                    file.gateway.listen, self->gateways.front().address));
}

// Of two sites that only dial neither reaches the other.
void about_roster(const CheckedSite& site, std::vector<std::string>& doubts) {
  std::vector<std::string> dialed, dialing;
  for (const auto& each : site.roster->sites) {
    const bool has_address = std::ranges::any_of(
        each.gateways, [](const auto& gateway) { return !gateway.address.empty(); });
    (has_address ? dialed : dialing).push_back(each.name);
  }
  if (dialing.size() < 2 || dialed.empty()) return;
  doubts.push_back(
      fmt::format("{}: {} have no address, so there is no link between them: {} {} on what they "
                  "contribute, besides what is said of an exchange above",
                  site.file().site.roster, listed(dialing), listed(dialed),
                  dialed.size() == 1 ? "sends" : "send"));
}

std::set<std::string> texts_of(const SiteFile& file) {
  std::set<std::string> paths;
  for (const auto& text : file.data.train) paths.insert(text.path);
  return paths;
}

}  // namespace

std::vector<std::string> doubts_about(std::span<const CheckedSite> sites, const Machine& machine) {
  std::vector<std::string> doubts;
  const auto with_roster =
      std::ranges::find_if(sites, [](const auto& site) { return site.roster.has_value(); });
  if (with_roster != sites.end()) about_roster(*with_roster, doubts);
  for (std::size_t i = 0; i < sites.size(); ++i) {
    about_one(sites[i], machine, doubts);
    for (std::size_t j = 0; j < i; ++j)
      if (const auto& mine = sites[i].file(), &theirs = sites[j].file();
          mine.train.seed == theirs.train.seed && texts_of(mine) == texts_of(theirs))
        doubts.push_back(fmt::format(
            "{} and {}: the same text with the same train.seed = {}: both train on the very same "
            "batches; give each a seed of its own",
            sites[j].text.path, sites[i].text.path, mine.train.seed));
  }
  return doubts;
}

}  // namespace isthmus::launcher
