// What a site file without faults means, for a person about to start it.
#pragma once

#include <string>
#include <vector>

#include "launcher/site_file.h"
#include "security/roster.h"

namespace isthmus::launcher {

// What becomes of the federation when a site is lost (design.md, "How an outer step commits",
// rule 11): one line for each set of sites whose loss means the same.
std::vector<std::string> loss_lines(const security::Roster& roster, const SyncOptions& sync);

// The whole meaning in a few lines: model, steps, tokens, memory, bytes and seconds of an exchange,
// and with a roster the votes and losses. Of a file without faults.
std::string meaning_of(const SiteFile& file, const security::Roster* roster);

}  // namespace isthmus::launcher
