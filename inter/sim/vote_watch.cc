#include "inter/sim/vote_watch.h"

#include <fmt/format.h>

#include <algorithm>

#include "inter/encoding.h"
#include "inter/messages.h"
#include "security/signature.h"

namespace isthmus::inter::sim {

void VoteWatch::signed_by(SiteId site, std::string_view context,
                          std::span<const std::byte> message) {
  if (context == security::context::promise) return promise(site, message);
  if (context == security::context::propose) return propose(site, message);
  if (context != security::context::accept) return;
  ByteReader in(message);
  Place place;
  place.run = get_digest(in);
  place.view = get_digest(in);
  place.step = in.get<std::uint64_t>();
  const auto ballot = in.get<std::uint64_t>();
  const auto record = get_digest(in);
  // A vote file that is lost while the run is founded means to begin it anew: nothing but all
  // voters together decides then.
  if (in.ok() && place.step > 0) accept(site, place, ballot, record);
}

void VoteWatch::accept(SiteId site, const Place& place, std::uint64_t ballot,
                       const security::Digest& record) {
  auto& voter = voters_[{place, site}];
  // A vote of before a promise may be said again, or for the first time, after it.
  for (auto promise = voter.promises.upper_bound(ballot);
       promise != voter.promises.end() && !states_may_differ_; ++promise)
    if (!promise->second || *promise->second < ballot)
      violation_(fmt::format("s{} voted in ballot {} of step {} and had promised {}", site, ballot,
                             place.step, promise->first));
  vote(site, place, ballot, record);
  accepts_[{place, ballot, record}].insert(site);
}

void VoteWatch::vote(SiteId site, const Place& place, std::uint64_t ballot,
                     const security::Digest& record) {
  const auto [known, fresh] = voters_[{place, site}].votes.emplace(ballot, record);
  if (known->second != record && !states_may_differ_)
    violation_(
        fmt::format("s{} voted for two records in ballot {} of step {}", site, ballot, place.step));
}

void VoteWatch::promise(SiteId site, std::span<const std::byte> message) {
  const auto decoded = decode_ballot(MessageType::promise, message);
  if (!decoded) return violation_(fmt::format("s{} signed a promise that does not decode", site));
  const auto& said = std::get<Promise>(decoded->ballot);
  const Place place{decoded->id.run, decoded->id.view, decoded->id.step};
  auto& voter = voters_[{place, site}];
  // What it had voted for below this ballot belongs into the promise.
  std::optional<std::uint64_t> below;
  for (const auto& [ballot, record] : voter.votes)
    if (ballot < said.ballot) below = ballot;
  if (below && !states_may_differ_ && (!said.accepted || said.accepted->ballot < *below))
    violation_(
        fmt::format("s{} promised ballot {} of step {} and did not say that it had voted in {}",
                    site, said.ballot, place.step, *below));
  if (said.accepted) vote(site, place, said.accepted->ballot, said.accepted->record.hash());
  voter.promises.emplace(said.ballot,
                         said.accepted ? std::optional(said.accepted->ballot) : std::nullopt);
}

void VoteWatch::propose(SiteId site, std::span<const std::byte> message) {
  const auto decoded = decode_ballot(MessageType::propose, message);
  if (!decoded) return violation_(fmt::format("s{} signed a proposal that does not decode", site));
  const auto& said = std::get<Propose>(decoded->ballot);
  auto& voter = voters_[{Place{decoded->id.run, decoded->id.view, decoded->id.step}, site}];
  const auto [known, fresh] = voter.proposals.emplace(said.ballot, said.record.hash());
  if (known->second != said.record.hash())
    violation_(fmt::format("s{} proposed two records in ballot {} of step {}", site, said.ballot,
                           decoded->id.step));
}

void VoteWatch::holds(SiteId holder, const View& view, std::uint64_t step, const Part& part) {
  auto& held = held_[{view.digest(), step, part.site}];
  if (held.holders.empty()) held.root = part.root;
  if (held.root != part.root)
    violation_(fmt::format("two contributions of s{} to step {} are held", part.site, step));
  held.holders.insert(holder);
}

void VoteWatch::wiped(SiteId site) {
  for (auto& [of, held] : held_) held.holders.erase(site);
}

void VoteWatch::knows(const View& view) { views_.emplace(view.digest(), view); }

void VoteWatch::check_decided() {
  std::map<Place, security::Digest> decided;
  for (const auto& [of, signers] : accepts_) {
    const auto& [place, ballot, record] = of;
    const auto view = views_.find(place.view);
    if (view == views_.end()) continue;
    const auto voters = static_cast<std::size_t>(
        std::count_if(signers.begin(), signers.end(),
                      [&, v = &view->second](SiteId site) { return v->is_voter(site); }));
    if (voters < view->second.majority()) continue;
    const auto [known, fresh] = decided.emplace(place, record);
    if (known->second != record)
      violation_(fmt::format("a majority decided two records for step {}", place.step));
  }
}

}  // namespace isthmus::inter::sim
