// CheckpointWriter: a checkpoint written while training goes on, by a thread of its own and without
// a copy. What it holds changes only where the optimizer, or a merge, changes the model:
//
//   training   … update ─┬─ forward, backward of the next step ─┬─ update … │ …
//   this            begin └─ values into files ──── values_read ─┘ disk, hashes, name
//
// so training waits for it only where these files are written more slowly than a gradient is made,
// or where no thread can be had.
#pragma once

#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/disk.h"
#include "base/result.h"
#include "runtime/model.h"
#include "runtime/progress.h"

namespace isthmus::runtime {

class CheckpointWriter {
 public:
  // Disk and clock outlive it. Its thread runs on these CPUs; none: on those of whoever begins.
  CheckpointWriter(Disk& disk, const Clock& clock, std::string folder, int keep,
                   std::vector<int> cpus = {})
      : disk_(disk),
        clock_(clock),
        folder_(std::move(folder)),
        keep_(keep),
        cpus_(std::move(cpus)) {}
  ~CheckpointWriter() { (void)wait(); }

  struct Written {
    std::string checkpoint;
    double seconds = 0;
  };

  // As write_checkpoint, of a model whose parameters and optimizer stay as they are until
  // wait_until_read() returns. None is under way, and what came of the last was told (wait()).
  void begin(Model& model, const Progress& progress);
  void wait_until_read();

  // What came of the last that was begun, told once; nothing while it is under way.
  std::optional<Result<Written>> finished();
  // The same when it is done.
  std::optional<Result<Written>> wait();

 private:
  void write(Model& model, const Progress& progress);

  Disk& disk_;
  const Clock& clock_;
  const std::string folder_;
  const int keep_;
  const std::vector<int> cpus_;
  std::thread thread_;  // while one is under way, or has not been told
  std::mutex mutex_;
  std::condition_variable changed_;
  bool reads_ = false;  // the model's values
  std::optional<Result<Written>> outcome_;
};

}  // namespace isthmus::runtime
