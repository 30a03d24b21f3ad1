// How a gateway begins: with what its disk has of a run. gateway_founding.cc: where it has none.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/listed.h"
#include "inter/gateway.h"

namespace isthmus::inter {

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
  state_server_ = std::make_unique<StateServer>(
      StateServer::Context{world_.loop, world_.workers, store_, peers_, world_.signer, self_},
      *layout_, options_.sync.outer.has_momentum());
  state_fetcher_ = std::make_unique<StateFetcher>(
      StateFetcher::Context{world_.loop, world_.workers, world_.log, peers_, self_,
                            options_.at_point,
                            [this](std::uint64_t step, const security::Digest& root) {
                              return vouch_for(step, root);
                            }},
      *layout_, options_.sync.outer.has_momentum());
  for (auto& [site, peer] : peers_.all()) {
    peer.link->expect_chunks(kSealBytes + plan_->longest_payload_bytes());
    peer.link->start();
  }
}

}  // namespace isthmus::inter
