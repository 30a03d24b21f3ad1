#include "launcher/sites_together.h"

#include <fmt/format.h>

#include <filesystem>
#include <set>
#include <system_error>
#include <tuple>

#include "launcher/site_schema.h"
#include "runtime/family.h"

namespace isthmus::launcher {
namespace {

// Ports that a site takes on its machine.
struct TakenPort {
  std::string_view key;
  HostPort at;
};
std::vector<TakenPort> ports_of(const SiteFile& file) {
  std::vector<TakenPort> ports;
  if (const auto listen = parse_address(file.gateway.listen)) {
    ports.push_back({"gateway.listen", *listen});
    const auto bulk = static_cast<std::uint16_t>(listen->port + 1);
    ports.push_back({"gateway.listen", {listen->host, bulk}});
  }
  if (const auto metrics = parse_address(file.gateway.metrics))
    ports.push_back({"gateway.metrics", *metrics});
  return ports;
}

// The first port of each key that another site takes too: the key, the port, the other's key.
std::vector<std::tuple<std::string_view, int, std::string_view>> taken_ports(
    const SiteFile& mine, const SiteFile& theirs) {
  std::vector<std::tuple<std::string_view, int, std::string_view>> taken;
  for (const auto& own : ports_of(mine))
    for (const auto& other : ports_of(theirs))
      if (own.at.port == other.at.port && same_host(own.at, other.at) &&
          (taken.empty() || std::get<0>(taken.back()) != own.key))
        taken.emplace_back(own.key, own.at.port, other.key);
  return taken;
}

// An embedding for each position is part of the model.
bool learns_positions(const SiteFile& file) {
  const auto* family = runtime::find_family(file.model.config.family);
  return family != nullptr && family->objective == runtime::Objective::masked_tokens;
}

}  // namespace

std::string resolved_path(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::weakly_canonical(path, ignored).string();
}

void check_together(std::span<CheckedSite> sites) {
  const auto same_path = [](const std::string& a, const std::string& b) {
    return !a.empty() && resolved_path(a) == resolved_path(b);
  };
  for (std::size_t i = 1; i < sites.size(); ++i) {
    auto& text = sites[i].text;
    std::set<std::string> differing;  // keys, said once
    for (std::size_t j = 0; j < i; ++j) {
      const auto& other = sites[j].text;
      if (!text.is_toml || !other.is_toml) continue;
      const auto& mine = text.file;
      const auto& theirs = other.file;
      const auto fault = [&](std::string_view key, const std::string& what) {
        text.faults.add(text.region(key), fmt::format("{} {} {}", key, what, other.path));
      };
      if (!mine.site.name.empty() && mine.site.name == theirs.site.name)
        fault("site.name", "is the same as in");
      if (same_path(mine.site.run_dir, theirs.site.run_dir))
        fault("site.run_dir", "is the same folder as in");
      for (const auto& [key, port, other_key] : taken_ports(mine, theirs))
        fault(key, fmt::format("needs port {}{}, which {} takes in", port,
                               key == "gateway.listen" ? " (it uses its own and the next)" : "",
                               other_key));
      const auto differ = [&](const std::string& key, const std::string& own,
                              const std::string& others) {
        if (differing.insert(key).second)
          text.faults.add(text.region(key),
                          fmt::format("{} = {} here and {} in {}; it must be equal at all sites",
                                      key, own, others, other.path));
      };
      if (learns_positions(mine) && learns_positions(theirs) &&
          mine.model.config.sequence_max != theirs.model.config.sequence_max)
        differ("model.context", std::to_string(mine.model.config.sequence_max),
               std::to_string(theirs.model.config.sequence_max));
      for (const auto& key : site_keys())
        if (key.shared && key.value_text(mine) != key.value_text(theirs))
          differ(key.full_name(), key.value_text(mine), key.value_text(theirs));
    }
  }
}

}  // namespace isthmus::launcher
