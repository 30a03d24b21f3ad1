// VoteWatch: whatever any site of a simulated federation signs, in all its lives, and which
// contributions any of them holds. Knows the rules of PROTOCOL.md, "Ballots" and "Contributions",
// that no crash, lost file or wiped disk may break: they hold for what was said, whether or not
// anybody ever decided it. Without any code of the agreement.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "inter/record.h"
#include "security/hash.h"

namespace isthmus::inter::sim {

class VoteWatch {
 public:
  // `violation`: told what must never be. `states_may_differ`: memory is broken, so that a site may
  // take back a vote that it cast on a wrong state; then only promises and contributions are
  // watched.
  VoteWatch(bool states_may_differ, std::function<void(const std::string&)> violation)
      : states_may_differ_(states_may_differ), violation_(std::move(violation)) {}

  // A site has signed this, and what it stands on is on its disk.
  void signed_by(SiteId site, std::string_view context, std::span<const std::byte> message);
  // This site has a contribution to a step whole, and may name it; what it had is gone with its
  // disk.
  void holds(SiteId holder, const View& view, std::uint64_t step, const Part& part);
  void wiped(SiteId site);
  // A view that a step has, by its digest: who votes in it.
  void knows(const View& view);
  // At the end: no step of one view was decided twice, whether anybody learnt it or not.
  void check_decided();

 private:
  // One step of one history: a recovery by the operator begins another one, with another view.
  struct Place {
    security::Digest run, view;
    std::uint64_t step = 0;
    auto operator<=>(const Place&) const = default;
  };
  struct Voter {
    // By ballot: the record's hash. What a promise says that it voted for is a vote, too.
    std::map<std::uint64_t, security::Digest> votes, proposals;
    // By ballot promised: the highest ballot it said it had voted in, the first time.
    std::map<std::uint64_t, std::optional<std::uint64_t>> promises;
  };
  void accept(SiteId site, const Place& place, std::uint64_t ballot,
              const security::Digest& record);
  void vote(SiteId site, const Place& place, std::uint64_t ballot, const security::Digest& record);
  void promise(SiteId site, std::span<const std::byte> message);
  void propose(SiteId site, std::span<const std::byte> message);

  const bool states_may_differ_;
  std::function<void(const std::string&)> violation_;
  std::map<std::pair<Place, SiteId>, Voter> voters_;
  std::map<std::tuple<Place, std::uint64_t, security::Digest>, std::set<SiteId>> accepts_;
  struct Held {
    security::Digest root;
    std::set<SiteId> holders;
  };
  std::map<std::tuple<security::Digest, std::uint64_t, SiteId>, Held> held_;  // by view and step
  std::map<security::Digest, View> views_;
};

}  // namespace isthmus::inter::sim
