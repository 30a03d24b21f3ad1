#include "runtime/checkpoint_writer.h"

#include <utility>

#include "base/assert.h"
#include "base/thread_pool.h"
#include "runtime/checkpoint.h"

namespace isthmus::runtime {

void CheckpointWriter::begin(Model& model, const Progress& progress) {
  ISTHMUS_ASSERT(!thread_.joinable());
  reads_ = true;
  outcome_.reset();
  thread_ = std::thread([this, &model, progress] {
    if (!cpus_.empty()) (void)confine_this_thread(cpus_);  // else it stays where it is
    const auto no_more_reading = [this] {
      const std::lock_guard lock(mutex_);
      reads_ = false;
      changed_.notify_all();
    };
    const auto began = clock_.now();
    auto written = write_checkpoint(disk_, folder_, model, progress, keep_, {}, no_more_reading);
    no_more_reading();  // after an error, too
    const std::lock_guard lock(mutex_);
    if (written)
      outcome_ = Written{std::move(*written), seconds_of(clock_.now() - began)};
    else
      outcome_ = std::move(written).error();
  });
}

void CheckpointWriter::wait_until_read() {
  if (!thread_.joinable()) return;
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !reads_; });
}

std::optional<Result<CheckpointWriter::Written>> CheckpointWriter::finished() {
  if (!thread_.joinable()) return std::nullopt;
  {
    const std::lock_guard lock(mutex_);
    if (!outcome_) return std::nullopt;
  }
  return wait();
}

std::optional<Result<CheckpointWriter::Written>> CheckpointWriter::wait() {
  if (!thread_.joinable()) return std::nullopt;
  thread_.join();
  return std::exchange(outcome_, std::nullopt);
}

}  // namespace isthmus::runtime
