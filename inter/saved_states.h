// SavedStates: what each site has said that it saved last, this one too (PROTOCOL.md, "Apply, save,
// serve"): which of two words of a site is the newer one, what of it is passed on and when, and
// what follows from all of them together. Knows no links: signatures are checked before.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "inter/messages.h"

namespace isthmus::inter {

class SavedStates {
 public:
  struct Known {
    Saved saved;
    Signed message;
  };
  explicit SavedStates(SiteId self) : self_(self) {}

  // The next revision, if this site says something of this step anew.
  std::uint32_t next_revision(std::uint64_t step) const;
  // True: newer than what was known of its signer. Who computed a step wrongly says it anew, with
  // the next revision; what others pass on of the same step counts by that, so that nothing goes
  // round for ever and what comes late changes nothing. What the signer says itself counts always:
  // it may have begun anew.
  bool note(const Signed& message, const Saved& saved, bool from_signer);

  const std::map<SiteId, Known>& all() const { return known_; }
  const Known* of(SiteId site) const;
  const Known* mine() const { return of(self_); }

  // Sites, with `site` at one end, that have the same root as this one, which is quick, and another
  // one of those that are strong.
  std::vector<SiteId> differing_spots(SiteId site) const;
  // The newest step that a majority of the voters has saved.
  std::uint64_t saved_by_majority(const View& view) const;
  // Voters other than this site that have saved this step with this root.
  std::size_t vouching(const View& view, std::uint64_t step, const security::Digest& root) const;

  // Whether what this site has just said is passed on at once: of each step once, of steps that can
  // be, before `step_end`; what is said anew, twice a second at most, since a site could do so for
  // ever. Else due() names it later.
  bool passes_on(SiteId signer, std::uint64_t step, std::uint64_t step_end, Nanoseconds now);
  // What was said anew too soon, the last of it: it is passed on now.
  std::vector<const Signed*> due(Nanoseconds now);

 private:
  struct PassedOn {  // of one signer
    std::uint64_t step = 0;
    Nanoseconds when = -kSecond;
    bool due = false;  // what it has said since
  };

  const SiteId self_;
  std::map<SiteId, Known> known_;
  std::map<SiteId, PassedOn> passed_on_;
};

}  // namespace isthmus::inter
