// What the table of keys (launcher/site_schema.h) says to people: docs/configuration.md, the file
// that `isthmus init` writes, and the comments in configs/.
#pragma once

#include <map>
#include <string>

namespace isthmus::launcher {

// docs/configuration.md, whole.
std::string configuration_document();

// Values of keys as TOML: "site.name" → "\"alpha\"".
using SiteValues = std::map<std::string, std::string>;

// A site file to start from: every key with its meaning, unit and default; what has no default or
// is usually changed is set, from `values` or the table's example.
std::string starting_site_file(const SiteValues& values);

// A site file with these keys only, each explained in the same way: how configs/ is written.
std::string explained_site_file(const SiteValues& values);

}  // namespace isthmus::launcher
