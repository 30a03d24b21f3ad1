// What site files without faults may say, but seldom mean.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "launcher/site_check.h"

namespace isthmus::launcher {

// One sentence for each doubt, with the file's name; of files that are sites of one run. `machine`
// is the one that checks them, which need not be a site's.
std::vector<std::string> doubts_about(std::span<const CheckedSite> sites, const Machine& machine);

}  // namespace isthmus::launcher
