// What must hold between several site files that are to run together on one machine.
#pragma once

#include <span>
#include <string>

#include "launcher/site_check.h"

namespace isthmus::launcher {

// Adds a fault where two have the same name, folder or port, and where a shared key differs.
void check_together(std::span<CheckedSite> sites);

// One name for a path, however it is written.
std::string resolved_path(const std::string& path);

}  // namespace isthmus::launcher
