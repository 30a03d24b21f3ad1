// How a gateway begins: from its disk, by founding a run with all other voters (record 0), or by
// joining one.
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

View Gateway::view_of_roster() const {
  View view;
  for (const auto& site : roster_.sites)
    if (site.voter) view.voters.push_back(site.id);
  view.members = view.voters;  // at least
  return view;
}

View Gateway::with_vote_files(View view) const {
  for (const auto& [site, peer] : peers_.all())
    if (view.takes_part(site)) view.set_vote_file(site, peer.vote_file);
  if (view.takes_part(self_)) view.set_vote_file(self_, vote_file_);
  // What those have signed for this step whom we do not see: newer than what they said themselves.
  for (const auto& wish : peers_.wishes(working_step(), self_))
    if (view.takes_part(wish.site)) view.set_vote_file(wish.site, wish.vote_file);
  return view;
}

void Gateway::note_removed(std::uint64_t below) {
  if (below == 0) return;
  kept_from_ = std::max(kept_from_, below);
  at_hand_from_ = std::max(at_hand_from_, kept_from_);
  world_.log.warning(
      "removed_for_room", {.outer_step = static_cast<std::int64_t>(below)},
      {{"why", "the disk is full"}, {"then", "a site that was away for longer fetches a state"}});
}

Result<void> Gateway::load() {
  const auto new_vote_file = world_.random.split("vote file").next() | 1;
  std::uint64_t removed_below = 0;
  ISTHMUS_TRY(auto loaded, with_room(removed_below, [&] { return store_.load(new_vote_file); }));
  boot_ = loaded.boot;
  KnownRoster own{.digest = roster_.digest, .sites = {}, .voters = view_of_roster().voters};
  for (const auto& site : roster_.sites) own.sites.push_back(site.id);
  ISTHMUS_TRY(rosters_,
              with_room(removed_below, [&] { return store_.note_roster(own, &loaded.damaged); }));
  note_removed(removed_below);
  for (const auto& damaged : loaded.damaged)
    world_.log.warning("file_damaged", {}, {{"what", damaged.what}, {"then", damaged.then}});
  if (loaded.layout) take_layout(std::move(*loaded.layout));
  vote_file_ = loaded.vote_file;
  if (!loaded.genesis) {
    if (loaded.vote.accepted) genesis_vote_ = loaded.vote;
    return {};
  }
  ISTHMUS_CHECK(take_up_run(loaded));
  stored_vote_ = std::pair(loaded.vote_step, loaded.vote);
  ISTHMUS_CHECK(take_up_recovery());
  if (const auto owner = other_owner())
    return Error{ErrorCode::mismatch,
                 fmt::format("{} is of the run_dir of site {}: its vote file is that site's. Give "
                             "each site its own run_dir again",
                             options_.folder, name_of(*owner))};
  ISTHMUS_TRY(restored_to_, store_.contributions().newest());
  ISTHMUS_CHECK(take_up_feedback(std::move(loaded.feedbacks)));
  // A site's first contribution has written one slot, and one on a new disk none: of who had the
  // disk before nothing is missing here. But where one of two is missing while the other counts,
  // that may be the one before, which rode already.
  if (loaded.feedback_damaged || loaded.feedback_missing)
    ISTHMUS_CHECK(take_up_without_feedback(loaded.feedback_damaged || pending_));
  world_.log.info("state_loaded",
                  {.outer_step = state_ ? static_cast<std::int64_t>(state_->step) : -1},
                  {{"boot", boot_},
                   {"records", static_cast<std::uint64_t>(chain_.size())},
                   {"root", state_root_.hex()}});
  return {};
}

// Its record 0, its records, and the state if there is one.
Result<void> Gateway::take_up_run(OuterStore::Loaded& loaded) {
  genesis_ = std::move(loaded.genesis);
  run_ = genesis_->record.hash();
  named_roster_ = genesis_->record.roster;
  if (const auto other = run_fingerprint_.difference(loaded.fingerprint, "now", "then");
      !other.empty())
    return Error{ErrorCode::mismatch,
                 fmt::format("this site's run was begun with other settings ({}): restore them, or "
                             "give the new run another run_dir",
                             other)};
  if (loaded.state) state_ = std::make_shared<OuterState>(std::move(*loaded.state));
  state_root_ = loaded.state_root;
  ISTHMUS_CHECK(take_up_records(loaded.records));
  if (const auto unknown = unknown_to_roster())
    return Error{ErrorCode::mismatch,
                 fmt::format("the roster knows nothing of site {}, which took part in this run: "
                             "without its key nobody can check what it signed. The operator lists "
                             "it as a site, or under [[former]] as `isthmus roster remove` does",
                             *unknown)};
  if (!state_) return {};
  if (state_->step > chain_.size())
    return Error{
        ErrorCode::corrupt,
        fmt::format(
            "the state of step {} has no record: {}/records is missing or damaged. Move it and "
            "state.0 and state.1 beside it away, and nothing else: the site then "
            "fetches them from its peers, and keeps its vote",
            state_->step, options_.folder)};
  saved_step_ = state_->step;
  saved_any_ = true;
  // The named bytes that are still here, and may be asked for.
  const auto all_here = [this](const Record& record) {
    return std::all_of(record.parts.begin(), record.parts.end(), [&](const Part& part) {
      return store_.contributions().has(record.step, part.site).value_or(false);
    });
  };
  kept_from_ = state_->step + 1;
  while (kept_from_ > 1 && all_here(chain_[kept_from_ - 2].record)) --kept_from_;
  at_hand_from_ = kept_from_;
  return {};
}

// The newest one that counts is what rides in the next contribution.
Result<void> Gateway::take_up_feedback(std::vector<Feedback> newest_first) {
  if (options_.link.bug == PlantedBug::two_contributions) return {};
  for (auto& feedback : newest_first) {
    if (pending_) {
      contributed_before_ = feedback.step;
      break;
    }
    ISTHMUS_TRY(const auto closed, was_closed(feedback));
    if (closed == Closed::damaged) keep_aside(std::move(feedback));
    if (closed != Closed::yes) continue;
    store_.settle_feedback(feedback.step, feedback.root);
    contributed_step_ = feedback.step;
    pending_ = std::move(feedback);
  }
  return {};
}

// A slot of feedback is damaged, or missing: by a crash while it was written, so that its
// contribution was never closed; or the disk has forgotten what it had synced. Then of the newest
// contribution what coding cut off is lost, and what rode in it must not ride again. Which of the
// two it is, a newer contribution tells that was closed: its feedback was on the disk before. Where
// no slot says that this disk had any, its vote file tells which views it took part in.
Result<void> Gateway::take_up_without_feedback(bool this_disk_had_some) {
  const auto settled = pending_ ? pending_->step : 0;
  for (auto step = std::max<std::uint64_t>(restored_to_, chain_.size()); step > settled; --step) {
    if (!this_disk_had_some && view_of_step(step).vote_file_of(self_) != vote_file_) continue;
    Feedback none{.step = step, .root = {}, .tokens = 0, .residual = {}};
    const auto* part = step <= chain_.size() ? chain_[step - 1].record.part_of(self_) : nullptr;
    if (part != nullptr) {
      none.root = part->root;
      none.tokens = part->tokens;
    } else {
      ISTHMUS_TRY(const bool there, store_.contributions().has(step, self_));
      if (!there) continue;
      const auto stored = store_.contributions().read(step, self_);
      if (!stored && !is_lost(stored.error())) return stored.error();
      const auto open = stored ? decode_open(stored->announcement.body) : std::nullopt;
      const auto close = stored && stored->close ? decode_close(stored->close->body) : std::nullopt;
      if (!open || !close) continue;
      none.root = close->root;
      none.tokens = open->tokens;
    }
    ISTHMUS_TRY(const auto closed, was_closed(none));
    if (closed == Closed::damaged) keep_aside(std::move(none));
    if (closed != Closed::yes) continue;
    say_feedback_lost(step);
    none.residual.resize(layout_->elements());
    std::fill(none.residual.begin(), none.residual.end(), 0.0F);
    contributed_step_ = step;
    pending_ = std::move(none);
    break;
  }
  return {};
}

// Of a contribution that is damaged here: others may have it, and what rode in it.
void Gateway::keep_aside(Feedback feedback) {
  if (feedback.step <= damaged_step_) return;
  damaged_step_ = feedback.step;
  damaged_feedback_ = std::move(feedback);
}

void Gateway::say_feedback_lost(std::uint64_t step) {
  world_.log.alarm("feedback_lost", {.outer_step = static_cast<std::int64_t>(step)},
                   {{"why", "it is damaged on this disk, or missing, and its contribution counts"},
                    {"then", "what the codec cut off of that contribution is lost"}});
}

// A feedback counts if its contribution was closed: a record names it, or its file is whole. The
// close alone is nothing: after a crash it may be there, and chunks that were written before not.
// Errors: what the disk cannot read now may be there.
Result<Gateway::Closed> Gateway::was_closed(const Feedback& feedback) const {
  if (feedback.step <= chain_.size()) {
    const auto* part = chain_[feedback.step - 1].record.part_of(self_);
    if (part != nullptr && part->root == feedback.root) return Closed::yes;
  }
  const auto stored = store_.contributions().read(feedback.step, self_);
  if (!stored && !is_lost(stored.error())) return stored.error();
  const auto close = stored && stored->close ? decode_close(stored->close->body) : std::nullopt;
  if (!close || close->root != feedback.root) return Closed::no;
  // Of a step that was given up, it does not: the ranks contribute anew.
  const bool follows_recovery = std::ranges::any_of(
      recoveries(), [&](const auto* given) { return given->step < feedback.step; });
  if (follows_recovery &&
      (feedback.step > chain_.size() + 1 || close->id.view != view_of_step(feedback.step).digest()))
    return Closed::no;
  return is_whole(*stored) ? Closed::yes : Closed::damaged;
}

std::optional<SiteId> Gateway::other_owner() const {
  if (!recoveries().empty()) return std::nullopt;  // gives all voters the same number
  const auto view = current_view();
  // Numbers are no secret, and who has no vote may say any.
  if (view.vote_file_of(self_) == vote_file_) return std::nullopt;
  for (const auto& [site, file] : view.vote_files)
    if (site != self_ && file == vote_file_ && view.is_voter(site)) return site;
  return std::nullopt;
}

std::optional<SiteId> Gateway::unknown_to_roster() const {
  const auto unknown = [this](const View& view) -> std::optional<SiteId> {
    for (const auto* sites : {&view.members, &view.voters})
      for (const auto site : *sites)
        if (roster_.identity_of(site) == nullptr) return site;
    return std::nullopt;
  };
  if (const auto site = unknown(genesis_->record.view)) return site;
  for (const auto& certificate : chain_)
    if (const auto site = unknown(certificate.record.next_view)) return site;
  return std::nullopt;
}

// Our own records are not proved again. What the operator has given up is left out.
Result<void> Gateway::take_up_records(const std::vector<Certificate>& records) {
  for (const auto& certificate : records) {
    const auto step = certificate.record.step;
    const auto* given = recovery_before(step);
    if (given != nullptr && certificate.record.view != view_of_step(step)) {
      if (state_ && state_->step >= step)
        return Error{ErrorCode::mismatch,
                     fmt::format("the roster goes on from step {}, but this site has step {} with "
                                 "the root {}: the operator must recover from that (isthmus roster "
                                 "recover --replace, if no site has gone on from step {})",
                                 given->step, state_->step, state_root_.hex(), given->step)};
      world_.log.alarm("records_given_up", {.outer_step = static_cast<std::int64_t>(step)},
                       {{"records", static_cast<std::uint64_t>(records.size() - chain_.size())}});
      ISTHMUS_CHECK(store_.truncate_records(given->step));
      break;
    }
    if (!append(certificate)) break;
  }
  logged_records_ = chain_.size();
  const auto* given = state_ ? recovery_before(state_->step + 1) : nullptr;
  if (given != nullptr && state_root_ != given->root)
    return Error{ErrorCode::mismatch,
                 fmt::format("the roster goes on from step {} with the root {}, this site's has {}",
                             given->step, given->root.hex(), state_root_.hex())};
  return {};
}

// Where the operator says to go on, votes of before count no more: this site votes with a new file,
// once for each recovery, so that what it votes then is not forgotten by another restart.
Result<void> Gateway::take_up_recovery() {
  const auto given = recoveries();
  if (given.empty()) return {};
  const auto& newest = *given.back();
  const auto digest = newest.digest();
  ISTHMUS_TRY(const bool known, store_.knows_recovery(digest));
  if (known) return {};
  const auto& voters = newest.voters;
  std::uint64_t removed_below = 0;
  // Whose vote file has that number has taken it up, though the note of it is damaged: its votes
  // are not to be forgotten.
  if (std::binary_search(voters.begin(), voters.end(), self_) &&
      vote_file_ != vote_file_of(newest)) {
    vote_file_ = vote_file_of(newest);
    ISTHMUS_CHECK(with_room(removed_below, [&] { return store_.renew_vote_file(vote_file_); }));
    stored_vote_.reset();
  }
  ISTHMUS_CHECK(with_room(removed_below, [&] { return store_.note_recovery(digest); }));
  note_removed(removed_below);
  return {};
}

void Gateway::start_links() {
  plan_ = std::make_shared<const ChunkPlan>(*layout_, 0, options_.sync.chunk_elements,
                                            options_.sync.codec);
  returning_.emplace(
      steps_kept_for_return((options_.sync.outer.has_momentum() ? 8 : 4) * layout_->elements(),
                            roster_.sites.size() * plan_->bytes_max()));
  exchange_ = std::make_unique<Exchange>(
      Exchange::Context{world_.loop, world_.workers, world_.log, store_, peers_, world_.signer,
                        world_.verifier, self_, boot_, options_.at_point, options_.link.bug},
      plan_,
      [this](const Part& part) {
        const auto now = world_.loop.now();
        if (!first_held_at_) first_held_at_ = now;
        if (auto* peer = peers_.find(part.site); peer != nullptr || part.site == self_)
          straggler_wait_.learn(peer != nullptr ? peer->lateness : own_lateness_,
                                now - *first_held_at_);
        if (agreement_) agreement_->hold(part);
        count_waits();
        votes_.notify();
        changed_.notify();
      },
      [this](std::uint32_t chunk) { step_ahead(chunk); }, [this] { changed_.notify(); });
  transfer_ = std::make_unique<StateTransfer>(
      StateTransfer::Context{world_.loop, world_.workers, world_.log, store_, peers_, world_.signer,
                             self_, options_.at_point,
                             [this](std::uint64_t step, const security::Digest& root) {
                               return vouch_for(step, root);
                             }},
      *layout_, options_.sync.outer.has_momentum());
  for (auto& [site, peer] : peers_.all()) {
    peer.link->expect_chunks(kSealBytes + plan_->longest_payload_bytes());
    peer.link->start();
  }
}

// --- Record 0

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
  if (accept.record.view.is_voter(self_) && !names_us) say_founding_is_stuck();
  if (from == voters.front() && accept.record.view.is_voter(self_) && names_us && !genesis_vote_ &&
      !genesis_chosen_ && initial_ && may_found())
    genesis_chosen_ = accept.record;
  changed_.notify();
}

// A vote file that was lost before record 0 was decided everywhere: nobody can know what it said.
void Gateway::say_founding_is_stuck() {
  if (const auto left_out = genesis_refusals_.due(world_.loop.now()))
    world_.log.alarm(
        "founding_stuck", {},
        {{"why",
          "the sites were about to begin a run with a vote file that this site "
          "has lost since"},
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

void Gateway::say_bound_by_older_roster() {
  if (const auto left_out = genesis_refusals_.due(world_.loop.now()))
    world_.log.alarm(
        "founding_stuck", {},
        {{"why",
          "this site has voted to begin a run of an older roster, and no site that it "
          "sees has said that it began"},
         {"what_to_do", fmt::format("unless a site has trained already, remove {} at all of "
                                    "them, and start again",
                                    options_.folder)},
         {"left_out", *left_out}});
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
      if (now - founding_since_ > kTimeToHear) say_bound_by_older_roster();
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
