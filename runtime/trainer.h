// The training loop of one rank: inner steps over micro-batches, gradients summed over the ranks of
// the data axis, checkpoints, metrics; and, in a federation, contributions to the outer steps.
//
//   inner steps ──► every inner_steps: contribute x_c ──► train on for lead_steps, then wait
//        ▲                                                        │
//        └──────── x ← state_k + (x − x_c) ◄── state k agreed ◄───┘
//
// Alone, a site that is killed at any point and started again ends with the bits it would have had
// undisturbed. In a federation it comes back to the state of its gateway; optimizer and data
// position are those of its last checkpoint, and the parameters too when they were based on that
// very state; a contribution that the gateway never had on disk is then made again. One that was
// stopped merges what it had not contributed into the state that it finds, however new. After a
// crash, what had been trained since the checkpoint, or is not in the newer state, is reported
// lost.
//
// All ranks call train() with equal options; rank 0 reads and writes checkpoints, writes metrics
// and talks to the gateway, and shares what it learns, so the others need neither.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/disk.h"
#include "base/event_log.h"
#include "base/machine_memory.h"
#include "base/result.h"
#include "intra/communicator.h"
#include "runtime/evaluate.h"
#include "runtime/inner_optimizer.h"
#include "runtime/masking.h"
#include "runtime/model.h"
#include "runtime/outer_sync.h"
#include "runtime/text_dataset.h"
#include "runtime/tokenizer.h"
#include "runtime/train_observer.h"

namespace isthmus::runtime {

struct TrainOptions {
  std::int64_t steps = 240;        // inner steps in all; in a federation the last record ends
  std::int64_t micro_batches = 1;  // per rank and inner step; their gradients are summed
  AdamWOptions adamw = {};
  RateSchedule schedule = {};  // of the inner steps done; in a federation of its outer step ·
                               // inner_steps, and the steps since
  std::vector<RateFactor> rates = {};  // of some tensors, relative to the schedule's
  // A step whose gradient norm is above this multiple of the median of the last (SpikeGuard)
  // changes nothing; 0: such steps are taken. One with gradients that are not finite never is.
  double spike_multiple = 0;
  std::int64_t skipped_steps_max = 10;  // so many in a row end the training
  std::uint64_t seed = 1;  // of what is drawn for a row of a batch; kept in checkpoints

  bool federated = false;
  std::int64_t inner_steps = 10;  // from one contribution to the next
  std::int64_t lead_steps = 0;    // inner steps past a contribution before waiting for its state

  std::string frozen_digest = {};  // of what does not train (runtime/frozen_digest.h); "": all does

  std::string checkpoint_folder = {};
  std::int64_t checkpoint_steps = 100;  // inner steps from one checkpoint to the next
  Nanoseconds checkpoint_after = 0;     // one also when the last is so old; 0: not
  int checkpoint_keep = 2;              // newest ones that stay
  std::int64_t evaluate_steps = 0;      // inner steps from one evaluation to the next; 0: none
  std::vector<HeldOutText> held_out = {};
  HeldOutOptions evaluation = {};
  std::string metrics_path = {};  // metrics.jsonl; "": none
};

struct TrainParts {
  Model& model;  // with the parameters of a new run
  const TextDataset& data;
  const Masking* masking = nullptr;  // where the model predicts hidden tokens
  intra::Communicator& world;
  Disk& disk;
  const Clock& clock;
  EventLog& log;
  OuterSync* outer = nullptr;                  // rank 0 of a federated site
  const Tokenizer* tokenizer = nullptr;        // where there are evaluations
  std::vector<TrainObserver*> observers = {};  // of rank 0
  std::vector<int> cpus = {};                  // of this rank's threads, where they are pinned
  const std::atomic<bool>* stop = nullptr;  // set: finish the inner step, keep a checkpoint, return
  std::uint64_t machine_memory = machine_memory_bytes();
};

struct TrainOutcome {
  bool finished = false;  // false: stopped on request, to be continued
  std::int64_t inner_step = 0;
  std::uint64_t outer_step = 0;
  std::uint64_t tokens = 0;
  double loss = 0;         // of the last inner step done here; NaN when there was none
  std::string checkpoint;  // the last one, on rank 0
  std::string not_kept;    // why a stop did not save all of it; "": it did
};

// Errors: those of checkpoints, data and communicator; those the gateway refuses with;
// invalid_argument (the vocabulary does not hold all of the data's); too_large (the ranks of this
// machine and their gateway do not fit into its memory); non_finite (too many steps in a row were
// skipped). The communicator stays open.
Result<TrainOutcome> train(const TrainParts& parts, const TrainOptions& options);

}  // namespace isthmus::runtime
