// LargeVector: a vector of the size of a model. Its memory begins where a block of a disk may
// (base/aligned_buffer.h), and is in huge pages where the system gives them: what is walked through
// in every step costs fewer page faults and address look-ups.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdlib>
#include <limits>
#include <new>
#include <vector>

#include "base/aligned_buffer.h"

namespace isthmus {

template <class T>
struct LargeAllocator {
  using value_type = T;
  LargeAllocator() = default;
  template <class U>
  LargeAllocator(const LargeAllocator<U>&) {}

  T* allocate(std::size_t count) {
    constexpr std::size_t kHugePage = 2 << 20;
    if (count > std::numeric_limits<std::size_t>::max() / sizeof(T) - kHugePage)
      throw std::bad_array_new_length();
    const auto bytes = disk_aligned(count * sizeof(T));
    const bool huge = bytes >= kHugePage;
    void* memory =
        std::aligned_alloc(huge ? kHugePage : kDiskAlignment,
                           huge ? (bytes + kHugePage - 1) / kHugePage * kHugePage : bytes);
    if (memory == nullptr) throw std::bad_alloc();
    if (huge) (void)::madvise(memory, bytes, MADV_HUGEPAGE);  // a wish, before it is touched
    return static_cast<T*>(memory);
  }
  void deallocate(T* memory, std::size_t) { std::free(memory); }
  bool operator==(const LargeAllocator&) const = default;
};

template <class T>
using LargeVector = std::vector<T, LargeAllocator<T>>;

}  // namespace isthmus
