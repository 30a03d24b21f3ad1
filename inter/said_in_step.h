// SaidInStep: what each site has said in the step at hand, for those who do not hear it themselves
// (PROTOCOL.md, "Ballots"). Of each kind of message the newest counts: whoever comes back after a
// long time needs the ballots that are open, and not the hundreds before them.
#pragma once

#include <cstdint>
#include <map>
#include <utility>

#include "inter/messages.h"

namespace isthmus::inter {

class SaidInStep {
 public:
  // Of one site, kind and ballot: a promise is said again for each contribution that comes to be
  // held, and there are no more of those than members.
  static constexpr std::size_t kAlikeMax = kSitesMax;

  bool knows(const Signed& message) const;
  // False when it is known, or older than what is known: there is no need to pass it on. `message`
  // is checked.
  bool note(const Signed& message);
  void clear() { newest_.clear(); }

  // By signer, then kind: what announces a contribution before what closes it.
  template <class Visit>
  void each(Visit&& visit) const {
    for (const auto& [about, said] : newest_)
      for (const auto& [digest, message] : said.messages) visit(message);
  }

 private:
  struct Newest {
    std::uint64_t ballot = 0;  // 0 for what is of no ballot
    std::map<security::Digest, Signed> messages;
  };
  std::map<std::pair<SiteId, MessageType>, Newest> newest_;
};

}  // namespace isthmus::inter
