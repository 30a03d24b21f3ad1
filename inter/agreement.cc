#include "inter/agreement.h"

#include <algorithm>

#include "inter/common_parts.h"

namespace isthmus::inter {
namespace {

constexpr std::size_t kDifferentAcceptsMax =
    64;  // (ballot, record) pairs remembered; honest voters need a handful

// Whether it lets a site contribute that could not: a new member, or one with a new disk.
bool admits(const Record& record) {
  const auto& view = record.view;
  const auto& next = record.next_view;
  return std::ranges::any_of(next.members, [&](SiteId site) {
    return !view.is_member(site) || next.vote_file_of(site) != view.vote_file_of(site);
  });
}

}  // namespace

Agreement::Agreement(Setup setup, Vote vote, bool on_disk)
    : setup_(std::move(setup)), vote_(std::move(vote)), vote_version_(on_disk ? 0 : 1) {
  setup_.may_vote &= setup_.frame.view.is_voter(setup_.self);
  if (vote_.accepted) say(Accept{vote_.accepted->ballot, vote_.accepted->record});
}

void Agreement::say(Ballot message) { outgoing_.push_back({std::move(message), vote_version_}); }

std::vector<Agreement::Outgoing> Agreement::take_outgoing() { return std::exchange(outgoing_, {}); }

std::vector<Agreement::Outgoing> Agreement::standing() const {
  std::vector<Outgoing> all;
  const auto add = [&](const Ballot& ballot) { all.push_back({ballot, vote_version_}); };
  if (vote_.accepted) add(Accept{vote_.accepted->ballot, vote_.accepted->record});
  if (opened_ > 0 && !proposed_) add(Prepare{opened_});
  if (proposed_) add(*proposed_);
  if (vote_.promised > 0) add(Promise{vote_.promised, vote_.accepted, held_parts()});
  return all;
}

void Agreement::hold(const Part& part) {
  if (!setup_.frame.view.is_member(part.site)) return;
  held_[part.site] = part;
  // Whatever else a ballot named of its site is made up for, unless it is decided.
  std::erase_if(lacking_, [&](const Part& lacks) {
    return lacks == part || (lacks.site == part.site && !decided_);
  });
  try_ballot_zero();
  try_vote_for_proposal();
  // The proposer may be waiting for sets that suffice: tell it.
  if (setup_.may_vote && vote_.promised > 0 && !proposal_ &&
      (!vote_.accepted || vote_.accepted->ballot < vote_.promised))
    say(Promise{vote_.promised, vote_.accepted, held_parts()});
}

void Agreement::set_view_change_due(bool due) {
  view_change_due_ = due;
  try_ballot_zero();
}

std::vector<Part> Agreement::held_parts() const {
  std::vector<Part> parts;
  for (const auto& [site, part] : held_) parts.push_back(part);
  return parts;
}

bool Agreement::holds(const std::vector<Part>& parts) const {
  return std::all_of(parts.begin(), parts.end(), [&](const Part& part) {
    const auto found = held_.find(part.site);
    return found != held_.end() && found->second == part;
  });
}

void Agreement::try_ballot_zero() {
  if (!setup_.may_vote || vote_.promised > 0 || vote_.accepted || view_change_due_) return;
  if (held_.size() != setup_.frame.view.members.size() || held_.size() < setup_.min_sites) return;
  Record record = setup_.frame;
  record.parts = held_parts();
  write_vote(0, record);
}

void Agreement::write_vote(std::uint64_t ballot, const Record& record) {
  vote_.promised = ballot;
  vote_.accepted = Vote::Accepted{ballot, record};
  ++vote_version_;
  say(Accept{ballot, record});
}

void Agreement::open_ballot(bool may_admit) {
  if (!setup_.may_vote || decided_) return;
  const auto& voters = setup_.frame.view.voters;
  const auto turn = static_cast<std::uint64_t>(
      std::lower_bound(voters.begin(), voters.end(), setup_.self) - voters.begin());
  // Above every ballot it has promised, its own included: a restart never proposes twice in one
  // ballot.
  std::uint64_t ballot = vote_.promised + 1;
  while (ballot % voters.size() != turn) ++ballot;
  opened_ = ballot;
  may_admit_ = may_admit;
  promises_.clear();
  proposed_.reset();
  proposal_.reset();
  vote_.promised = ballot;
  ++vote_version_;
  ++counters_.ballots_opened;
  say(Prepare{ballot});
  // Its own promise goes the way of all others, so that it counts only once it is on disk.
  say(Promise{ballot, vote_.accepted, held_parts()});
}

void Agreement::receive(SiteId from, const Ballot& message, const security::Signature& signature) {
  if (!setup_.frame.view.is_voter(from)) return;
  if (const auto* prepare = std::get_if<Prepare>(&message)) {
    const auto& voters = setup_.frame.view.voters;
    if (!setup_.may_vote || from == setup_.self || prepare->ballot == 0 ||
        voters[prepare->ballot % voters.size()] != from)
      return;
    if (prepare->ballot < vote_.promised) return;
    if (prepare->ballot > vote_.promised) {
      vote_.promised = prepare->ballot;
      ++vote_version_;
      proposal_.reset();
    }
    say(Promise{vote_.promised, vote_.accepted, held_parts()});
  } else if (const auto* promise = std::get_if<Promise>(&message)) {
    for (const auto& part : promise->held) lack(part);
    if (promise->ballot != opened_ || opened_ == 0 || proposed_) return;
    // Passed on they may come in another order; of those in one ballot the last one holds most.
    auto& known = promises_.try_emplace(from, *promise).first->second;
    if (promise->held.size() >= known.held.size()) known = *promise;
    try_propose();
  } else if (const auto* propose = std::get_if<Propose>(&message)) {
    const auto& voters = setup_.frame.view.voters;
    if (propose->ballot == 0 || voters[propose->ballot % voters.size()] != from ||
        !well_formed(propose->record))
      return;
    for (const auto& part : propose->record.parts) lack(part);
    if (propose->ballot < vote_.promised) return;
    if (proposal_ && proposal_->ballot > propose->ballot) return;
    proposal_ = *propose;
    try_vote_for_proposal();
  } else if (const auto* accept = std::get_if<Accept>(&message)) {
    receive_accept(from, *accept, signature);
  }
}

void Agreement::lack(const Part& part) {
  // A site has one contribution; a few more names of it may be lies.
  const auto bound = 4 * setup_.frame.view.members.size();
  if (setup_.frame.view.is_member(part.site) && held_.count(part.site) == 0 &&
      lacking_.size() < bound)
    lacking_.insert(part);
}

bool Agreement::well_formed(const Record& record) const {
  const auto& frame = setup_.frame;
  Record same = record;
  same.parts = frame.parts;
  same.next_view = frame.next_view;
  same.roster = frame.roster;
  // A vote stands when the number of steps or of sites was changed since (PROTOCOL.md, "Ballots").
  same.final_step = frame.final_step;
  if (same != frame || (record.parts.empty() && (record.final_step || !admits(record))))
    return false;
  for (const auto& part : record.parts)
    if (!frame.view.is_member(part.site)) return false;
  // Voters change only with a newer roster, that this site has or had too (PROTOCOL.md, "Views");
  // members must be listed.
  const auto* voters = &frame.view.voters;
  if (record.roster != frame.roster) {
    const auto newer = setup_.newer_rosters.find(record.roster);
    if (newer == setup_.newer_rosters.end()) return false;
    voters = &newer->second;
  }
  if (record.next_view.voters != *voters || record.next_view.members.empty()) return false;
  // Who is no more in this site's roster may still be in the one by which others voted before.
  return std::all_of(
      record.next_view.members.begin(), record.next_view.members.end(),
      [&](SiteId s) { return setup_.roster.count(s) > 0 || frame.view.is_member(s); });
}

std::optional<std::vector<Part>> Agreement::best_common_set() const {
  std::vector<const std::vector<Part>*> held;
  for (const auto& [site, promise] : promises_) held.push_back(&promise.held);
  return best_common_parts(held, setup_.frame.view.majority(), setup_.min_sites);
}

// The accepted record of the highest ballot, which can have one only; but for ballot 0, which has
// two if a site contributed twice. A record may be decided only if those who promised and accepted
// it, in whichever ballot, with all who have not promised, are a majority ("Fast Paxos", section
// 3.1).
Agreement::Earlier Agreement::earlier() const {
  std::uint64_t highest = 0;
  std::map<security::Digest, std::pair<std::size_t, const Vote::Accepted*>> accepted;
  for (const auto& [site, promise] : promises_)
    if (promise.accepted) {
      auto& [count, newest] = accepted[promise.accepted->record.hash()];
      ++count;
      if (newest == nullptr || promise.accepted->ballot > newest->ballot)
        newest = &*promise.accepted;
      highest = std::max(highest, promise.accepted->ballot);
    }
  const auto silent = setup_.frame.view.voters.size() - promises_.size();
  std::vector<const Record*> possible;
  for (const auto& [hash, candidate] : accepted)
    if (candidate.second->ballot == highest &&
        candidate.first + silent >= setup_.frame.view.majority())
      possible.push_back(&candidate.second->record);
  if (possible.size() > 1) return {.undecidable = true};
  return possible.empty() ? Earlier{} : Earlier{.record = *possible.front()};
}

void Agreement::try_propose() {
  if (promises_.size() < setup_.frame.view.majority() || vote_.promised != opened_) return;
  auto before = earlier();
  if (before.undecidable) return;
  if (before.record) {
    if (!well_formed(*before.record))
      return;  // a voter that lies about votes is not tolerated, but costs only progress here
    proposed_ = Propose{opened_, std::move(*before.record)};
    ++counters_.reproposals;
  } else {
    auto record = new_proposal();
    if (!record) return;
    proposed_ = Propose{opened_, std::move(*record)};
    ++counters_.proposals;
  }
  say(*proposed_);
}

// What a majority holds; or, where that cannot suffice, a record without contributions, which
// leaves the state as it is and takes sites in (PROTOCOL.md, "Views").
std::optional<Record> Agreement::new_proposal() const {
  Record record = setup_.frame;
  if (auto parts = best_common_set()) {
    record.parts = std::move(*parts);
    setup_.complete(record);
    return record;
  }
  if (!may_admit_) return std::nullopt;
  record.final_step = false;
  setup_.complete(record);
  return admits(record) ? std::optional(std::move(record)) : std::nullopt;
}

void Agreement::try_vote_for_proposal() {
  if (!setup_.may_vote || !proposal_ || vote_.promised > proposal_->ballot) return;
  if (vote_.accepted && vote_.accepted->ballot >= proposal_->ballot) return;
  if (!holds(proposal_->record.parts)) return;  // to be fetched first
  const auto proposal = *std::exchange(proposal_, std::nullopt);
  write_vote(proposal.ballot, proposal.record);
}

void Agreement::receive_accept(SiteId from, const Accept& accept,
                               const security::Signature& signature) {
  if (decided_ || !well_formed(accept.record)) return;
  if (accept.ballot == 0 &&
      (accept.record.next_view != setup_.frame.view || accept.record.roster != setup_.frame.roster))
    return;
  const auto key = std::pair(accept.ballot, accept.record.hash());
  if (accepts_.size() >= kDifferentAcceptsMax && accepts_.count(key) == 0)
    accepts_.erase(accepts_.begin());
  auto& certificate = accepts_[key];
  certificate.record = accept.record;
  certificate.ballot = accept.ballot;
  auto& list = certificate.accepts;
  const auto at = std::lower_bound(list.begin(), list.end(), from,
                                   [](const auto& a, SiteId site) { return a.voter < site; });
  if (at != list.end() && at->voter == from) return;
  list.insert(at, {from, signature});
  if (list.size() >= setup_.frame.view.majority()) {
    decided_ = certificate;
    for (const auto& part : accept.record.parts)
      if (!holds({part})) lacking_.insert(part);
  }
}

}  // namespace isthmus::inter
