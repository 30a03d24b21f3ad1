// Preloaded into a process, it moves the process's calendar while it runs, as somebody does who
// sets the machine's clock: the file that CLOCK_SHIFT_FILE names holds nanoseconds (i64) that are
// added. The monotonic clock stays as it is.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>

namespace {

using GetTime = int (*)(clockid_t, timespec*);

// Others call before a constructor of ours would have run.
GetTime system_clock_gettime() {
  static const auto found = reinterpret_cast<GetTime>(dlsym(RTLD_NEXT, "clock_gettime"));
  return found;
}

const volatile std::int64_t* map_shift() {
  const char* path = std::getenv("CLOCK_SHIFT_FILE");
  const int file = path == nullptr ? -1 : open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return nullptr;
  void* mapped = mmap(nullptr, sizeof(std::int64_t), PROT_READ, MAP_SHARED, file, 0);
  close(file);
  return mapped == MAP_FAILED ? nullptr : static_cast<const volatile std::int64_t*>(mapped);
}

}  // namespace

extern "C" {

int clock_gettime(clockid_t clock, timespec* time) noexcept {
  static const auto* const shift = map_shift();
  const int failed = system_clock_gettime()(clock, time);
  const bool calendar = clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE;
  if (failed != 0 || !calendar || shift == nullptr) return failed;
  constexpr std::int64_t kSecond = 1'000'000'000;
  const auto sum = time->tv_sec * kSecond + time->tv_nsec + *shift;
  time->tv_sec = sum / kSecond;
  time->tv_nsec = sum % kSecond;
  return 0;
}

int gettimeofday(timeval* time, void*) noexcept {
  timespec now{};
  if (clock_gettime(CLOCK_REALTIME, &now) != 0) return -1;
  time->tv_sec = now.tv_sec;
  time->tv_usec = now.tv_nsec / 1000;
  return 0;
}

time_t time(time_t* out) noexcept {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  if (out != nullptr) *out = now.tv_sec;
  return now.tv_sec;
}

}  // extern "C"
