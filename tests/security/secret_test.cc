#include "security/secret.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>

namespace isthmus::security {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kLocksAreReal = false;  // the sanitizers make mlock do nothing
#else
constexpr bool kLocksAreReal = true;
#endif

// VmFlags of the mapping that holds `address`, from /proc/self/smaps.
std::string flags_at(const void* address) {
  const auto wanted = reinterpret_cast<std::uintptr_t>(address);
  std::ifstream smaps("/proc/self/smaps");
  bool inside = false;
  for (std::string line; std::getline(smaps, line);) {
    std::uintptr_t first = 0, last = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &first, &last) == 2 && line.find('-') < 17)
      inside = first <= wanted && wanted < last;
    if (inside && line.starts_with("VmFlags:")) return line;
  }
  return "";
}

TEST(SecretBytes, StartsZeroAndMoves) {
  SecretBytes a(40);
  EXPECT_EQ(a.size(), 40u);
  EXPECT_TRUE(std::all_of(a.bytes().begin(), a.bytes().end(),
                          [](std::byte b) { return b == std::byte{0}; }));
  a.bytes()[39] = std::byte{7};
  SecretBytes b = std::move(a);
  EXPECT_EQ(b.bytes()[39], std::byte{7});
  EXPECT_EQ(a.size(), 0u);  // NOLINT: promised
  EXPECT_TRUE(a.bytes().empty());
  EXPECT_EQ(SecretBytes().size(), 0u);
}

TEST(SecretBytes, IsLeftOutOfDumpsAndLocked) {
  const SecretBytes secret(32);
  const auto flags = flags_at(secret.bytes().data());
  if (flags.empty()) GTEST_SKIP() << "this kernel shows no VmFlags in /proc/self/smaps";
  EXPECT_NE(flags.find(" dd"), std::string::npos) << flags;  // not dumped
  if (!kLocksAreReal) GTEST_SKIP() << "mlock does nothing under this sanitizer";
  rlimit limit{};
  ::getrlimit(RLIMIT_MEMLOCK, &limit);
  if (::geteuid() != 0 && limit.rlim_cur < (1u << 20))
    GTEST_SKIP() << "RLIMIT_MEMLOCK is too low to see the lock";
  EXPECT_NE(flags.find(" lo"), std::string::npos) << flags;  // locked
}

TEST(SecretBytesDeathTest, IsGuarded) {
  SecretBytes secret(32);
  volatile std::byte* past = secret.bytes().data() + 32;
  EXPECT_DEATH(*past = std::byte{1}, "");
}

[[noreturn]] void exit_after_hardening() {
  const auto refused = harden_process();
  rlimit core{};
  ::getrlimit(RLIMIT_CORE, &core);
  const bool hardened =
      core.rlim_cur == 0 && core.rlim_max == 0 && ::prctl(PR_GET_DUMPABLE, 0, 0, 0, 0) == 0;
  ::_exit(hardened && refused.empty() ? 0 : 1);
}

TEST(HardenProcessDeathTest, SwitchesDumpsAndDebuggersOff) {
  rlimit limit{};
  ::getrlimit(RLIMIT_MEMLOCK, &limit);
  if (::geteuid() != 0 && limit.rlim_cur < 65536) GTEST_SKIP() << "RLIMIT_MEMLOCK is too low";
  EXPECT_EXIT(exit_after_hardening(), testing::ExitedWithCode(0), "");
}

[[noreturn]] void exit_after_hardening_without_locked_memory() {
  const rlimit none{0, 0};
  ::setrlimit(RLIMIT_MEMLOCK, &none);
  if (::geteuid() == 0 && ::setuid(65534) != 0) ::_exit(2);  // root may lock whatever the limit
  const auto refused = harden_process();
  SecretBytes secret(32);  // still works
  secret.bytes()[31] = std::byte{1};
  std::string said;
  for (const auto& error : refused) said += error.text() + "\n";
  const bool right = refused.size() == 1 && said.find("RLIMIT_MEMLOCK") != std::string::npos;
  fmt::print(stderr, "{}", said);
  ::_exit(right ? 0 : 1);
}

TEST(HardenProcessDeathTest, WarnsOnceWhenMemoryCannotBeLocked) {
  if (!kLocksAreReal) GTEST_SKIP() << "mlock does nothing under this sanitizer";
  EXPECT_EXIT(exit_after_hardening_without_locked_memory(), testing::ExitedWithCode(0), "ulimit");
}

}  // namespace
}  // namespace isthmus::security
