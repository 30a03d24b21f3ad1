// The keys of [sync].
#include <vector>

#include "launcher/site_keys.h"

namespace isthmus::launcher {

std::vector<SiteKey> sync_keys() {
  using enum ValueKind;
  constexpr auto sync = &SiteFile::sync;

  return {
      {.section = "sync",
       .name = "inner_steps",
       .kind = whole_number,
       .field = field(sync, &SyncOptions::inner_steps),
       .min = 1,
       .max = 1e6,
       .unit = "inner steps",
       .meaning = "Between two outer steps.",
       .required = true,
       .example = "10",
       .shared = true},
      {.section = "sync",
       .name = "outer_steps",
       .kind = whole_number,
       .field = field(sync, &SyncOptions::outer_steps),
       .min = 1,
       .max = 1e6,
       .unit = "outer steps",
       .meaning = "Length of the run. A run that is complete stays as it is: to train on from its "
                  "result, give new run_dirs, and a checkpoint of it as model.from.",
       .required = true,
       .example = "24",
       .shared = true},
      {.section = "sync",
       .name = "outer",
       .kind = choice,
       .field = choice_field(sync, &SyncOptions::outer),
       .choices = {"average", "nesterov"},
       .meaning = "The outer optimizer: the weighted average of the sites, or Nesterov momentum on "
                  "it, which learns more per step in long runs and lags in short ones.",
       .example = "\"average\"",
       .shared = true},
      {.section = "sync",
       .name = "outer_rate",
       .kind = number,
       .field = field(sync, &SyncOptions::outer_rate),
       .min = 0,
       .max = 10,
       .above_min = true,
       .meaning = "Learning rate of the Nesterov outer optimizer.",
       .shared = true},
      {.section = "sync",
       .name = "outer_momentum",
       .kind = number,
       .field = field(sync, &SyncOptions::outer_momentum),
       .min = 0,
       .max = 0.9999,
       .meaning = "Momentum of the Nesterov outer optimizer.",
       .shared = true},
      {.section = "sync",
       .name = "codec",
       .kind = choice,
       .field = choice_field(sync, &SyncOptions::codec),
       .choices = {"none", "bf16", "int8"},
       .meaning = "How pseudo-gradients travel: f32, half of that, or a quarter (int8 in blocks of "
                  "256). What the codec loses is kept back and added to the next step; zstd "
                  "follows it where it gains.",
       .example = "\"int8\"",
       .shared = true},
      {.section = "sync",
       .name = "min_sites",
       .kind = whole_number,
       .field = field(sync, &SyncOptions::min_sites),
       .min = 1,
       .max = 1e6,
       .unit = "sites",
       .meaning = "Contributions that make an outer step worth committing. It is no quorum: a "
                  "majority of the voters is always needed as well.",
       .example = "2",
       .shared = true},
      {.section = "sync",
       .name = "absent_steps",
       .kind = whole_number,
       .field = field(sync, &SyncOptions::absent_steps),
       .min = 1,
       .max = 1e6,
       .unit = "outer steps",
       .meaning =
           "A site without a part in so many steps in a row is no longer waited for, until it "
           "returns.",
       .shared = true},
      {.section = "sync",
       .name = "max_lead",
       .kind = whole_number,
       .field = field(sync, &SyncOptions::max_lead),
       .min = 1,
       .max = 1000,
       .unit = "times inner_steps",
       .meaning = "How far a site that is cut off trains on past the last agreed state before it "
                  "waits.",
       .shared = true},
      {.section = "sync",
       .name = "straggler_wait",
       .kind = duration,
       .field = field(sync, &SyncOptions::straggler_wait),
       .min = 0,
       .max = 30.0 * 86400 * 1e9,
       .meaning = "How much longer than usual a step waits for a site that is late but makes "
                  "progress, at most.",
       .absent = "as long as the ranks of this site compute for a step, as it was measured (mean "
                 "and 4 deviations), 10 min at least"},
  };
}

}  // namespace isthmus::launcher
