// Vectors of the size of a model. In huge pages, where the system gives them: what is walked
// through in every step costs fewer page faults and address look-ups.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace isthmus {

// As vector.resize(size).
template <class T>
void resize_large(std::vector<T>& vector, std::size_t size) {
  constexpr std::uintptr_t kPage = 4096;
  if (vector.capacity() < size) {
    vector.reserve(size);
    const auto begin = reinterpret_cast<std::uintptr_t>(vector.data());
    const auto first = (begin + kPage - 1) / kPage * kPage;
    const auto end = (begin + size * sizeof(T)) / kPage * kPage;
    // A wish. It must come before the memory is touched.
    if (end > first) (void)::madvise(reinterpret_cast<void*>(first), end - first, MADV_HUGEPAGE);
  }
  vector.resize(size);
}

}  // namespace isthmus
