// ProgressLine: how far many equal pieces of work are: a bar that is drawn over again on a
// terminal, else a line now and then.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

#include "base/clock.h"

namespace isthmus::launcher {

struct Progress {
  std::uint64_t done = 0, total = 0;
  std::uint64_t done_before = 0;  // of `done`: not in this run, which says nothing of its pace
  std::uint64_t failed = 0;
  double seconds = 0;  // of this run
  std::string_view things = "seeds";
  std::string (*amount)(double) = nullptr;  // how many of them, in words; null: as a number
};
// "[####----] 1200 of 4000 seeds, 53.1/s, 53 s left, 2 failed"; without a bar for a width of 0. In
// fewer columns than that takes the bar is shorter, then what matters least is left out.
std::string progress_text(const Progress& progress, int bar_width, std::size_t columns_max = 200);

class ProgressLine {
 public:
  // `out` is looked at: a terminal or not.
  ProgressLine(std::FILE* out, const Clock& clock);
  ~ProgressLine() { clear(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  // When it is time for it.
  void show(const Progress& progress);
  // Takes the bar away, for other text.
  void clear();

 private:
  std::FILE* out_;
  const Clock& clock_;
  const bool terminal_;
  Nanoseconds next_;
  bool drawn_ = false;
};

}  // namespace isthmus::launcher
