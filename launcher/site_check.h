// What must hold between the keys of a site file, and between it, this machine and the roster.
#pragma once

#include <cstddef>
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
};

Machine this_machine();

// Adds a fault for each rule that the values break between each other: sizes that must divide, keys
// that have no effect or exclude each other, CPUs that are not there, ports that collide.
void check_values(SiteText& text, const Machine& machine);

// Adds a fault for each file that the site needs and cannot be read, is too short to train on, or
// is no model that fits. A model that is there fills `text.file.model.config`.
void check_files(SiteText& text, Disk& disk);

// Reads and verifies the roster and the identity, and adds a fault for each thing in which file,
// roster and identity disagree. The roster, when it can be used.
std::optional<security::Roster> check_roster_of(SiteText& text, const Disk& disk,
                                                const Machine& machine);
void check_against_roster(SiteText& text, const security::Roster& roster);

// Reads one site file and checks its values on this machine: what a rank or an evaluation needs,
// neither roster nor secrets. Errors: invalid_argument, with the text of all faults.
Result<SiteFile> load_site(const std::string& path, std::span<const std::string> overrides);

struct CheckedSite {
  SiteText text;
  std::optional<security::Roster> roster;

  const SiteFile& file() const { return text.file; }
  bool fault_free() const { return text.faults.empty(); }
};

// All of the above.
CheckedSite check_site(SiteText text, Disk& disk, const Machine& machine);

// Several files that are to run together on one machine: adds a fault where two have the same name,
// folder or port, and where a shared key differs.
void check_together(std::span<CheckedSite> sites);

// Reads and checks site files as those of one run, on this machine. Errors: invalid_argument with
// the text of all faults of all files.
Result<std::vector<CheckedSite>> load_checked_sites(std::span<const std::string> paths,
                                                    std::span<const std::string> overrides);

}  // namespace isthmus::launcher
