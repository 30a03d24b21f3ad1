// BufferPool: memory for chunks and messages, which come and go by the thousand. What they leave is
// kept for the next ones: fresh memory of that size is paid for with page faults.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

namespace isthmus {

// Any thread.
class BufferPool : public std::enable_shared_from_this<BufferPool> {
 public:
  // Keeps at most so many bytes that nobody uses.
  explicit BufferPool(std::size_t kept_bytes_max) : kept_bytes_max_(kept_bytes_max) {}

  // At least `size` bytes, not initialised; they come back here when nobody holds them any more.
  std::shared_ptr<std::byte[]> take(std::size_t size);

 private:
  struct Kept {
    std::unique_ptr<std::byte[]> bytes;
    std::size_t size = 0;
  };
  void give_back(Kept buffer);

  const std::size_t kept_bytes_max_;
  std::mutex mutex_;  // guards what follows
  std::vector<Kept> kept_;
  std::size_t kept_bytes_ = 0;
};

}  // namespace isthmus
