#include "runtime/run_checkpoints.h"

#include <fmt/format.h>

#include "base/counted.h"
#include "runtime/held_out_watch.h"

namespace isthmus::runtime {

void RunCheckpoints::after_step() {
  const bool look_now =
      options_.evaluate_steps > 0 && progress_.inner_step % options_.evaluate_steps == 0;
  const bool best = look_now && is_best();
  if (best || due()) begin();
}

bool RunCheckpoints::due() const {
  return progress_.inner_step % options_.checkpoint_steps == 0 ||
         (options_.checkpoint_after > 0 &&
          parts_.clock.now() - tried_ >= options_.checkpoint_after);
}

// Whether the model was never better.
bool RunCheckpoints::is_best() {
  judged_ = true;
  const auto bits = watch_held_out(parts_, options_, progress_, observers_);
  if (!bits || (progress_.best_step > 0 && *bits >= progress_.best_bits)) return false;
  progress_.best_step = progress_.inner_step;
  progress_.best_bits = *bits;
  return true;
}

// Written while training goes on; where the last still is, that is waited for.
void RunCheckpoints::begin() {
  note(writer_.wait(), /*goes_on=*/true);
  tried_ = parts_.clock.now();
  progress_.gradient_norms = spikes_.norms();
  begun_ = progress_;
  writer_.begin(parts_.model, begun_);
}

// The last checkpoint may hold what was not looked at yet: the state that a run ends with, in the
// place of the best one of the same inner step.
void RunCheckpoints::forget_older_look() {
  if (progress_.best_step == progress_.inner_step) progress_.best_step = 0;
}

Result<void> RunCheckpoints::write_last() {
  if (options_.evaluate_steps > 0 && !judged_) {
    forget_older_look();
    (void)is_best();
  }
  return write();
}

// On a disk with too little room the checkpoint counts for more than the last inner steps.
Result<void> RunCheckpoints::write_at_stop(const TrainedOn& trained_on) {
  if (options_.evaluate_steps > 0 && !judged_) forget_older_look();
  auto written = write(trained_on);
  if (written || written.error().code != ErrorCode::disk_full) return written;
  not_kept_ = written.error().text();
  parts_.log.warning("merge_base_not_kept", {},
                     {{"why", not_kept_},
                      {"then",
                       "what is in no contribution yet is lost unless the run goes on from the "
                       "same outer step"}});
  return write();
}

Result<void> RunCheckpoints::write(const TrainedOn& trained_on) {
  const Nanoseconds began = parts_.clock.now();
  progress_.gradient_norms = spikes_.norms();
  ISTHMUS_TRY(newest_, write_checkpoint(parts_.disk, options_.checkpoint_folder, parts_.model,
                                        progress_, options_.checkpoint_keep, trained_on));
  note_written(seconds_of(parts_.clock.now() - began));
  return {};
}

void RunCheckpoints::note_written(double seconds) {
  parts_.log.detail("checkpoint_written", {}, {{"checkpoint", newest_}, {"seconds", seconds}});
}

// One that cannot be written under way costs a repeat at worst, so training goes on.
void RunCheckpoints::note(const std::optional<Result<CheckpointWriter::Written>>& outcome,
                          bool goes_on) {
  if (!outcome) return;
  if (*outcome) {
    written_ = begun_;
    newest_ = (*outcome)->checkpoint;
    note_written((*outcome)->seconds);
    return;
  }
  forget_unwritten_best();
  const auto then = goes_on ? fmt::format("training goes on; the next is due after {}",
                                          counted(options_.checkpoint_steps, "inner step"))
                            : "training has ended";
  parts_.log.alarm("checkpoint_failed", {}, {{"why", outcome->error().text()}, {"then", then}});
}

// Or the best that there is would be removed for it. What was compared with it since is looked at
// again.
void RunCheckpoints::forget_unwritten_best() {
  if (progress_.best_step != begun_.inner_step) return;
  progress_.best_step = written_.best_step;
  progress_.best_bits = written_.best_bits;
  judged_ = false;
}

}  // namespace isthmus::runtime
