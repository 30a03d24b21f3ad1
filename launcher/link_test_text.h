// What a link test found out, for people: text from the JSON of inter/link_test_report.h.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace isthmus::launcher {

// At most 80 columns wide, but for commands to run. A field that is not there, or of another kind,
// counts as 0 or "".
std::string link_test_text(const nlohmann::json& report);

}  // namespace isthmus::launcher
