// DiskJobs: writes of one owner that go on beside everything else, and are waited for together.
#pragma once

#include <cstdint>
#include <functional>

#include "base/workers.h"
#include "inter/loop.h"

namespace isthmus::inter {

// On the loop. What jobs refer to outlives them: wait for all_done() before it goes.
class DiskJobs {
 public:
  DiskJobs(Workers& workers, Loop& loop) : workers_(workers), changed_(loop) {}

  void submit(std::function<Result<void>()> job, std::uint64_t bytes);
  // The first failure of those that are done.
  const Result<void>& so_far() const { return result_; }
  // Of all that were submitted: the first failure.
  Task<Result<void>> all_done();

 private:
  Workers& workers_;
  Signal changed_;
  std::uint32_t running_ = 0;
  Result<void> result_;
};

}  // namespace isthmus::inter
