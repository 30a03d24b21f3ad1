#include "inter/disk_jobs.h"

#include <memory>
#include <utility>

namespace isthmus::inter {

void DiskJobs::submit(std::function<Result<void>()> job, std::uint64_t bytes) {
  ++running_;
  auto result = std::make_shared<Result<void>>();
  workers_.submit([job = std::move(job), result] { *result = job(); },
                  [this, result] {
                    --running_;
                    if (!*result && result_) result_ = std::move(*result);
                    if (running_ == 0) changed_.notify();
                  },
                  bytes, Urgency::disk);
}

Task<Result<void>> DiskJobs::all_done() {
  while (running_ > 0) co_await changed_.wait();
  co_return result_;
}

}  // namespace isthmus::inter
