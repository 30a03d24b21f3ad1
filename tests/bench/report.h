// What a benchmark prints: an aligned line per figure for people, or with --json one object
// {"name": …, "value": …, "unit": …, what is measured…} a line for programs. What has no dimension
// has the unit "1" there, and none for people.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include "base/event_log.h"

namespace isthmus::bench {

class Report {
 public:
  // `measured`: what each figure is of, for programs.
  explicit Report(bool json, std::initializer_list<Field> measured = {}) : json_(json) {
    for (const auto& field : measured)
      measured_ += fmt::format(", {}: {}", json_string(field.name), json_value(field));
  }
  // The same for figures that are of these as well.
  Report of(std::initializer_list<Field> measured) const {
    Report more(json_, measured);
    more.measured_ = measured_ + more.measured_;
    return more;
  }
  bool for_programs() const { return json_; }

  void heading(std::string_view text) const {
    if (!json_) fmt::print("{}{}\n", std::exchange(any_, true) ? "\n" : "", text);
    std::fflush(stdout);
  }
  void row(std::string_view name, double value, std::string_view unit) const {
    if (json_)
      fmt::print("{{\"name\": {}, \"value\": {:.6g}, \"unit\": {}{}}}\n", json_string(name), value,
                 json_string(unit), measured_);
    else
      fmt::print("  {:<50} {:>10.4g}{}{}\n", name, value, unit == "1" ? "" : " ",
                 unit == "1" ? "" : unit);
    std::fflush(stdout);
  }

 private:
  static inline bool any_ = false;  // heading above
  bool json_;
  std::string measured_;
};

// The status of a benchmark, which has measured nothing when nobody can read it.
inline int after_output(int status) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return status;
  std::fputs("cannot write the output: is the disk full?\n", stderr);
  return status == 0 ? 1 : status;
}

}  // namespace isthmus::bench
