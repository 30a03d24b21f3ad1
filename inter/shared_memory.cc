#include "inter/shared_memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "base/assert.h"

namespace isthmus::inter {

namespace {
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
}

Result<SharedMemory> SharedMemory::make(std::uint64_t bytes) {
  ISTHMUS_ASSERT(bytes > 0);
  FileDescriptor descriptor(memfd_create("isthmus-attach", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!descriptor.valid() || ftruncate(descriptor.get(), static_cast<off_t>(bytes)) != 0 ||
      fcntl(descriptor.get(), F_ADD_SEALS, kSeals) != 0)
    return error_of_errno(errno, fmt::format("make {} bytes of shared memory", bytes));
  return map_whole(std::move(descriptor), bytes);
}

Result<SharedMemory> SharedMemory::map(FileDescriptor descriptor, std::uint64_t bytes) {
  struct stat status {};
  if (fstat(descriptor.get(), &status) != 0) return error_of_errno(errno, "look at shared memory");
  const int seals = fcntl(descriptor.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 ||
      static_cast<std::uint64_t>(status.st_size) != bytes || bytes == 0)
    return Error{ErrorCode::mismatch, "the shared memory is not sealed or not of the size told"};
  return map_whole(std::move(descriptor), bytes);
}

Result<SharedMemory> SharedMemory::map_whole(FileDescriptor descriptor, std::uint64_t bytes) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor.get(), 0);
  if (data == MAP_FAILED)
    return error_of_errno(errno, fmt::format("map {} bytes of shared memory", bytes));
  return SharedMemory(std::move(descriptor), static_cast<std::byte*>(data), bytes);
}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : descriptor_(std::move(other.descriptor_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

SharedMemory::~SharedMemory() {
  if (data_ != nullptr) munmap(data_, size_);
}

Result<void> SharedMemory::reserve(std::uint64_t first, std::uint64_t bytes) {
  int why = 0;
  do why = posix_fallocate(descriptor_.get(), static_cast<off_t>(first), static_cast<off_t>(bytes));
  while (why == EINTR);
  if (why == ENOMEM) why = ENOSPC;
  if (why != 0) return error_of_errno(why, fmt::format("reserve {} bytes of shared memory", bytes));
  return {};
}

std::span<float> SharedMemory::floats(std::uint64_t offset, std::uint64_t count) const {
  if (count == 0) return {};
  ISTHMUS_ASSERT(offset % sizeof(float) == 0 && offset <= size_ &&
                 count <= (size_ - offset) / sizeof(float));
  return {reinterpret_cast<float*>(data_ + offset), count};
}

}  // namespace isthmus::inter
