// SaidInStep: what each site has said in the step at hand, for those who do not hear it themselves
// (PROTOCOL.md, "Ballots"). Of each kind of message the newest counts: whoever comes back after a
// long time needs the ballots that are open, and not the hundreds before them. All of it is told at
// once to who enters the step, so it is little, whatever a site signs.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "inter/messages.h"
#include "inter/rate_limit.h"

namespace isthmus::inter {

class SaidInStep {
 public:
  // Of one site and kind. Closes, of attempts at a contribution; and votes of who had to take back
  // a state.
  static constexpr std::size_t kClosesMax = 16, kInBallotMax = 4;

  bool knows(const Signed& message) const;
  // False when it is known, or older than what is known: there is no need to pass it on. `message`
  // is checked.
  bool note(const Signed& message);
  void clear() {
    said_.clear();
    passed_on_.clear();
  }

  // Whether what was just noted is passed on at once: a promise is said anew for each contribution
  // that comes to be held, and ballots can be opened for ever. Else due() names it later. After its
  // first words of a step a site has an eighth of a line of 64 kbit/s.
  bool passes_on(const Signed& message, Nanoseconds now);
  // What came too soon, as far as it is still the newest: it is passed on now.
  std::vector<const Signed*> due(Nanoseconds now);

  // By signer, then kind: what announces a contribution before what closes it.
  template <class Visit>
  void each(Visit&& visit) const {
    for (const auto& [about, said] : said_)
      for (const auto& [digest, known] : said.newest) visit(known.message);
  }

 private:
  // Of two messages of a kind the one of the higher ballot is newer; of two promises in one ballot
  // the one that holds more, as a voter comes to do; of two announcements that of the later
  // attempt. So nothing goes round for ever.
  struct Age {
    std::uint64_t number = 0;  // of the ballot or the attempt; 0 of closes
    std::size_t held = 0;
    auto operator<=>(const Age&) const = default;
  };
  static Age age_of(const Signed& message);
  struct Known {
    Signed message;
    bool due = false;
  };
  struct Said {
    Age age;
    std::map<security::Digest, Known> newest;
    Nanoseconds again = 0;  // not before this is more of it passed on
  };
  bool may_pass_on(Said& said, const Signed& message, Nanoseconds now);

  std::map<std::pair<SiteId, MessageType>, Said> said_;
  std::map<SiteId, RateLimit> passed_on_;
};

}  // namespace isthmus::inter
