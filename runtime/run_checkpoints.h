// RunCheckpoints: the checkpoints of one training: when they are written, beside it or at its end,
// which of them is the best by held-out texts, and what becomes of one that cannot be written. The
// first rank's.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "runtime/checkpoint.h"
#include "runtime/checkpoint_writer.h"
#include "runtime/progress.h"
#include "runtime/spike_guard.h"
#include "runtime/train_observer.h"
#include "runtime/trainer.h"

namespace isthmus::runtime {

class RunCheckpoints {
 public:
  // All of them outlive it. Of `progress` it writes what is the best, and the norms in `spikes`
  // before each checkpoint.
  RunCheckpoints(const TrainParts& parts, const TrainOptions& options, Progress& progress,
                 const SpikeGuard& spikes, const std::vector<TrainObserver*>& observers)
      : parts_(parts),
        options_(options),
        progress_(progress),
        spikes_(spikes),
        observers_(observers),
        writer_(parts.disk, parts.clock, options.checkpoint_folder, options.checkpoint_keep,
                parts.cpus) {}

  // The training begins, from `progress`.
  void start() {
    written_ = progress_;
    tried_ = parts_.clock.now();
  }
  // Before parameters or moments change: what is being written has been read.
  void wait_until_read() { writer_.wait_until_read(); }
  // The parameters are others than those that were looked at last.
  void changed() { judged_ = false; }

  // Between two inner steps: whether one that was begun has been written.
  void look() { note(writer_.finished(), /*goes_on=*/true); }
  // After an inner step: looks at held-out texts and begins a checkpoint, where either is due.
  void after_step();
  // There is no further step, for whatever reason: waits for what is being written.
  void finish() { note(writer_.wait(), /*goes_on=*/false); }
  // The end of a run.
  Result<void> write_last();
  // A stop, with what it was trained on (runtime/checkpoint.h).
  Result<void> write_at_stop(const TrainedOn& trained_on);

  const std::string& newest() const { return newest_; }  // "": none was written
  // Why the disk had no room for all of a stop's; "": it had.
  const std::string& not_kept() const { return not_kept_; }

 private:
  bool due() const;
  bool is_best();
  void begin();
  Result<void> write(const TrainedOn& trained_on = {});
  void note(const std::optional<Result<CheckpointWriter::Written>>& outcome, bool goes_on);
  void note_written(double seconds);
  void forget_unwritten_best();
  void forget_older_look();

  const TrainParts& parts_;
  const TrainOptions& options_;
  Progress& progress_;
  const SpikeGuard& spikes_;
  const std::vector<TrainObserver*>& observers_;
  Progress begun_, written_;  // of the last one that was begun under way, and that is there
  std::string newest_, not_kept_;
  Nanoseconds tried_ = 0;  // when, or when the training began
  bool judged_ = true;     // by held-out texts, or nothing was trained here since
  CheckpointWriter writer_;
};

}  // namespace isthmus::runtime
