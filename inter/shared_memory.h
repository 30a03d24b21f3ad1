// SharedMemory: memory of two processes behind a descriptor that one passes to the other. Its size
// is sealed when it is made, so that neither can take pages away under the other (memfd_create(2),
// F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_SEAL). What the other process writes may change at any moment:
// copy first, then check.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.h"
#include "inter/local_socket.h"

namespace isthmus::inter {

class SharedMemory {
 public:
  // Zeros. Errors: io.
  static Result<SharedMemory> make(std::uint64_t bytes);
  // Memory that another process made. Errors: mismatch (not sealed, or of another size), io.
  static Result<SharedMemory> map(FileDescriptor descriptor, std::uint64_t bytes);

  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&& other) noexcept;
  ~SharedMemory();

  // Gets the machine's memory for a part now: where there is none, this fails with disk_full, and
  // no process is killed for touching it later.
  Result<void> reserve(std::uint64_t first, std::uint64_t bytes);

  std::span<std::byte> bytes() const { return {data_, size_}; }
  // `count` floats from a byte offset that is a multiple of 4.
  std::span<float> floats(std::uint64_t offset, std::uint64_t count) const;
  int descriptor() const { return descriptor_.get(); }

 private:
  SharedMemory(FileDescriptor descriptor, std::byte* data, std::size_t size)
      : descriptor_(std::move(descriptor)), data_(data), size_(size) {}
  static Result<SharedMemory> map_whole(FileDescriptor descriptor, std::uint64_t bytes);
  FileDescriptor descriptor_;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace isthmus::inter
