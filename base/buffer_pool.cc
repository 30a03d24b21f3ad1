#include "base/buffer_pool.h"

#include <algorithm>
#include <utility>

namespace isthmus {

namespace {

// Smaller ones come from where the allocator keeps them at hand anyway.
constexpr std::size_t kPooledBytesMin = 64 << 10;

}  // namespace

std::shared_ptr<std::byte[]> BufferPool::take(std::size_t size) {
  if (size < kPooledBytesMin) return std::make_shared_for_overwrite<std::byte[]>(size);
  Kept buffer;
  {
    const std::lock_guard lock(mutex_);
    // The one that was left last: a cache may still have it.
    const auto fits = std::find_if(kept_.rbegin(), kept_.rend(), [&](const Kept& kept) {
      return kept.size >= size && kept.size <= size + size / 4;
    });
    if (fits != kept_.rend()) {
      buffer = std::move(*fits);
      kept_.erase(std::next(fits).base());
      kept_bytes_ -= buffer.size;
    }
  }
  if (!buffer.bytes) buffer = {std::make_unique_for_overwrite<std::byte[]>(size), size};
  auto* const bytes = buffer.bytes.get();
  auto kept = std::make_shared<Kept>(std::move(buffer));
  return {bytes,
          [self = shared_from_this(), kept](std::byte*) { self->give_back(std::move(*kept)); }};
}

void BufferPool::give_back(Kept buffer) {
  const std::lock_guard lock(mutex_);
  if (buffer.size > kept_bytes_max_) return;
  // The oldest ones may be of a size that nobody asks for any more.
  while (kept_bytes_ + buffer.size > kept_bytes_max_) {
    kept_bytes_ -= kept_.front().size;
    kept_.erase(kept_.begin());
  }
  kept_bytes_ += buffer.size;
  kept_.push_back(std::move(buffer));
}

}  // namespace isthmus
