// What a benchmark prints: an aligned line per figure for people, or with --json one object
// {"name": …, "value": …, "unit": …} a line for programs.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <string_view>

#include "base/event_log.h"

namespace isthmus::bench {

class Report {
 public:
  explicit Report(bool json) : json_(json) {}
  bool for_programs() const { return json_; }

  void heading(std::string_view text) const {
    if (!json_) fmt::print("\n{}\n", text);
    std::fflush(stdout);
  }
  void row(std::string_view name, double value, std::string_view unit) const {
    if (json_)
      fmt::print("{{\"name\": {}, \"value\": {:.6g}, \"unit\": {}}}\n", json_string(name), value,
                 json_string(unit));
    else
      fmt::print("  {:<44} {:>10.4g} {}\n", name, value, unit);
    std::fflush(stdout);
  }

 private:
  bool json_;
};

}  // namespace isthmus::bench
