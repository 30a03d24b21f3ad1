// How a gateway comes to a run where its disk has none: it founds one with all other voters (record
// 0), or joins one that others have.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/listed.h"
#include "inter/gateway.h"
#include "kernels/outer_arithmetic.h"

namespace isthmus::inter {
namespace {

// For others to say that a run began: no other one is founded before, and it is no alarm that none
// did.
constexpr Nanoseconds kTimeToHear = 20 * kSecond;
// For who says that it has one to show how that began. A record 0 of 256 sites takes a few seconds
// on 64 kbit/s, and a line that is cut meanwhile comes back, for the most part.
constexpr Nanoseconds kTimeToShow = 120 * kSecond;

// Here, and without a session in which it could show anything.
bool is_refused(const PeerSite& peer) {
  return peer.link->connected() && !peer.link->up() && !peer.link->refused().empty();
}

// It names the run that it has shown, and that others founded.
bool has_shown_run(const PeerSite& peer) { return peer.run && peer.run == peer.run_shown; }

// It has said that it has a run, and not otherwise since, and that counts. Who has one shows record
// 0 to whoever asks: what was asked for in vain for long may be invented. Who is away has the same
// time to come back, more than one that was never heard of, and then no less time to show it. Each
// time it has once, in however many sessions and under whatever name. What nobody could show yet,
// since settings or rosters differ, counts while that is so, and so does what was shown and is not
// this site's to join: the operator decides.
bool names_run(const PeerSite& peer) {
  if (!peer.run || *peer.run == security::Digest{}) return false;
  if (has_shown_run(peer)) return true;
  if (peer.link->up()) return peer.run_unshown_here < kTimeToShow;
  return is_refused(peer) || peer.run_unshown_away < kTimeToShow;
}

std::string holds_up_founding(const PeerSite& peer) {
  if (has_shown_run(peer)) return "before that site says that it has none";
  if (is_refused(peer)) return "while that site is here without a session";
  return fmt::format("before that site had {} s to show how it began", kTimeToShow / kSecond);
}

}  // namespace

bool Gateway::within_settings(const Record& record) const {
  return record.rule == options_.sync.outer && record.fingerprint == run_fingerprint_.digest();
}

bool Gateway::genesis_acceptable(const Record& record) const {
  const auto listed = view_of_roster();
  const auto known = [this](SiteId site) { return roster_.find(site) != nullptr; };
  return !roster_.run && record.step == 0 && record.run == security::Digest{} &&
         record.parent == security::Digest{} &&
         std::ranges::includes(record.view.members, listed.members) &&
         std::ranges::all_of(record.view.members, known) && record.view.voters == listed.voters &&
         record.next_view == record.view && record.parts.empty() && within_settings(record) &&
         !record.final_step && record.roster == roster_.digest;
}

// Who takes part from the first step: the voters, and who else is here.
View Gateway::view_to_begin_with() const {
  auto view = view_of_roster();
  for (const auto& [site, peer] : peers_.all())
    if (peer.link->up() && peer.vote_file != kNoVoteFile && !view.is_member(site))
      view.take_in(site, peer.vote_file);
  return with_vote_files(std::move(view));
}

// Once all voters have said which vote files they have: record 0 names them.
std::optional<Record> Gateway::proposed_genesis() {
  Record record;
  record.view = view_to_begin_with();
  if (roster_.run || record.view.vote_files.size() < record.view.members.size() ||
      record.view.members.size() < options_.sync.min_sites)
    return std::nullopt;
  record.next_view = record.view;
  record.rule = options_.sync.outer;
  record.fingerprint = run_fingerprint_.digest();
  record.roster = roster_.digest;
  record.initial_root = initial_->root;
  record.nonce = world_.random.next();
  return record;
}

// Nothing else is chosen meanwhile, and nothing is said of it before it is on disk.
Task<void> Gateway::vote_for_genesis() {
  Vote vote;
  vote.accepted = Vote::Accepted{0, *genesis_chosen_};
  Result<void> written;
  auto write = [this, &written, &vote] { written = store_.write_vote(0, vote); };
  co_await run_on(world_.workers, world_.loop, std::move(write), 4096, Urgency::prompt);
  if (!written) co_return fail(written.error());
  genesis_vote_ = std::move(vote);
}

void Gateway::on_genesis_accept(SiteId from, const Accept& accept,
                                const security::Signature& signature) {
  if (genesis_ || !layout_ || !genesis_acceptable(accept.record) ||
      !accept.record.view.is_voter(from))
    return;
  genesis_accepts_[from] = {accept.record, signature};
  const auto& voters = accept.record.view.voters;
  // The first voter proposes; whoever has not voted, with the file that is named, follows it.
  const bool names_us = accept.record.view.vote_file_of(self_) == vote_file_;
  // A vote file that was lost before record 0 was decided everywhere: nobody can know what it said.
  if (accept.record.view.is_voter(self_) && !names_us)
    say_founding_is_stuck(
        "the sites were about to begin a run with a vote file that this site has lost since");
  if (from == voters.front() && accept.record.view.is_voter(self_) && names_us && !genesis_vote_ &&
      !genesis_chosen_ && initial_ && may_found())
    genesis_chosen_ = accept.record;
  changed_.notify();
}

void Gateway::say_founding_is_stuck(std::string_view why) {
  if (const auto left_out = genesis_refusals_.due(world_.loop.now()))
    world_.log.alarm(
        "founding_stuck", {},
        {{"why", why},
         {"what_to_do", fmt::format("unless a site has trained already, move {} away at all of "
                                    "them, and start again",
                                    options_.folder)},
         {"left_out", *left_out}});
}

// A newer roster came after this site voted for record 0. The run may have begun with that vote:
// the site joins it then (on_records), and founds no other one.
bool Gateway::bound_by_older_roster() const {
  return genesis_vote_ && !genesis_acceptable(genesis_vote_->accepted->record);
}

// `but`: not this one.
const PeerSite* Gateway::peer_with_run(const security::Digest& but) const {
  for (const auto& [site, peer] : peers_.all())
    if (names_run(peer) && *peer.run != but) return &peer;
  return nullptr;
}

// `time`: since this was called last, in which who has a session was asked for record 0.
void Gateway::note_unshown_runs(Nanoseconds time) {
  if (adopting_run_) return;
  for (auto& [site, peer] : peers_.all()) {
    if (!names_run(peer) || has_shown_run(peer) || is_refused(peer)) continue;
    (peer.link->up() ? peer.run_unshown_here : peer.run_unshown_away) += time;
    if (!names_run(peer)) say_run_not_shown(peer);
  }
}

// A run that this site does not join began all the same, if another listed site than the one that
// shows it signed its record 0. What its only voter shows does not count so, though the founder of
// a run may do it in all honesty: any listed site can make such a record alone, whatever members
// that names. Who joined the founder shows the same.
void Gateway::note_shown_run(PeerSite& peer, const Certificate& genesis) {
  const auto& record = genesis.record;
  const auto is_another = [&](SiteId voter) {
    return voter != peer.site && roster_.find(voter) != nullptr;
  };
  if (peer.run == record.hash() && record.fingerprint == run_fingerprint_.digest() &&
      std::ranges::any_of(record.view.voters, is_another) &&
      genesis.proves(record.view, world_.verifier))
    peer.run_shown = peer.run;
}

// Twice at most of each site: here and away.
void Gateway::say_run_not_shown(const PeerSite& peer) {
  world_.log.alarm(
      "run_not_shown", {.peer = peer.name},
      {{"run", peer.run->hex()},
       {"why", fmt::format("that site says that it has this run, and {} for {} s without showing a "
                           "record 0 that this site believes",
                           peer.link->up() ? "had sessions" : "was away", kTimeToShow / kSecond)},
       {"then", "a run may be founded without regard to that one"}});
}

std::vector<std::string> Gateway::not_heard() const {
  std::vector<std::string> names;
  for (const auto& [site, peer] : peers_.all())
    if (!peer.run) names.push_back(peer.name);
  return names;
}

// All voters may have lost their disks, as the only one may: the run is there while a site has it,
// and a second one would leave it behind.
bool Gateway::may_found() const {
  return peer_with_run() == nullptr &&
         (not_heard().empty() || world_.loop.now() - founding_since_ >= kTimeToHear);
}

void Gateway::say_run_elsewhere(const PeerSite& peer) {
  if (const auto left_out = genesis_refusals_.due(world_.loop.now()))
    world_.log.alarm(
        "founding_stuck", {.peer = peer.name},
        {{"run", peer.run->hex()},
         {"why", "that site has this run, and this site, which has none, has not come to join it"},
         {"then", "none is founded " + holds_up_founding(peer)},
         {"what_to_do",
          fmt::format("{1}; where a majority of its voters has lost its disks, also name the state "
                      "to go on from (isthmus roster recover). Or move away run_dir at {0}, if "
                      "that run is not to go on; or take {0} out of the roster, if it only says "
                      "that there is one",
                      peer.name,
                      has_shown_run(peer) ? "name it in the roster (isthmus roster add or remove "
                                            "--run), for this site to join it"
                                          : "let this site reach one that has the run")},
         {"left_out", *left_out}});
}

// Without a word of it two of three voters would wait for the third for ever. "": for nothing.
std::string Gateway::founding_waits_for() const {
  if (roster_.run)
    return fmt::format("a site of run {}, which the roster names",
                       roster_.run->hex().substr(0, 16));
  if (bound_by_older_roster())
    return "a site of the run of an older roster that this one has voted to begin";
  if (const auto* peer = peer_with_run())
    return fmt::format("run {}, which {} has: no other one is founded {}",
                       peer->run->hex().substr(0, 16), peer->name, holds_up_founding(*peer));
  const auto view = view_of_roster();
  std::vector<std::string> voters, others;
  for (const auto& site : roster_.sites)
    if (site.id != self_ && !peers_.sees(site.id))
      (view.is_voter(site.id) ? voters : others).push_back(site.name);
  if (!voters.empty())
    return fmt::format(
        "{}: a run begins when all its voters are here, and who joins one that has "
        "begun needs a site of it",
        listed(voters));
  const auto here = roster_.sites.size() - others.size();
  if (here < options_.sync.min_sites)
    return fmt::format("{}: a run begins with min_sites = {}",
                       some_of(others, options_.sync.min_sites - here), options_.sync.min_sites);
  if (genesis_vote_ || may_found()) return {};
  return fmt::format("{}, {} s at most: a site that was here before may have a run already",
                     listed(not_heard()), kTimeToHear / kSecond);
}

Task<Result<void>> Gateway::begin_or_join_run() {
  const View view = view_of_roster();
  const security::Digest no_run;
  founding_since_ = world_.loop.now();
  const bool founds = view.is_voter(self_) && !roster_.run;
  Nanoseconds said = 0, none_elsewhere = founding_since_, asked_all = founding_since_;
  if (genesis_vote_ && !within_settings(genesis_vote_->accepted->record))
    co_return Error{
        ErrorCode::mismatch,
        fmt::format("this site has voted to begin a run with other settings or another model: "
                    "restore them; or, if the other sites begin anew too, remove {} at all of them",
                    options_.folder)};
  while (!genesis_ && !stopping_ && !failure_) {
    if (view.is_voter(self_) && view.voters.front() == self_ && !genesis_vote_ && initial_ &&
        may_found())
      genesis_chosen_ = proposed_genesis();
    if (genesis_chosen_ && !genesis_vote_) {
      co_await vote_for_genesis();
      if (failure_ || genesis_) break;  // of others, meanwhile
    }
    const auto now = world_.loop.now();
    // However long the disk took in between.
    if (founds) note_unshown_runs(std::min(now - std::exchange(asked_all, now), kSecond));
    const auto* elsewhere =
        founds ? peer_with_run(genesis_vote_ ? genesis_vote_->accepted->record.hash() : no_run)
               : nullptr;
    if (elsewhere == nullptr)
      none_elsewhere = now;
    else if (now - none_elsewhere > kTimeToHear)
      say_run_elsewhere(*elsewhere);
    if (bound_by_older_roster()) {
      if (now - founding_since_ > kTimeToHear)
        say_founding_is_stuck(
            "this site has voted to begin a run of an older roster, and no site that it sees has "
            "said that it began");
    } else if (genesis_vote_) {
      const auto& record = genesis_vote_->accepted->record;
      const StepId id{.run = record.run, .view = record.view.digest(), .step = 0, .fragment = 0};
      const auto mine = sign(world_.signer, self_, id, Accept{0, record});
      genesis_accepts_[self_] = {record, mine.signature};
      if (now - said >= kSecond || said == 0) {
        said = now;
        peers_.send_to_all(mine.encode());
      }
      Certificate certificate;
      certificate.record = record;
      for (const auto& [site, accept] : genesis_accepts_)
        if (accept.first == record) certificate.accepts.push_back({site, accept.second});
      if (certificate.accepts.size() == record.view.voters.size() && !adopting_run_ &&
          peer_with_run(record.hash()) == nullptr) {
        adopting_run_ = true;
        auto adopted = co_await adopt_run(std::move(certificate));
        adopting_run_ = false;
        if (!adopted) co_return adopted;
        break;
      }
    }
    for (auto& [site, peer] : peers_.all()) {
      auto& asked = records_asked_[site];
      if (!peer.link->up() || (asked != 0 && now - asked < kSecond)) continue;
      peer.link->send(encode(RecordRequest{0}));
      asked = now;
    }
    co_await changed_.wait_until(world_.loop.now() + kSecond);
  }
  co_return Result<void>();
}

Task<Result<void>> Gateway::adopt_run(Certificate genesis) {
  const bool founded = genesis_vote_ && genesis_vote_->accepted->record == genesis.record;
  Result<void> written;
  auto write = [this, &written, &genesis] {
    // Whoever joins has not voted for what the operator has given up, or has forgotten it.
    for (const auto& given : roster_.recoveries)
      if (written && given.run == genesis.record.hash())
        written = store_.note_recovery(given.digest());
    if (written) written = store_.begin_run(genesis, *layout_, run_fingerprint_);
  };
  co_await run_on(world_.workers, world_.loop, std::move(write), 4096, Urgency::disk);
  if (!written) co_return written;
  genesis_ = std::move(genesis);
  run_ = genesis_->record.hash();
  named_roster_ = genesis_->record.roster;
  records_asked_.clear();
  stored_vote_.reset();
  world_.log.info("run_began", {.outer_step = 0}, {{"run", run_.hex()}, {"founded", founded}});
  adopt_initial();
  co_return Result<void>();
}

Task<void> Gateway::take_initial(LargeVector<float> parameters) {
  Initial initial;
  initial.state.agreed = std::move(parameters);
  bool finite = false;
  auto check = [this, &initial, &finite] {
    finite = kernels::all_within(initial.state.agreed, compress::kLargestValue);
    if (!finite) return;
    if (options_.sync.outer.has_momentum())
      initial.state.momentum.resize(initial.state.agreed.size());
    initial.root = inter::state_root(*layout_, initial.state);
  };
  co_await run_on(world_.workers, world_.loop, std::move(check), 12 * layout_->elements());
  if (!finite && ranks_)
    ranks_->refuse(
        Error{ErrorCode::non_finite,
              "the ranks' first parameters are not all finite and at most 2^64: no run begins "
              "with them"});
  if (!finite || state_) co_return;
  initial_ = std::move(initial);
  changed_.notify();
}

// The ranks' parameters are the run's first state, if they are those of record 0.
bool Gateway::adopt_initial() {
  if (!initial_ || state_ || !genesis_) return false;
  auto initial = *std::exchange(initial_, std::nullopt);
  if (initial.root != genesis_->record.initial_root) return false;
  initial.state.record = run_;
  state_ = std::make_shared<OuterState>(std::move(initial.state));
  state_root_ = initial.root;
  return true;
}

}  // namespace isthmus::inter
