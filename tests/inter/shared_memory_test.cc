#include "inter/shared_memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

namespace isthmus::inter {
namespace {

TEST(SharedMemoryTest, ItsSizeCannotBeChangedByTheOtherSide) {
  auto memory = SharedMemory::make(8192);
  ASSERT_TRUE(memory) << memory.error().text();
  ASSERT_TRUE(memory->reserve(0, 8192));
  memory->floats(4096, 2)[1] = 2.5f;
  FileDescriptor passed(dup(memory->descriptor()));
  EXPECT_NE(ftruncate(passed.get(), 0), 0);
  EXPECT_EQ(errno, EPERM);
  EXPECT_NE(ftruncate(passed.get(), 1 << 20), 0);
  EXPECT_NE(fcntl(passed.get(), F_ADD_SEALS, F_SEAL_WRITE), 0);
  auto other = SharedMemory::map(std::move(passed), 8192);
  ASSERT_TRUE(other) << other.error().text();
  EXPECT_EQ(other->floats(4096, 2)[1], 2.5f);
}

TEST(SharedMemoryTest, MemoryThatIsNotSealedOrOfAnotherSizeIsNotMapped) {
  FileDescriptor unsealed(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(unsealed.get(), 4096), 0);
  EXPECT_EQ(SharedMemory::map(std::move(unsealed), 4096).error().code, ErrorCode::mismatch);
  const auto memory = SharedMemory::make(4096);
  ASSERT_TRUE(memory);
  EXPECT_EQ(SharedMemory::map(FileDescriptor(dup(memory->descriptor())), 8192).error().code,
            ErrorCode::mismatch);
}

}  // namespace
}  // namespace isthmus::inter
