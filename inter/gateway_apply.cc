// From a decided record to a saved state: reduce what the record names, take the outer step, hash,
// log, settle feedback, save in the background, go on.
#include <algorithm>
#include <array>

#include "base/assert.h"
#include "inter/gateway.h"

namespace isthmus::inter {
namespace {

constexpr Nanoseconds kReadingTurn = 5 * kMillisecond;  // until the ranks are asked again

}  // namespace

// Writes the decided records up to `step`: always before a state that follows from them.
Task<Result<void>> Gateway::log_records(std::uint64_t step) {
  while (logged_records_ < step) {
    Result<void> written;
    const Certificate certificate = chain_[logged_records_];
    std::uint64_t removed_below = 0;
    auto write = [this, &written, &removed_below, &certificate] {
      written = with_room(removed_below, [&] { return store_.append_record(certificate); });
    };
    co_await run_on(world_.workers, world_.loop, std::move(write), 4096, Urgency::prompt);
    note_removed(removed_below);
    if (!written)
      co_return Error{written.error().code,
                      "cannot write the record of an outer step: free the disk and start again",
                      written.error()};
    ++logged_records_;
  }
  co_return Result<void>();
}

// Memory of the size of a state: that of one that nobody reads any more, if there is one.
OuterState Gateway::spare_state() {
  auto before = std::exchange(state_before_, nullptr);
  if (!before || before.use_count() > 1) return {};
  return std::move(*before);  // this was the last reference
}

void Gateway::step_ahead(std::uint32_t chunk) {
  auto parts = exchange_->all_with(chunk);
  if (parts.empty()) return;
  if (!ahead_ || &ahead_->before() != state_.get() || ahead_->parts() != parts) {
    Record likely;
    for (const auto& part : parts)
      likely.parts.push_back(
          {.site = part->site(), .root = {}, .tokens = part->open().tokens, .base = {}});
    ahead_ = std::make_shared<StepComputation>(*layout_, plan_, options_.sync.outer, state_,
                                               std::move(parts), weights_of(likely), spare_state(),
                                               draft());
  }
  if (!ahead_->begin(chunk)) return;
  ++counters_.stepped_ahead;
  std::vector<CodedChunk> coded;
  for (const auto& part : ahead_->parts()) coded.push_back(part->kept_coded(chunk));
  const auto result = std::make_shared<Result<void>>();
  world_.workers.submit(
      // What it refers to goes before its end is told.
      [ahead = ahead_, chunk, result, coded = std::move(coded)]() mutable {
        const auto computation = std::move(ahead);
        *result = computation->compute(chunk, std::move(coded));
      },
      [this, ahead = ahead_, chunk, result] {
        for (const auto& part : ahead->parts()) part->drop_coded(chunk);
        ahead->ended(*result);
        if (ahead->running() == 0) changed_.notify();
      },
      4 * plan_->elements(chunk) * (ahead_->parts().size() + 2));
}

// What the record names, in its order; nothing while bytes are missing.
std::optional<Gateway::Named> Gateway::named(const Record& record) const {
  Named all;
  for (const auto& part : record.parts) {
    auto contribution = exchange_->held(record.step, part.site);
    if (!contribution || contribution->part() != part) return std::nullopt;
    all.push_back(std::move(contribution));
  }
  return all;
}

// The outer step of `record` on the state before it. Chunks are independent of each other: each is
// reduced in the record's order, or was while it arrived.
Task<Result<Gateway::Stepped>> Gateway::take_step(std::shared_ptr<const OuterState> before,
                                                  Record record, Named parts,
                                                  std::shared_ptr<StepComputation> ahead) {
  Stepped stepped;
  std::vector<kernels::Hash128> leaves;
  if (record.parts.empty()) {  // nothing is averaged: nothing moves
    stepped.state = *before;
  } else {
    auto computation = ahead;
    if (!computation)
      computation = std::make_shared<StepComputation>(*layout_, plan_, record.rule,
                                                      std::move(before), std::move(parts),
                                                      weights_of(record), spare_state(), draft());
    std::vector<std::uint32_t> chunks;
    for (std::uint32_t i = 0; i < plan_->chunks(); ++i)
      if (computation->begin(i)) chunks.push_back(i);
    const auto step_chunk = [computation, &chunks](std::uint32_t i) {
      return computation->compute(chunks[i], {});
    };
    auto rest = co_await run_all(
        world_.workers, world_.loop, static_cast<std::uint32_t>(chunks.size()),
        4 * plan_->chunk_elements() * (computation->parts().size() + 2), step_chunk);
    for (std::size_t i = 0; i < chunks.size(); ++i) computation->ended(rest);
    while (computation->running() > 0) co_await changed_.wait();
    if (!computation->result())
      co_return Error{computation->result().error().code,
                      "a contribution that was checked does not decode: memory or disk of this "
                      "machine is broken",
                      computation->result().error()};
    stepped.state = std::move(computation->after());
    leaves = computation->leaves();
    stepped.draft = computation->draft();
  }
  if (options_.disturb) {
    stepped.draft.reset();
    options_.disturb(record.step, stepped.state.agreed);
    leaves.clear();
  }
  if (leaves.empty()) {
    leaves.resize(leaf_count(*layout_, options_.sync.outer.has_momentum()));
    const auto hash_leaf = [&](std::uint32_t i) -> Result<void> {
      leaves[i] = kernels::leaf_hash(leaf_bytes(*layout_, std::as_const(stepped.state), i));
      return {};
    };
    auto hashed =
        co_await run_all(world_.workers, world_.loop, static_cast<std::uint32_t>(leaves.size()),
                         4 * ModelLayout::kLeafElements, hash_leaf);
    if (!hashed) co_return hashed.error();
  }
  stepped.state.step = record.step;
  stepped.state.record = record.hash();
  stepped.root = inter::state_root(leaves);
  co_return std::move(stepped);
}

// False while bytes are missing.
Task<Result<bool>> Gateway::apply(const Certificate& certificate) {
  const auto& record = certificate.record;
  const auto k = record.step;
  const auto parts = named(record);
  if (!parts) co_return false;
  // At most one step is unsaved; and our own contribution is coded against the state that this step
  // replaces.
  applying_ = true;
  count_waits();
  while ((saving_ || has_contribution_to_make() || ranks_reading()) && !failure_ && !stopping_)
    co_await changed_.wait_until(world_.loop.now() + (ranks_reading() ? kReadingTurn : kSecond));
  if (failure_) co_return *failure_;
  if (stopping_) co_return false;

  auto ahead = std::exchange(ahead_, nullptr);
  if (ahead && (&ahead->before() != state_.get() || ahead->parts() != *parts)) ahead.reset();
  auto stepped = co_await take_step(state_, record, *parts, ahead);
  if (!stepped && ahead) stepped = co_await take_step(state_, record, *parts, nullptr);
  if (!stepped) co_return stepped.error();
  auto logged = co_await log_records(k);
  if (!logged) co_return logged.error();
  options_.at_point("merging", k);
  if (record.final_step) options_.at_point("final", k);

  auto settled = co_await settle_feedback(k);
  if (!settled) co_return settled.error();
  auto restored =
      co_await restore_contributions(k + 1, view_of_step(k + 1), record.hash(), stepped->root);
  if (!restored) co_return restored.error();
  auto misled = co_await recall_misled_base(k);
  // From here on, without a break: messages of the next step find it begun.
  state_before_ = std::exchange(state_, std::make_shared<OuterState>(std::move(stepped->state)));
  state_root_ = stepped->root;
  misled_base_ = std::move(misled);
  if (misled_base_) stepped->draft.reset();
  if (record.next_view != record.view) {
    ++counters_.view_changes;
    counters_.voters_changed += record.next_view.voters != record.view.voters;
    world_.log.info("view_changed", {.outer_step = static_cast<std::int64_t>(k)},
                    {{"members", static_cast<std::uint64_t>(record.next_view.members.size())}});
  }
  if (certificate.ballot > 0) ++counters_.ballots_above_zero;
  const auto now = world_.loop.now();
  took_part_ = contributed_at_ > 0 && contributed_at_ >= step_began_;
  world_.log.info(
      "step_applied", {.outer_step = static_cast<std::int64_t>(k)},
      {{"parts", static_cast<std::uint64_t>(record.parts.size())},
       {"tokens", record.tokens()},
       {"ballot", certificate.ballot},
       {"root", state_root_.hex()},
       {"behind", behind()},
       {"seconds", seconds_of(now - step_began_)},
       {"exchange_seconds", contributed_at_ > 0 ? seconds_of(now - contributed_at_) : 0.0}});
  enter_state(true, true, std::move(stepped->draft));
  if (misled_base_) {
    auto closed = co_await exchange_->close_again();
    if (!closed) co_return closed.error();
  }
  co_return true;
}

// The state is a new one, its records are logged, feedback is settled: goes on from it. `tell`: the
// ranks too, also if they do not wait for it; `draft`, if any, has its parameters.
void Gateway::enter_state(bool save_it, bool tell, std::shared_ptr<StateDraft> draft) {
  const auto step = state_->step;
  finished_ = step > 0 && chain_.size() >= step && chain_[step - 1].record.final_step;
  if (save_it) {
    saving_ = true;
    world_.loop.spawn(save(state_, state_root_));
  }
  applying_ = false;
  begun_ = true;
  differs_since_.reset();  // that was of another state
  if (finished_) {
    agreement_.reset();  // what it still wants to say is of a step that is over
    ++agreements_;
  } else {
    begin_step();
  }
  count_waits();
  // The last state is not taken back: it is told once it is known to be right.
  if (finished_)
    send_status();
  else if (tell)
    publish(std::move(draft));
  else
    publish_if_awaited();
}

// Goes on from a state that was fetched, instead of replaying.
Task<Result<void>> Gateway::adopt_state(OuterState fetched) {
  ++counters_.state_fetches;
  const auto step = fetched.step;
  applying_ = true;
  auto logged = co_await log_records(step);
  if (!logged) co_return logged;
  auto settled = co_await settle_feedback(step);
  if (!settled) co_return settled;
  while (ranks_reading()) co_await world_.loop.sleep(kReadingTurn);
  // Ranks that were told this step take no second state for it.
  const bool again = state_ && state_->step == step;
  if (!again)
    misled_base_.reset();
  else if (!misled_base_)
    misled_base_ = state_->agreed;
  security::Digest root;
  auto hash = [this, &fetched, &root] { root = inter::state_root(*layout_, fetched); };
  co_await run_on(world_.workers, world_.loop, std::move(hash), 8 * layout_->elements());
  auto restored =
      co_await restore_contributions(step + 1, view_of_step(step + 1), fetched.record, root);
  if (!restored) co_return restored;
  state_ = std::make_shared<OuterState>(std::move(fetched));
  state_root_ = root;
  if (!again) kept_from_ = at_hand_from_ = step + 1;
  enter_state(true, !again);
  co_return Result<void>();
}

// The residual of the last contribution is the next one's feedback.
void Gateway::take_feedback() { feedback_ = std::exchange(pending_->residual, {}); }

// What became of our last contribution, now that the record of `applied` is: what it left at this
// site rides in the next one.
Task<Result<void>> Gateway::settle_feedback(std::uint64_t applied) {
  auto settled = co_await settle_pending(applied);
  if (settled) settle_damaged(applied);
  co_return settled;
}

// One that is damaged here and whole at others, if the record names it: what rode in it is spent.
void Gateway::settle_damaged(std::uint64_t applied) {
  if (!damaged_feedback_ || damaged_feedback_->step > applied ||
      damaged_feedback_->step > chain_.size())
    return;
  auto left = *std::exchange(damaged_feedback_, std::nullopt);
  const auto* part = chain_[left.step - 1].record.part_of(self_);
  if (part == nullptr || part->root != left.root) return;
  if (left.residual.empty()) say_feedback_lost(left.step);
  store_.settle_feedback(left.step, left.root);
  contributed_before_ = std::exchange(contributed_step_, left.step);
  feedback_ = std::move(left.residual);
  carried_tokens_ = 0;
}

Task<Result<void>> Gateway::settle_pending(std::uint64_t applied) {
  if (!pending_ || pending_->step > applied || pending_->step > chain_.size())
    co_return Result<void>();
  const auto* part = chain_[pending_->step - 1].record.part_of(self_);
  if (part != nullptr && part->root == pending_->root) {
    take_feedback();
    carried_tokens_ = 0;
    pending_.reset();
    co_return Result<void>();
  }
  ++counters_.unnamed;
  if (options_.link.bug == PlantedBug::drop_feedback) {
    take_feedback();
    pending_.reset();
    co_return Result<void>();
  }
  // All of it: residual + decode(bytes). The bytes are in memory, or on disk after a restart.
  const auto step = pending_->step;
  auto recalled = co_await exchange_->recall(step, self_);
  if (!recalled) co_return recalled.error();
  const std::shared_ptr<const Contribution> contribution = std::move(*recalled);
  if (!contribution)
    co_return Error{ErrorCode::corrupt,
                    fmt::format("what this site contributed to step {}, and no record named, "
                                "cannot be read back from {}",
                                step, options_.folder)};
  Result<void> carried;
  auto carry = [this, &carried, contribution] {
    for (std::uint32_t i = 0; carried && i < plan_->chunks(); ++i) {
      if (const auto coded = contribution->unpack(i); !coded)
        carried = coded.error();
      else
        carried = carry_chunk(*plan_, i, *coded, pending_->residual);
    }
  };
  co_await run_on(world_.workers, world_.loop, std::move(carry), 8 * layout_->elements());
  // One of before a restart may be in the system's cache alone: until the next close is on disk
  // nothing else has what is carried.
  if (carried && step <= restored_to_) carried = co_await keep_contribution(contribution);
  if (!carried) co_return carried;
  take_feedback();
  carried_tokens_ = pending_->tokens;
  pending_.reset();
  world_.log.info("contribution_carried", {.outer_step = static_cast<std::int64_t>(step)},
                  {{"tokens", carried_tokens_}});
  co_return Result<void>();
}

Task<Result<void>> Gateway::keep_contribution(std::shared_ptr<const Contribution> contribution) {
  Result<void> kept;
  std::uint64_t removed_below = 0;
  auto rewrite = [this, &kept, &removed_below, &contribution] {
    kept = with_room(removed_below, [&]() -> Result<void> {
      ISTHMUS_CHECK(store_.contributions().rewrite(*contribution));
      return {};
    });
  };
  co_await run_on(world_.workers, world_.loop, std::move(rewrite), contribution->bytes(),
                  Urgency::disk);
  note_removed(removed_below);
  co_return kept;
}

// In slices, so that what others wait for has its turn in between.
Task<Result<void>> Gateway::write_state(const OuterState& state, const security::Digest& root) {
  std::unique_ptr<StateFile> file;
  Result<bool> more = true;
  auto begin = [&] {
    options_.at_point("saving", state.step);
    auto begun = store_.begin_state(state, root);
    if (begun)
      file = std::move(*begun);
    else
      more = begun.error();
  };
  co_await run_on(world_.workers, world_.loop, std::move(begin), 4096, Urgency::disk);
  while (more && *more) {
    auto write = [&] { more = file->write_slice(); };
    co_await run_on(world_.workers, world_.loop, std::move(write), file->next_slice_bytes(),
                    Urgency::disk);
  }
  co_return more ? Result<void>() : more.error();
}

Task<Result<void>> Gateway::set_newest_state_aside(std::uint64_t step) {
  Result<void> done;
  auto set_aside = [this, &done, step] { done = store_.set_newest_state_aside(step); };
  co_await run_on(world_.workers, world_.loop, std::move(set_aside), 4096, Urgency::disk);
  co_return done;
}

Task<void> Gateway::save(std::shared_ptr<const OuterState> state, security::Digest root) {
  const auto step = state->step;
  Saved saved{.id = step_id(), .state_root = root, .strong_root = {}, .spot_root = {}};
  saved.id.run = run_;
  saved.id.step = step;
  const auto announce = [&] {
    saved_step_ = step;
    saved_any_ = true;
    announce_saved(saved);
  };
  // What lies there of this step turned out wrong. It goes first: a crash leaves the state before
  // it, which is the one that is saved from now on.
  bool wrong_one = saved_any_ && saved_step_ == step;
  if (wrong_one) saved_step_ = step - 1;
  if (options_.link.bug == PlantedBug::announce_before_saved) announce();
  const auto began = world_.loop.now();
  for (;;) {
    Result<void> written;
    if (wrong_one) written = co_await set_newest_state_aside(step);
    wrong_one &= !written;
    if (written) written = co_await write_state(*state, root);
    if (written) break;
    not_saved_why_ = written.error().text();
    // The step stays unsaved, and no further one is applied, until the disk has room again.
    world_.log.alarm("state_not_saved", {.outer_step = static_cast<std::int64_t>(step)},
                     {{"why", not_saved_why_},
                      {"then", "tried again until it works; no further step is applied before"}});
    if (stopping_) {
      saving_ = false;
      co_return;
    }
    co_await world_.loop.sleep(kRetryDisk);
  }
  auto hash = [this, &saved, state] { saved.spot_root = spot_root(*layout_, *state); };
  co_await run_on(world_.workers, world_.loop, std::move(hash), layout_->elements() / 4,
                  Urgency::background);
  saving_ = false;
  if (!not_saved_why_.empty())
    world_.log.info("disk_takes_again", {.outer_step = static_cast<std::int64_t>(step)},
                    {{"what", "the state"}, {"seconds", (world_.loop.now() - began) / kSecond}});
  not_saved_why_.clear();
  announce();
  changed_.notify();
}

// Named bytes are kept until a majority of the voters has saved the following step; on disk, where
// there is room, longer for sites that return.
void Gateway::prune() {
  if (!state_) return;
  const auto majority_saved = saved_.saved_by_majority(current_view());
  // The last saved step's bytes stay too: a state is proved by the record after it, so who fetches
  // one replays one.
  const auto not_needed = std::min(majority_saved, saved_step_);
  at_hand_from_ = std::max(at_hand_from_, not_needed);
  const auto bound = returning_ && disk_takes()
                         ? returning_->keep_from(not_needed, world_.loop.now())
                         : not_needed;
  if (bound <= kept_from_) return;
  kept_from_ = bound;
  if (!pruning_) world_.loop.spawn(remove_pruned());
}

Task<void> Gateway::remove_pruned() {
  pruning_ = true;
  for (std::uint64_t removed_below = 0; removed_below < kept_from_;) {
    removed_below = kept_from_;
    // What a restart makes feedback of stays as well.
    Result<std::size_t> removed = Error{ErrorCode::cancelled, ""};
    auto remove = [this, &removed, below = kept_from_,
                   own = std::array{contributed_step_, contributed_before_}] {
      removed = store_.contributions().remove_below(below, own, self_);
    };
    co_await run_on(world_.workers, world_.loop, std::move(remove), 4096, Urgency::disk);
    if (!removed)
      world_.log.warning("old_contributions_stay", {}, {{"why", removed.error().text()}});
  }
  pruning_ = false;
}

}  // namespace isthmus::inter
