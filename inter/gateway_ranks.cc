// What a gateway does for its site's ranks: their first parameters, their contributions, and the
// states that they take.
#include <fmt/format.h>

#include <algorithm>

#include "inter/gateway.h"

namespace isthmus::inter {
namespace {

// Of a contribution or a state; tensors' ends may make a contribution's more, for which a link
// takes twice as many.
constexpr std::uint64_t kChunksMax = 1 << 17;
constexpr Nanoseconds kRankFarewell = 200 * kMillisecond;  // for the last state to reach a rank

}  // namespace

Result<void> Gateway::attached(const ModelLayout& layout) {
  if (layout.elements() / options_.sync.chunk_elements >= kChunksMax)
    return Error{ErrorCode::too_large,
                 fmt::format("a model of {} parameters: one gateway exchanges {} at most",
                             layout.elements(), kChunksMax * options_.sync.chunk_elements)};
  if (const auto leaves = leaf_count(layout, options_.sync.outer.has_momentum());
      leaves >= kChunksMax)
    return Error{ErrorCode::too_large,
                 fmt::format("a model whose state has {} pieces of {} elements: one gateway sends "
                             "{} at most to a site that returns",
                             leaves, ModelLayout::kLeafElements, kChunksMax)};
  const auto& tensors = layout.tensors();
  if (const auto found =
          std::find_if(tensors.begin(), tensors.end(),
                       [](const TensorInfo& tensor) { return tensor.fragment != 0; });
      found != tensors.end())
    return Error{
        ErrorCode::unsupported,
        fmt::format("{} is of fragment {}: this gateway exchanges the whole model at once, "
                    "as fragment 0",
                    found->name, found->fragment)};
  if (layout_ && layout_->digest() != layout.digest())
    return Error{ErrorCode::mismatch,
                 fmt::format("the ranks' model differs from the run's: {}",
                             Fingerprint::of(*layout_, options_.sync)
                                 .difference(Fingerprint::of(layout, options_.sync), "in the run",
                                             "at the ranks"))};
  if (!layout_) take_layout(layout);
  rank_pulse_.attached(world_.loop.now(), genesis_.has_value());
  ranks_leaving_ = false;
  // After the caller is done with its own bookkeeping.
  world_.loop.call_after(0, [this] {
    if (applying_)
      state_awaited_ = true;
    else if (state_ && (!finished_ || end_told_))
      publish();
    changed_.notify();
  });
  return {};
}

void Gateway::detached() {
  rank_pulse_.detached();
  send_status();
  changed_.notify();
}

void Gateway::offer_initial(LargeVector<float> parameters) {
  rank_pulse_.offered();
  if (!layout_ || parameters.size() != layout_->elements() || state_) return;
  world_.loop.spawn(take_initial(std::move(parameters)));
}

Result<void> Gateway::contribute(std::uint64_t step,
                                 std::shared_ptr<const ContributedValues> parameters,
                                 std::uint64_t tokens) {
  if (const auto computed = rank_pulse_.handed_over(world_.loop.now()))
    straggler_wait_.add_step(*computed);
  if (!state_ || !exchange_ || finished_)
    return Error{ErrorCode::unavailable, "there is no state to contribute to"};
  if (tokens > kTokensMax - carried_tokens_)
    return Error{
        ErrorCode::invalid_argument,
        fmt::format("a contribution of {} tokens: one has {} at most", tokens, kTokensMax)};
  if (step != working_step() || chain_.size() >= step)
    return Error{ErrorCode::mismatch, fmt::format("step {} is decided: a new state comes", step)};
  if (taking_contribution_ || exchange_->contributed() || (pending_ && pending_->step == step))
    return Error{ErrorCode::mismatch, fmt::format("step {} has this site's contribution", step)};
  if (applying_) {
    state_awaited_ = true;
    return Error{ErrorCode::mismatch,
                 fmt::format("the state before step {} is about to be another one", step)};
  }
  const auto view = current_view();
  if (!view.is_member(self_))
    return Error{ErrorCode::mismatch,
                 "this site is not a member yet: its work goes on from the next state"};
  // It may have contributed to this step with the disk that it lost.
  if (view.vote_file_of(self_) != vote_file_)
    return Error{ErrorCode::mismatch,
                 "no record names this site's new disk yet: its work goes on from the next state"};
  if (parameters->size() != layout_->elements())
    return Error{ErrorCode::invalid_argument, "a contribution of another size than the model"};
  taking_contribution_ = true;
  count_waits();
  world_.loop.spawn(contribute_task(std::move(parameters), tokens));
  return {};
}

void Gateway::progressing() { rank_pulse_.note(world_.loop.now()); }

void Gateway::leaving() {
  ranks_leaving_ = true;
  rank_pulse_.detached();
  send_status();
}

// A site whose disk does not have whole what it wrote may have contributed to this step and not
// know it; two contributions of one site are two values for ballot 0. It makes another one only
// when all other members say that they have nothing of it, and nobody else says that they have.
// False: they have, or the step is over.
Task<bool> Gateway::may_contribute() {
  const auto k = working_step();
  while (!stopping_ && !failure_ && working_step() == k && chain_.size() < k) {
    if (damaged_step_ != k) co_return true;
    const auto view = current_view();
    const auto says = [&](const PeerSite& peer, bool has) {
      return peer.status && peer.status->step == k &&
             (std::count(peer.status->holds.begin(), peer.status->holds.end(), self_) > 0) == has;
    };
    const bool members_have_not =
        std::all_of(view.members.begin(), view.members.end(), [&](SiteId site) {
          const auto* peer = peers_.find(site);
          return site == self_ || (peer != nullptr && says(*peer, false));
        });
    // Who is no member, and would like to be, has it as members have.
    const bool somebody_has =
        std::any_of(peers_.all().begin(), peers_.all().end(),
                    [&](const auto& entry) { return says(entry.second, true); });
    if (members_have_not && !somebody_has) co_return true;
    co_await changed_.wait_until(world_.loop.now() + kSecond);
  }
  co_return false;
}

Task<void> Gateway::contribute_task(std::shared_ptr<const ContributedValues> parameters,
                                    std::uint64_t tokens) {
  const bool may = co_await may_contribute();
  if (!may) {
    taking_contribution_ = false;  // the ranks keep it for the next state
    changed_.notify();
    co_return;
  }
  contributed_at_ = world_.loop.now();
  const std::span<const float> base = misled_base_ ? *misled_base_ : state_->agreed;
  auto& spare =
      spare_residuals_.back().empty() ? spare_residuals_.front() : spare_residuals_.back();
  auto made = co_await exchange_->contribute(base, std::move(parameters), feedback_,
                                             tokens + carried_tokens_, std::move(spare));
  taking_contribution_ = false;
  count_waits();
  if (!made) {
    // The ranks' numbers, or our disk, which the exchange tells of: nothing was promised to anybody
    // yet.
    if (made.error().text() != exchange_->disk_refuses())
      world_.log.alarm("contribution_failed",
                       {.outer_step = static_cast<std::int64_t>(working_step())},
                       {{"why", made.error().text()}});
    if (made.error().code == ErrorCode::non_finite && ranks_)
      ranks_->refuse(
          Error{ErrorCode::non_finite,
                "the ranks contributed values that are not finite, or above 2^64: the "
                "training has diverged; lower the learning rate or go back to a checkpoint",
                made.error()});
    changed_.notify();
    // The ranks still have what they contributed: they give it again when the state is published
    // again.
    co_await world_.loop.sleep(kRetryDisk);
    if (applying_)
      state_awaited_ = true;
    else if (state_ && !taking_contribution_)
      publish();
    co_return;
  }
  pending_ = std::move(*made);
  damaged_feedback_.reset();  // nobody has that contribution, and this one is in its place
  if (contributed_step_ != pending_->step)
    contributed_before_ = std::exchange(contributed_step_, pending_->step);
  spare_residuals_.back() = std::exchange(feedback_, {});  // it is part of the contribution now
  carried_tokens_ = 0;
  changed_.notify();
}

// Records know of what our own files have lost.
std::uint64_t Gateway::newest_contribution() const {
  for (auto step = chain_.size(); step > contributed_step_; --step)
    if (chain_[step - 1].record.part_of(self_) != nullptr) return step;
  return contributed_step_;
}

void Gateway::publish(std::shared_ptr<StateDraft> draft) {
  if (!ranks_ || !rank_pulse_.here() || !state_) return;
  state_awaited_ = false;
  rank_pulse_.told(world_.loop.now());
  ranks_know_end_ |= finished_;
  ranks_->publish({.step = state_->step,
                   .record = state_->record,
                   .run = run_,
                   .parameters = misled_base_ && !finished_ ? *misled_base_ : state_->agreed,
                   .merge = MergeRule::keep_progress,
                   .final_step = finished_,
                   .contributed = newest_contribution(),
                   .contribution_open = pending_ && pending_->step == working_step(),
                   .draft = std::move(draft)});
}

// Whoever attached or contributed while nothing could be taken is told the state again.
void Gateway::publish_if_awaited() {
  if (state_awaited_) publish();
}

// Ranks of a run that is launched once more come for its last state, even if it is all that there
// is to say to them.
bool Gateway::ranks_have_the_end(Nanoseconds told) const {
  const auto now = world_.loop.now();
  if (ranks_reading()) return false;
  if (!ranks_know_end_) return now - told >= options_.linger;
  // They may write a checkpoint first, which of a large model takes its time.
  if (rank_pulse_.here() && !ranks_->all_took()) return now - told >= straggler_wait_.most();
  return now - std::max(told, rank_pulse_.last()) >= kRankFarewell;
}

}  // namespace isthmus::inter
