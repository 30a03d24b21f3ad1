// Peers: what this gateway knows of the other sites: their links, their last account of themselves,
// how late they usually are. From it follow the view that the next record should carry and how long
// a step waits for whom (PROTOCOL.md, "Views", "Deadlines").
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "inter/burst_pace.h"
#include "inter/learnt.h"
#include "inter/link.h"
#include "inter/log_pace.h"
#include "inter/messages.h"
#include "inter/signed_pace.h"
#include "security/roster.h"

namespace isthmus::inter {

struct PeerSite {
  SiteId site = 0;
  std::string name;
  std::unique_ptr<Link> link;           // to its gateway
  std::optional<Status> status;         // of this session
  std::optional<security::Digest> run;  // as its last hello said, in any session; zero: none yet
  // Of which it has shown record 0, signed by another site, to this one, which does not join it.
  std::optional<security::Digest> run_shown;
  // So long it has said that it has one, and not shown record 0: in sessions, and away.
  Nanoseconds run_unshown_here = 0, run_unshown_away = 0;
  std::uint64_t announced_step = 0;    // what stands for this step was said in this session
  VoteFileId vote_file = kNoVoteFile;  // as it said last, in any session
  Learnt lateness;                     // of its contribution, after the first one of the step
  Nanoseconds last_progress = 0;       // when its status last showed that its ranks compute
  Nanoseconds wished_at = 0;           // to join; 0: never
  // Steps that it was waited for to the last, as it said that its ranks compute, in vain, as far as
  // they count; and those since then to which it contributed.
  std::uint32_t promises_broken = 0, promises_kept = 0;
  std::map<SiteId, security::Digest> saved_told;  // in this session, of what others have saved
  // Signatures that do not check, of its own and of what it passes on: each costs more to look at
  // than to send, and an honest site looks itself before it passes one on. Where rosters differ
  // that may fail; its own words count then.
  BurstPace bad_own{64, kSecond / 8}, bad_passed_on{64, kSecond / 8};
  // And of those that do.
  SignedPace own_words, passed_on;
  LogPace floods{60 * kSecond};
};

class Peers {
 public:
  std::map<SiteId, PeerSite>& all() { return sites_; }
  const std::map<SiteId, PeerSite>& all() const { return sites_; }
  PeerSite* find(SiteId site);
  PeerSite* of(const Link& link);

  bool sees(SiteId site) const;  // a session stands
  // Somebody we see has a session with it, or we do. Not what our roster does not list, though
  // others, with an older one, may still see it.
  bool reachable(SiteId site) const;
  std::vector<SiteId> seen() const;
  // Of all sites but `self`, of those that work on `step`: what they say themselves, or what others
  // that work on it pass on from those whom we do not see. Ascending site.
  std::vector<Wish> wishes(std::uint64_t step, SiteId self) const;
  // Some site that may join asked to in an earlier step, not before `since`, and has not come to
  // this one yet: where steps are shorter than its answers take, it would always be late. Or null.
  const PeerSite* about_to_join(std::uint64_t step, Nanoseconds since,
                                const std::function<bool(SiteId)>& may) const;
  void send_to_all(const Bytes& message);
  // Those that are up and say that they work on this step.
  std::vector<PeerSite*> working_on(std::uint64_t step);
  // To those that take part: what anybody else answers late holds nobody up.
  Nanoseconds longest_round_trip(const View& view) const;

 private:
  std::map<SiteId, PeerSite> sites_;
};

// The view would change if this came true: the site would become a member, or take part with
// another vote file.
bool changes(const View& view, const Wish& wish);
// Members that should leave or join with the record of `step`, whose parts are given, and sites
// that take part with another vote file. `last_named`: step whose record last named a member (or
// took it in).
View next_view(const View& view, std::uint64_t step, const std::vector<Part>& parts,
               const std::map<SiteId, std::uint64_t>& last_named, std::uint32_t absent_steps,
               const std::vector<Wish>& wishes, const Peers& peers);

}  // namespace isthmus::inter
