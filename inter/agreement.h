// Agreement: one voter's, or one learner's, view of the vote on one outer step. Single-decree
// consensus whose ballot 0 has only one possible value, so that in health every voter votes at once
// and no leader is needed (PROTOCOL.md, "Ballots"; the prepare and promise rules are those of
// Paxos: Lamport, "The part-time parliament", 1998; ballot 0 as in "Fast Paxos", 2006, without
// collisions).
//
// A pure state machine: no clock, no disk, no network. It never speaks itself. What it wants said
// stands in take_outgoing(), and each message names the version of vote() that must be on disk
// before it may leave. The owner signs, persists, sends, and hands messages of its own site back in
// like any other.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <variant>
#include <vector>

#include "inter/record.h"

namespace isthmus::inter {

// What a voter must never forget.
struct Vote {
  std::uint64_t promised = 0;  // votes in no lower ballot
  struct Accepted {
    std::uint64_t ballot = 0;
    Record record;
    bool operator==(const Accepted&) const = default;
  };
  std::optional<Accepted> accepted;
};

// No step has as many: a voter follows a ballot at most so far above what it had promised when it
// came to the step, and as much further with each second that it is there, which makes years. More
// than honest voters open in that time; and a voter that was away gets to what the others have
// promised meanwhile, in the time that it took them at most (PROTOCOL.md, "Ballots").
inline constexpr std::uint64_t kBallotMax = std::uint64_t{1} << 48;
inline constexpr std::uint64_t kBallotsFollowed = std::uint64_t{1} << 20;

struct Prepare {
  std::uint64_t ballot = 0;
};
struct Promise {
  std::uint64_t ballot = 0;
  std::optional<Vote::Accepted> accepted;
  std::vector<Part> held;  // ascending site
};
struct Propose {
  std::uint64_t ballot = 0;
  Record record;
};
struct Accept {
  std::uint64_t ballot = 0;
  Record record;
};
using Ballot = std::variant<Prepare, Promise, Propose, Accept>;

// What votes need of a roster.
struct KnownRoster {
  security::Digest digest;
  std::vector<SiteId> sites;   // ascending; who may be a member
  std::vector<SiteId> voters;  // ascending
  bool operator==(const KnownRoster&) const = default;
};

class Agreement {
 public:
  struct Setup {
    SiteId self = 0;
    bool may_vote = true;  // false: no voter, or its vote file was lost
    Record
        frame;  // run, step, parent, view, fragment, rule, final_step; no parts, next_view = view
    std::uint32_t min_sites = 1;
    std::set<SiteId> roster;  // who may be in a next view
    // That this site has, or had, and no record names yet; and the voters each would bring.
    std::map<security::Digest, std::vector<SiteId>> newer_rosters;
    // Fills in what a proposal with these parts should carry: next_view, roster.
    std::function<void(Record&)> complete;
  };

  // `vote`: what this voter had decided on for this very step, if anything; `on_disk`: and written.
  Agreement(Setup setup, Vote vote, bool on_disk = true);

  // A contribution became held, or (root changed) replaced what was: never happens for an honest
  // site.
  void hold(const Part& part);
  // While the view has to change, nobody votes in ballot 0, whose view is fixed.
  void set_view_change_due(bool due);
  // This voter's deadline passed, or the view has to change and it holds what it waits for. Opens
  // its next ballot. `may_admit`: contributions will not suffice, so that a record without any may
  // take sites in.
  void open_ballot(bool may_admit = false);

  // From a site whose signature is checked. Accepts carry it, for the certificate.
  void receive(SiteId from, const Ballot& message, const security::Signature& signature);

  struct Outgoing {
    Ballot message;
    std::uint64_t vote_version = 0;  // of vote(): on disk first
  };
  std::vector<Outgoing> take_outgoing();
  // Everything that stands now, for a peer whose session is new.
  std::vector<Outgoing> standing() const;

  const Vote& vote() const { return vote_; }
  std::uint64_t vote_version() const { return vote_version_; }
  const std::optional<Certificate>& decided() const { return decided_; }

  // Parts that a proposal or a promise names and this site does not hold: to be fetched.
  const std::set<Part>& lacking() const { return lacking_; }
  const std::map<SiteId, Part>& held() const { return held_; }
  std::uint64_t ballot_opened() const { return opened_; }
  bool may_vote() const { return setup_.may_vote; }

  struct Counters {
    std::uint64_t ballots_opened = 0, reproposals = 0, proposals = 0;
  };
  const Counters& counters() const { return counters_; }

 private:
  void say(Ballot message);
  void try_ballot_zero();
  void try_propose();
  void try_vote_for_proposal();
  // What an earlier ballot may have decided, as the promises tell.
  struct Earlier {
    bool undecidable = false;           // yet: more promises are needed
    std::optional<Record> record = {};  // none: free to propose
  };
  Earlier earlier() const;
  void write_vote(std::uint64_t ballot, const Record& record);
  void lack(const Part& part);
  std::optional<Record> new_proposal() const;
  bool well_formed(const Record& record) const;
  bool holds(const std::vector<Part>& parts) const;
  std::vector<Part> held_parts() const;
  std::optional<std::vector<Part>> best_common_set() const;
  void receive_accept(SiteId from, const Accept& accept, const security::Signature& signature);

  Setup setup_;
  Vote vote_;
  std::uint64_t vote_version_ = 0;
  std::map<SiteId, Part> held_;
  std::set<Part> lacking_;
  bool view_change_due_ = false;

  std::uint64_t opened_ = 0;            // the ballot this voter opened last; 0: none
  bool may_admit_ = false;              // in it
  std::map<SiteId, Promise> promises_;  // for opened_
  std::optional<Propose> proposed_;     // in opened_
  std::optional<Propose> proposal_;     // the newest received, not yet voted for: parts are missing
  std::map<std::pair<std::uint64_t, security::Digest>, Certificate> accepts_;
  std::optional<Certificate> decided_;
  std::vector<Outgoing> outgoing_;
  Counters counters_;
};

}  // namespace isthmus::inter
