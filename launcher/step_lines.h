// StepLines: what `launch` prints of a site's outer steps where there is no monitor: a line for
// each, with what was trained in it; while the site replays what the others did without it, where
// it stands instead.
#pragma once

#include <cstdint>
#include <string>

#include "launcher/event_tail.h"
#include "launcher/site_file.h"

namespace isthmus::launcher {

class StepLines {
 public:
  // `file` outlives it.
  explicit StepLines(const SiteFile& file) : file_(file) {}

  // Of the site's event log: how far behind the others its gateway is.
  void note(const LoggedEvent& event);
  // Of its metrics: "alpha outer step 3/24  loss 2.813  12.3 k tokens/s  waited 1.2 s"; "" when it
  // ends no outer step.
  std::string line_of(const LoggedEvent& metrics);

 private:
  std::string trained() const;

  const SiteFile& file_;
  LoggedEvent last_;               // inner step; of no id when there was none since the last line
  std::int64_t behind_until_ = 0;  // the outer step that the others had done; 0: not behind
};

}  // namespace isthmus::launcher
