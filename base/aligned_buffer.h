// AlignedBuffer: memory that a disk can be given directly, past the system's page cache
// (base/disk.h says when that happens).
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>
#include <span>

namespace isthmus {

// Of memory, offsets and lengths.
inline constexpr std::size_t kDiskAlignment = 4096;

constexpr std::size_t disk_aligned(std::size_t bytes) {
  return (bytes + kDiskAlignment - 1) / kDiskAlignment * kDiskAlignment;
}

class AlignedBuffer {
 public:
  // At least so many bytes, rounded up to whole blocks; not initialised.
  explicit AlignedBuffer(std::size_t bytes)
      : size_(disk_aligned(bytes)),
        bytes_(static_cast<std::byte*>(std::aligned_alloc(kDiskAlignment, size_))) {
    if (!bytes_) throw std::bad_alloc();
  }
  std::span<std::byte> bytes() const { return {bytes_.get(), size_}; }

 private:
  struct Free {
    void operator()(std::byte* bytes) const { std::free(bytes); }
  };
  std::size_t size_;
  std::unique_ptr<std::byte, Free> bytes_;
};

// At least so many bytes of the calling thread, which has one piece of memory for what is on its
// way to a disk, until it asks again: to fill fresh memory costs more than the copy itself.
inline std::span<std::byte> disk_scratch(std::size_t bytes) {
  thread_local AlignedBuffer kept(0);
  if (kept.bytes().size() < bytes) kept = AlignedBuffer(bytes);
  return kept.bytes().first(disk_aligned(bytes));
}

}  // namespace isthmus
