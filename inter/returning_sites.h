// ReturningSites: sites that were away and come back, step by step behind the others: those that
// fetch a state, and those that replay from one. What they will ask for is kept, up to a bound, and
// the step at hand waits a little for who replays faster than it is made (PROTOCOL.md, "Return").
// Knows no links and no disk: it is told what peers say of themselves.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "inter/learnt.h"
#include "inter/wire.h"

namespace isthmus::inter {

// Steps whose named bytes are kept at most for sites that return, beyond those that are kept
// anyway. While a state is fetched the others move about as many bytes as it has; twice that, and
// something for what takes its time however small the model is. `step_bytes_max`: of what all sites
// contribute to one step.
std::uint64_t steps_kept_for_return(std::uint64_t state_bytes, std::uint64_t step_bytes_max);

class ReturningSites {
 public:
  explicit ReturningSites(std::uint64_t steps_kept_max) : steps_kept_max_(steps_kept_max) {}

  // It asks what there is of the state of `step`; `begins`: and goes on from it. The bytes of
  // `kept_from` and later are here.
  void asks_for_state(SiteId site, std::uint64_t step, bool begins, std::uint64_t kept_from);
  // Its word that it works on `step`, while this site works on `newest`.
  void works_on(SiteId site, std::uint64_t step, std::uint64_t newest, std::uint64_t kept_from,
                Nanoseconds now);
  void went_away(SiteId site, Nanoseconds now);
  // It need not return.
  void is_member(SiteId site);

  // The oldest step whose bytes are kept, where those before `not_needed` are not kept anyway.
  std::uint64_t keep_from(std::uint64_t not_needed, Nanoseconds now);

  // This site works on another step.
  void begin_step();
  // Whether the step at hand waits for it: until it has replayed two steps meanwhile, so that it
  // comes nearer, while none takes it longer than `patience` or twice what they took so far; and as
  // long as it may hold others up, `patience` for each of twice the steps that it is behind, five
  // minutes in all at most, and a minute in one step.
  bool awaited(SiteId site, std::uint64_t newest, std::uint64_t kept_from, Nanoseconds now,
               Nanoseconds patience) const;
  // Nothing but this site is waited for any more, now. Said again and again as long as it is so.
  void holds_up(SiteId site, Nanoseconds now);
  // It has held others up for less than `most`, of which an eighth of all time is forgiven: so
  // whatever a site says of itself, that is all that it takes of theirs in the long run.
  bool may_hold_up(SiteId site, Nanoseconds most, Nanoseconds now) const;

 private:
  struct Site {
    std::optional<std::uint64_t> needs_from;  // this step's bytes and later
    // And these alone, once the state that it fetches is there.
    std::optional<std::uint64_t> needs_after_state;
    std::optional<Nanoseconds> away_since;
    std::uint64_t step = 0;      // that it works on, as it said last
    Nanoseconds said_at = 0;     // when it came to it from an earlier one
    Learnt pace;                 // of a step that it replays
    std::uint32_t replayed = 0;  // since the step at hand began here
    std::uint64_t behind = 0;    // steps, at most, since it was current
    Nanoseconds held_up = 0;     // others, as of `counted_at`, less what is forgiven
    Nanoseconds counted_at = 0;
    Nanoseconds held_up_now = 0;              // the step at hand
    std::optional<Nanoseconds> last_counted;  // of the step at hand
    Nanoseconds held_up_as_of(Nanoseconds now) const;
  };

  const std::uint64_t steps_kept_max_;
  std::map<SiteId, Site> sites_;
};

}  // namespace isthmus::inter
