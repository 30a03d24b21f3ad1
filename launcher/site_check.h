// What must hold between the keys of a site file, and between it, this machine and the roster.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/disk.h"
#include "launcher/site_file.h"
#include "security/roster.h"

namespace isthmus::launcher {

// What the check knows of the machine, so that tests can say it.
struct Machine {
  std::vector<int> cpus = {};  // this process may use
  Nanoseconds unix_time = 0;
  double memory_bytes = 0;  // 0: unknown
  // That TCP may be asked for (net.ipv4.tcp_available_congestion_control); none: unknown.
  std::vector<std::string> congestion_controls = {};
  std::function<bool(const std::string& host)> is_here = {};  // none: nothing is known of hosts
};

Machine this_machine();

// Adds a fault for each rule that the values break between each other: sizes that must divide, keys
// that have no effect or exclude each other, CPUs that are not there, ports that collide.
void check_values(SiteText& text, const Machine& machine);

// Adds a fault for each file that the site needs and cannot be read, is too short to train on, or
// is no model that fits. A model that is there fills `text.file.model.config`.
void check_files(SiteText& text, Disk& disk);

// Reads one site file and checks its values on this machine: what a rank or an evaluation needs,
// neither roster nor secrets. Errors: invalid_argument, with the text of all faults.
Result<SiteFile> load_site(const std::string& path, std::span<const std::string> overrides);

struct CheckedSite {
  SiteText text;
  std::optional<security::Roster> roster = std::nullopt;  // when it can be used
  std::string roster_faults = {};                         // in its own text, as Faults::text

  const SiteFile& file() const { return text.file; }
  bool fault_free() const { return text.faults.empty() && roster_faults.empty(); }
};

// Looks at operator key, roster and identity, each for itself, and adds a fault for each thing in
// which file, roster and identity disagree.
void check_trust(CheckedSite& checked, const Disk& disk, const Machine& machine);

// All of the above.
CheckedSite check_site(SiteText text, Disk& disk, const Machine& machine);

// Reads and checks site files as those of one run, on this machine (also: sites_together.h).
// Errors: invalid_argument with the text of all faults of all files.
Result<std::vector<CheckedSite>> load_checked_sites(std::span<const std::string> paths,
                                                    std::span<const std::string> overrides);

}  // namespace isthmus::launcher
