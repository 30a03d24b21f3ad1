#include "runtime/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "base/byte_stream.h"
#include "base/counted.h"
#include "runtime/checkpoint.h"
#include "runtime/family.h"
#include "runtime/metrics_log.h"
#include "runtime/micro_batches.h"
#include "runtime/run_checkpoints.h"
#include "runtime/share.h"
#include "runtime/spike_guard.h"
#include "runtime/trained_parameters.h"
#include "runtime/training_memory.h"

namespace isthmus::runtime {
namespace {

constexpr Nanoseconds kStatePoll = 100 * kMillisecond;  // how late a stop is noticed while waiting

class Trainer {
 public:
  Trainer(const TrainParts& parts, const TrainOptions& options)
      : parts_(parts),
        options_(options),
        model_(parts.model),
        is_root_(parts.world.rank() == kRoot),
        observers_(parts.observers),
        batches_(parts.data, parts.model.shape(), parts.world.rank(), parts.world.world_size(),
                 options.seed, parts.masking),
        checkpoints_(parts, options, progress_, spikes_, observers_),
        trained_(parts.model) {
    ISTHMUS_ASSERT((parts.outer != nullptr) == (options.federated && is_root_));
    ISTHMUS_ASSERT(options.micro_batches > 0 && options.inner_steps > 0 &&
                   options.checkpoint_steps > 0 && options.lead_steps >= 0);
    ISTHMUS_ASSERT(parts.masking != nullptr ||
                   objective_of(parts.model.config()) == Objective::next_token);
    ISTHMUS_ASSERT(options.evaluate_steps == 0 ||
                   (parts.tokenizer != nullptr && !options.held_out.empty()));
  }

  Result<TrainOutcome> run() {
    ISTHMUS_CHECK(fits_in_memory(parts_.machine_memory, parts_.world.local_world_size(),
                                 model_.memory_bytes(),
                                 options_.federated ? trained_.elements() : 0));
    model_.set_rates(options_.rates);
    ISTHMUS_CHECK(start());
    if (options_.federated) {
      ISTHMUS_TRY(const bool begun, begin_federated());
      if (!begun) return outcome(/*finished=*/false);
    }
    note_begun();
    const auto stopped = train_until_end();
    checkpoints_.finish();
    if (!stopped) return stopped.error();
    if (is_root_)
      ISTHMUS_CHECK(*stopped ? checkpoints_.write_at_stop(trained_on())
                             : checkpoints_.write_last());
    if (*stopped && parts_.outer != nullptr) parts_.outer->leave();
    return outcome(!*stopped);
  }

 private:
  // True: stopped before.
  Result<bool> train_until_end() {
    while (!ended()) {
      checkpoints_.look();
      ISTHMUS_TRY(const bool stopped, agreed_stop());
      if (stopped) return true;
      if (options_.federated) {
        ISTHMUS_CHECK(take_newest_state());
        if (ended()) continue;
        // What was trained past the last contribution, or before a restart, may be a whole one.
        if (contribution_due()) ISTHMUS_CHECK(contribute());
        if (waiting()) continue;
      }
      ISTHMUS_CHECK(inner_step());
      if (contribution_due()) ISTHMUS_CHECK(contribute());
      if (is_root_) checkpoints_.after_step();
    }
    return false;
  }

  TrainOutcome outcome(bool finished) const {
    return {.finished = finished,
            .inner_step = progress_.inner_step,
            .outer_step = progress_.outer_step,
            .tokens = progress_.tokens,
            .loss = loss_,
            .checkpoint = checkpoints_.newest(),
            .not_kept = checkpoints_.not_kept()};
  }

  // ---- start

  Result<void> start() {
    bool resumed = false;
    if (is_root_) {
      if (!options_.metrics_path.empty()) {
        ISTHMUS_TRY(metrics_, MetricsLog::open(parts_.clock, options_.metrics_path));
        observers_.push_back(metrics_.get());
      }
      ISTHMUS_TRY(auto kept, load_newest_checkpoint(parts_.disk, options_.checkpoint_folder, model_,
                                                    parts_.log));
      resumed = kept.has_value();
      if (kept && kept->frozen_digest != options_.frozen_digest)
        return Error{
            ErrorCode::mismatch,
            fmt::format("the parameters that do not train are not those that the newest checkpoint "
                        "in {} was trained on: put the model of model.from back, and what is "
                        "frozen, or give the run a folder of its own",
                        options_.checkpoint_folder)};
      if (kept) progress_ = std::move(*kept);
      if (kept && options_.federated) {
        ISTHMUS_TRY(stopped_on_, read_trained_on(parts_.disk, options_.checkpoint_folder,
                                                 progress_.inner_step, model_, parts_.log));
      }
    }
    ISTHMUS_CHECK(share(resumed));
    if (resumed) {
      ISTHMUS_CHECK(share_resumed());
      note_resumed();
    }
    progress_.seed = options_.seed;
    progress_.data_digest = parts_.data.digest().hex();
    progress_.frozen_digest = options_.frozen_digest;
    checkpoints_.start();
    spikes_ = SpikeGuard(options_.spike_multiple, std::exchange(progress_.gradient_norms, {}));
    contributed_tokens_ = progress_.tokens - progress_.tokens_since;
    return {};
  }

  // Once it has said what the process before it lost: of one that ends earlier there is no line,
  // and the next one says it.
  void note_begun() {
    if (!is_root_ || metrics_ == nullptr) return;
    metrics_->write("resumed", {{"inner_step", progress_.inner_step},
                                {"outer_step", progress_.outer_step},
                                {"tokens", progress_.tokens},
                                {"tokens_contributed", contributed_tokens_},
                                {"objective", to_string(objective())}});
  }

  // Progress, parameters and optimizer of the root's checkpoint, for the other ranks.
  Result<void> share_resumed() {
    Bytes bytes = encode(progress_);
    ISTHMUS_CHECK(share(bytes));
    progress_ = decode_progress(bytes);
    for (const auto buffer : {model_.parameters(), model_.first_moments(), model_.second_moments()})
      ISTHMUS_CHECK(parts_.world.broadcast(std::as_writable_bytes(buffer), kRoot));
    std::int64_t updates = model_.updates();
    ISTHMUS_CHECK(share(updates));
    model_.set_updates(updates);
    model_.parameters_changed();
    return {};
  }

  void note_resumed() {
    if (!is_root_) return;
    parts_.log.info("training_resumed", {},
                    {{"inner_step", progress_.inner_step}, {"tokens", progress_.tokens}});
    if (progress_.data_digest != parts_.data.digest().hex())
      parts_.log.warning("data_changed", {},
                         {{"why",
                           "files, weights, documents, sequence or seed are not those of the "
                           "checkpoint: training goes on with other samples"}});
  }

  // The state comes from the gateway. Parameters of a checkpoint based on that very state hold work
  // that is in no contribution yet, and stay; so does what was handed over to a gateway that has
  // not kept it. What was trained before a stop is merged into a newer state. False: stopped before
  // there was a state.
  Result<bool> begin_federated() {
    if (parts_.outer != nullptr) parts_.outer->attach(trained_.tensors(), trained_.values());
    std::optional<OuterState> state;
    while (!state) {
      ISTHMUS_TRY(const bool stopped, agreed_stop());
      if (stopped) return false;
      ISTHMUS_TRY(state, next_state(kStatePoll));
    }
    note_other_beginning(*state);
    const bool same_base = !progress_.record.empty() && progress_.record == state->record;
    const bool has_handed = state->contribution_open || state->contributed > progress_.outer_step;
    ISTHMUS_TRY(auto from, merged_from(*state, same_base, has_handed));
    if (from.empty())
      go_on_without_what_is_open(*state, same_base, has_handed);
    else
      go_on_with_what_is_open(*state, same_base, has_handed, from);
    take_over(std::move(*state));
    // What an earlier process contributed is in the next state: only what comes on top of it adds.
    if (contribution_open_) base_ = from.empty() ? trained_.values() : std::move(from);
    return true;
  }

  // What the parameters of a stopped run become part of `state` by: x ← state + (x − from). Empty
  // when they need no merging, or cannot be: they are from a crash, this site's newer contributions
  // hold that work already, or the run is another one, or was set back (`roster recover`) to a step
  // before it. The same on all ranks.
  Result<std::vector<float>> merged_from(const OuterState& state, bool same_base, bool has_handed) {
    std::vector<float> from;
    if (is_root_ && !stopped_on_.empty()) {
      const auto newest_of_it = progress_.outer_step + (stopped_on_.contributed.empty() ? 0 : 1);
      const bool to_merge = same_base ? state.contribution_open : state.step > progress_.outer_step;
      const bool its_run = progress_.run == state.run;
      if (to_merge && its_run && !state.final_step && state.contributed <= newest_of_it)
        from = std::move(has_handed ? stopped_on_.contributed : stopped_on_.base);
      stopped_on_ = {};
      ISTHMUS_CHECK(
          forget_trained_on(parts_.disk, options_.checkpoint_folder, progress_.inner_step));
    }
    ISTHMUS_CHECK(share(from));
    return from;
  }

  void go_on_without_what_is_open(const OuterState& state, bool same_base, bool has_handed) {
    const bool contributed = !same_base || state.contribution_open;
    note_lost(state, contributed, has_handed);
    if (!same_base || state.final_step) set_parameters(state.parameters);
    if (!same_base) forget_handed();
    if (contributed)
      count_contribution();
    else
      take_back_contribution();
    steps_on_state_ = state.contribution_open ? options_.inner_steps : progress_.steps_since;
  }

  // As if the run had not been stopped (merge).
  void go_on_with_what_is_open(const OuterState& state, bool same_base, bool has_handed,
                               std::span<const float> from) {
    if (!has_handed) take_back_contribution();
    steps_on_state_ = has_handed ? progress_.steps_since : 0;
    if (same_base) {
      steps_on_state_ += options_.inner_steps;
      return;
    }
    forget_handed();
    replace_in_parameters(from, state.parameters);
  }

  // Sites may have different first parameters: the run has those of one of them.
  void note_other_beginning(const OuterState& state) {
    if (!is_root_ || state.step > 0 || progress_.inner_step > 0 || !progress_.record.empty() ||
        std::ranges::equal(trained_.values(), state.parameters))
      return;
    parts_.log.warning("initial_replaced", {},
                       {{"why",
                         "the run begins with the first parameters of its first voter, which are "
                         "not this site's"}});
    if (metrics_ != nullptr) metrics_->write("initial_replaced", {{"inner_step", 0}});
  }

  // Where parameters are taken from the gateway, what is in a contribution that it has is, or will
  // be, in the state; the rest is gone, later contributions that it lost with its process included.
  // Otherwise the checkpoint is what there is. `has_handed`: the contribution that the checkpoint
  // followed.
  void note_lost(const OuterState& state, bool from_gateway, bool has_handed) {
    if (!is_root_ || metrics_ == nullptr || !metrics_->last()) return;
    const auto& last = *metrics_->last();
    std::uint64_t kept = progress_.tokens;
    if (from_gateway)
      kept = std::max(
          last.tokens_contributed_up_to(state.contribution_open ? state.step + 1
                                                                : state.contributed),
          progress_.tokens - progress_.tokens_since - (has_handed ? 0 : progress_.handed_tokens));
    if (last.tokens > kept)
      parts_.log.warning("tokens_lost", {},
                         {{"tokens", last.tokens - kept},
                          {"inner_step_before", last.inner_step},
                          {"inner_step", progress_.inner_step}});
  }

  // ---- an inner step

  Result<void> inner_step() {
    const Nanoseconds began = parts_.clock.now();
    model_.zero_gradients();
    BatchLoss total;
    double flops = 0;
    for (std::int64_t micro = 0; micro < options_.micro_batches; ++micro) {
      ISTHMUS_CHECK(batches_.read(progress_.data_position, micro));
      const auto loss = model_.forward_backward(batches_.tokens(), batches_.targets(),
                                                batches_.document_starts(), batches_.row_keys());
      total += loss;
      flops += model_.flops(loss.counted);
    }
    std::uint64_t counted = static_cast<std::uint64_t>(total.counted);
    ISTHMUS_CHECK(parts_.world.all_reduce(model_.gradients()));
    ISTHMUS_CHECK(parts_.world.all_reduce(std::span(&total.sum, 1)));
    ISTHMUS_CHECK(parts_.world.all_reduce(std::span(&counted, 1)));
    ISTHMUS_CHECK(sum_routing());
    const double rate = options_.schedule.rate(schedule_step());
    auto adamw = options_.adamw;
    adamw.gradient_norm_skip = spikes_.limit();
    checkpoints_.wait_until_read();
    const auto update = model_.update(adamw, rate, static_cast<std::int64_t>(counted));
    if (counted > 0) ISTHMUS_CHECK(note_update(update));
    // Prompts alone have no target, so no loss and no gradient.
    if (counted > 0) loss_ = total.sum / static_cast<double>(counted);
    ++progress_.inner_step;
    checkpoints_.changed();
    ++progress_.steps_since;
    ++steps_on_state_;
    progress_.data_position +=
        static_cast<std::uint64_t>(options_.micro_batches) * batches_.samples();
    progress_.tokens += counted;
    progress_.tokens_since += counted;
    const double seconds = std::max(1e-9, seconds_of(parts_.clock.now() - began));
    tokens_per_second_ = static_cast<double>(counted) / seconds;
    note_inner_step(rate, update.gradient_norm, seconds, flops, counted);
    return {};
  }

  Objective objective() const {
    return parts_.masking == nullptr ? Objective::next_token : Objective::masked_tokens;
  }

  // Of all ranks.
  Result<void> sum_routing() {
    auto& routing = model_.routing();
    if (routing.experts == 0) return {};
    ISTHMUS_CHECK(parts_.world.all_reduce(std::span(routing.chosen)));
    ISTHMUS_CHECK(parts_.world.all_reduce(std::span(&routing.dropped, 1)));
    ISTHMUS_CHECK(parts_.world.all_reduce(std::span(&routing.balance_loss, 1)));
    return parts_.world.all_reduce(std::span(&routing.z_loss, 1));
  }

  // Where the schedule of the learning rate stands: in a federation where all of it stands, so that
  // a site that was killed, or away, goes on at the rate of the others.
  std::int64_t schedule_step() const {
    if (!options_.federated) return progress_.inner_step;
    return static_cast<std::int64_t>(progress_.outer_step) * options_.inner_steps + steps_on_state_;
  }

  // Many skipped steps in a row mean that no other will follow.
  Result<void> note_update(const UpdateReport& update) {
    const auto why = spikes_.note(update);
    skipped_in_a_row_ = update.applied ? 0 : skipped_in_a_row_ + 1;
    if (update.applied) return {};
    ++progress_.skipped_steps;
    if (is_root_)
      parts_.log.warning("step_skipped", {}, {{"inner_step", progress_.inner_step}, {"why", why}});
    if (skipped_in_a_row_ < options_.skipped_steps_max) return {};
    return Error{ErrorCode::non_finite,
                 fmt::format("{} in a row {} skipped, the last as {}; go back to an older "
                             "checkpoint with a lower learning rate",
                             counted(skipped_in_a_row_, "inner step"),
                             skipped_in_a_row_ == 1 ? "was" : "were", why)};
  }

  void note_inner_step(double rate, double gradient_norm, double seconds, double flops,
                       std::uint64_t counted) {
    if (!is_root_) return;
    const StepReport step{.inner_step = progress_.inner_step,
                          .steps_left = std::max<std::int64_t>(0, options_.steps - schedule_step()),
                          .outer_step = progress_.outer_step,
                          .loss = loss_,
                          .tokens = progress_.tokens,
                          .tokens_contributed = contributed_tokens_,
                          .seconds = seconds,
                          .tokens_per_second = tokens_per_second_,
                          .flops_per_second = flops / seconds,
                          .learning_rate = rate,
                          .gradient_norm = gradient_norm,
                          .skipped_steps = progress_.skipped_steps,
                          .tokens_counted = counted,
                          .objective = objective(),
                          .routing = model_.routing().experts > 0 ? &model_.routing() : nullptr};
    for (auto* observer : observers_) observer->inner_step(step);
    report(false);
  }

  void report(bool waiting) {
    if (parts_.outer == nullptr) return;
    parts_.outer->progress({.inner_step = progress_.inner_step,
                            .outer_step = progress_.outer_step,
                            .loss = loss_,
                            .tokens_per_second = tokens_per_second_,
                            .waiting = waiting});
  }

  // ---- outer steps

  bool ended() const {
    return options_.federated ? final_step_ : progress_.inner_step >= options_.steps;
  }
  bool contribution_due() const {
    return options_.federated && !contribution_open_ &&
           progress_.steps_since >= options_.inner_steps;
  }
  bool waiting() const {
    return contribution_open_ && progress_.steps_since >= options_.lead_steps;
  }

  Result<void> contribute() {
    contributed_ = trained_.values();
    if (parts_.outer != nullptr)
      ISTHMUS_CHECK(
          parts_.outer->contribute(progress_.outer_step + 1, contributed_, progress_.tokens_since));
    contribution_open_ = true;
    progress_.handed_steps = progress_.steps_since;
    progress_.handed_tokens = progress_.tokens_since;
    count_contribution();
    note("rank_contributed", progress_.outer_step + 1);
    if (metrics_ != nullptr)
      metrics_->write("contribution", {{"inner_step", progress_.inner_step},
                                       {"outer_step", progress_.outer_step + 1},
                                       {"tokens", progress_.tokens},
                                       {"tokens_contributed", contributed_tokens_}});
    return {};
  }

  // The contribution came too late to be one, as others went on without this site, or the gateway
  // lost it with its process: what was trained in it counts towards the next.
  void take_back_contribution() {
    progress_.steps_since += progress_.handed_steps;
    progress_.tokens_since += progress_.handed_tokens;
    contributed_tokens_ -= progress_.handed_tokens;
    forget_handed();
  }

  void forget_handed() {
    progress_.handed_steps = 0;
    progress_.handed_tokens = 0;
  }

  void count_contribution() {
    contributed_tokens_ = progress_.tokens;
    progress_.steps_since = 0;
    progress_.tokens_since = 0;
  }

  // Between two inner steps: merges the newest state if there is one, and waits for it for a while
  // when there is nothing else to do.
  Result<void> take_newest_state() {
    if (waiting()) report(true);
    const Nanoseconds began = parts_.clock.now();
    ISTHMUS_TRY(auto state, next_state(waiting() ? kStatePoll : 0));
    waited_ += parts_.clock.now() - began;
    if (state) merge(std::move(*state));
    return {};
  }

  // What the gateway has, at all ranks.
  Result<std::optional<OuterState>> next_state(Nanoseconds timeout) {
    std::optional<OuterState> state;
    if (parts_.outer != nullptr) {
      ISTHMUS_TRY(state, parts_.outer->next_state(timeout));
    }
    bool has_state = state.has_value();
    ISTHMUS_CHECK(share(has_state));
    if (!has_state) return state;
    if (!state) state.emplace();
    ISTHMUS_CHECK(share(*state));
    return state;
  }

  void take_over(OuterState state) {
    final_step_ = state.final_step;
    contribution_open_ = state.contribution_open;
    progress_.outer_step = state.step;
    progress_.record = std::move(state.record);
    progress_.run = std::move(state.run);
    base_ = std::move(state.parameters);
    contributed_ = std::vector<float>();  // `{}` would keep its memory
  }

  // x ← state + (x − from). The final state is taken as it is: all sites end equal.
  void merge(OuterState state) {
    note("rank_merging", state.step);
    // Of what an earlier process handed over, the gateway has told that it has it.
    const bool handed_here = !contributed_.empty();
    if (handed_here && state.from == OuterState::From::base) take_back_contribution();
    forget_handed();
    if (state.final_step || state.from == OuterState::From::nothing)
      set_parameters(state.parameters);
    else
      replace_in_parameters(state.from == OuterState::From::contribution ? contributed_ : base_,
                            state.parameters);
    steps_on_state_ = state.from == OuterState::From::contribution ? progress_.steps_since : 0;
    take_over(std::move(state));
    if (metrics_ != nullptr)
      metrics_->write("merge", {{"inner_step", progress_.inner_step},
                                {"outer_step", progress_.outer_step},
                                {"tokens", progress_.tokens},
                                {"tokens_contributed", contributed_tokens_},
                                {"seconds_waited", seconds_of(waited_)}});
    note("rank_merged", progress_.outer_step);
    waited_ = 0;
  }

  // For whoever follows a run closely: people who search for a fault, and tests that cause one.
  void note(std::string_view event, std::uint64_t outer_step) {
    if (is_root_)
      parts_.log.detail(event, {.outer_step = static_cast<std::int64_t>(outer_step)},
                        {{"inner_step", progress_.inner_step}, {"tokens", progress_.tokens}});
  }

  void set_parameters(std::span<const float> values) {
    checkpoints_.wait_until_read();
    trained_.set(values);
    checkpoints_.changed();
  }
  void replace_in_parameters(std::span<const float> from, std::span<const float> to) {
    checkpoints_.wait_until_read();
    trained_.replace(from, to);
    checkpoints_.changed();
  }

  // What a checkpoint at a stop keeps; the process needs neither any more.
  TrainedOn trained_on() {
    if (contribution_open_ && contributed_.empty())  // an earlier process contributed
      return {.base = {}, .contributed = std::move(base_)};
    return {.base = std::move(base_), .contributed = std::move(contributed_)};
  }

  // ---- ranks

  template <class T>
  Result<void> share(T& value) {
    return runtime::share(parts_.world, value);
  }

  // A signal reaches ranks at different times: all stop at the same step.
  Result<bool> agreed_stop() {
    std::uint64_t stopping = parts_.stop != nullptr && parts_.stop->load() ? 1 : 0;
    ISTHMUS_CHECK(parts_.world.all_reduce(std::span(&stopping, 1)));
    return stopping > 0;
  }

  const TrainParts& parts_;
  const TrainOptions& options_;
  Model& model_;
  const bool is_root_;
  std::unique_ptr<MetricsLog> metrics_;    // of the root
  std::vector<TrainObserver*> observers_;  // the metrics log too
  MicroBatches batches_;

  Progress progress_;
  double loss_ = std::numeric_limits<double>::quiet_NaN();
  double tokens_per_second_ = 0;
  SpikeGuard spikes_{options_.spike_multiple};
  std::int64_t skipped_in_a_row_ = 0;
  RunCheckpoints checkpoints_;  // of the root

  TrainedParameters trained_;
  TrainedOn stopped_on_;            // of the root: what an earlier process left
  std::vector<float> base_;         // the last state taken
  std::vector<float> contributed_;  // what this process contributed to the next state
  bool contribution_open_ = false;
  bool final_step_ = false;
  std::uint64_t contributed_tokens_ = 0;
  std::int64_t steps_on_state_ = 0;  // inner steps since base_; those contributed included
  Nanoseconds waited_ = 0;           // since the last state
};

}  // namespace

Result<TrainOutcome> train(const TrainParts& parts, const TrainOptions& options) {
  if (parts.model.config().vocabulary < parts.data.vocabulary())
    return Error{ErrorCode::invalid_argument,
                 fmt::format("the model has {} tokens: the data needs at least {}",
                             parts.model.config().vocabulary, parts.data.vocabulary())};
  return Trainer(parts, options).run();
}

}  // namespace isthmus::runtime
