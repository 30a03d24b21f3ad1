#include "launcher/kill_point.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <string_view>
#include <utility>

namespace isthmus::launcher {

Result<std::function<void(const char*, std::uint64_t)>> make_kill_point(
    const std::string& run_dir, std::function<std::vector<int>()> ranks) {
  std::function<void(const char*, std::uint64_t)> nothing = [](const char*, std::uint64_t) {};
  const char* text = std::getenv("ISTHMUS_KILL_AT");
  if (text == nullptr) return nothing;
  const std::string_view whole(text);
  const auto first = whole.find(':');
  const auto last = whole.rfind(':');
  const auto process = whole.substr(0, first);
  std::uint64_t step = 0;
  const auto parsed =
      last == std::string_view::npos
          ? std::from_chars_result{whole.data(), std::errc::invalid_argument}
          : std::from_chars(whole.data() + last + 1, whole.data() + whole.size(), step);
  if (first == last || parsed.ec != std::errc() || parsed.ptr != whole.data() + whole.size() ||
      (process != "gateway" && process != "rank"))
    return Error{ErrorCode::invalid_argument,
                 fmt::format("ISTHMUS_KILL_AT=\"{}\": write it as gateway:POINT:STEP or "
                             "rank:POINT:STEP",
                             whole)};
  std::function<void(const char*, std::uint64_t)> kill =
      [point = std::string(whole.substr(first + 1, last - first - 1)), step,
       itself = process == "gateway", mark = run_dir + "/killed",
       ranks = std::move(ranks)](const char* reached, std::uint64_t reached_step) {
        if (reached_step != step || point != reached) return;
        const int descriptor = ::open(mark.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
        if (descriptor < 0) return;  // it has been done
        ::close(descriptor);
        if (itself) ::kill(::getpid(), SIGKILL);
        for (const int pid : ranks()) ::kill(pid, SIGKILL);
      };
  return kill;
}

}  // namespace isthmus::launcher
