#include "runtime/checkpoint_writer.h"

#include <fmt/format.h>

#include <exception>
#include <system_error>
#include <utility>

#include "base/assert.h"
#include "base/thread_pool.h"
#include "runtime/checkpoint.h"

namespace isthmus::runtime {

void CheckpointWriter::begin(Model& model, const Progress& progress) {
  ISTHMUS_ASSERT(!thread_.joinable() && !outcome_);
  reads_ = true;
  try {
    thread_ = std::thread([this, &model, progress] {
      if (!cpus_.empty()) (void)confine_this_thread(cpus_);  // else it stays where it is
      write(model, progress);
    });
  } catch (const std::system_error&) {
    write(model, progress);  // there are too many threads: training waits for it
  }
}

void CheckpointWriter::write(Model& model, const Progress& progress) {
  const auto no_more_reading = [this] {
    const std::lock_guard lock(mutex_);
    reads_ = false;
    changed_.notify_all();
  };
  const auto began = clock_.now();
  auto written = [&]() -> Result<Written> {
    try {
      ISTHMUS_TRY(auto checkpoint,
                  write_checkpoint(disk_, folder_, model, progress, keep_, {}, no_more_reading));
      return Written{std::move(checkpoint), seconds_of(clock_.now() - began)};
    } catch (const std::exception& thrown) {
      return Error{ErrorCode::unavailable,
                   fmt::format("what a checkpoint needs is not there: {}", thrown.what())};
    }
  }();
  no_more_reading();  // after an error, too
  const std::lock_guard lock(mutex_);
  outcome_ = std::move(written);
}

void CheckpointWriter::wait_until_read() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !reads_; });
}

std::optional<Result<CheckpointWriter::Written>> CheckpointWriter::finished() {
  {
    const std::lock_guard lock(mutex_);
    if (!outcome_) return std::nullopt;
  }
  return wait();
}

std::optional<Result<CheckpointWriter::Written>> CheckpointWriter::wait() {
  if (thread_.joinable()) thread_.join();
  return std::exchange(outcome_, std::nullopt);
}

}  // namespace isthmus::runtime
