#include "base/line_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <thread>
#include <utility>

namespace isthmus {
namespace {

// Of as many bytes as a look back for the end of a line reads.
constexpr off_t kBlockBytes = 4096;

class FileLock {
 public:
  explicit FileLock(int descriptor) : descriptor_(descriptor) {
    constexpr int kTries = 100;
    constexpr auto kPause = std::chrono::microseconds(100);
    for (int i = 0; !held_ && i < kTries; ++i) {
      if (i > 0) std::this_thread::sleep_for(kPause);
      held_ = ::flock(descriptor_, LOCK_EX | LOCK_NB) == 0;
      if (!held_ && errno != EWOULDBLOCK && errno != EINTR) return;  // none on this file system
    }
  }
  ~FileLock() {
    if (held_) ::flock(descriptor_, LOCK_UN);
  }
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

  bool held() const { return held_; }

 private:
  int descriptor_;
  bool held_ = false;
};

// Where the whole lines of a file of `size` bytes end.
off_t end_of_lines(int descriptor, off_t size) {
  char block[kBlockBytes];
  for (off_t end = size; end > 0;) {
    const auto begin = std::max<off_t>(end - kBlockBytes, 0);
    const auto bytes = static_cast<std::size_t>(end - begin);
    if (::pread(descriptor, block, bytes, begin) != static_cast<ssize_t>(bytes)) return size;
    const auto newline = std::string_view(block, bytes).rfind('\n');
    if (newline != std::string_view::npos) return begin + static_cast<off_t>(newline) + 1;
    end = begin;
  }
  return 0;
}

}  // namespace

Result<LineFile> LineFile::open(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (descriptor < 0 && errno == EISDIR)
    return Error{ErrorCode::wrong_kind,
                 fmt::format("{} is a folder where a file has to be: move it away", path)};
  if (descriptor < 0) return error_of_errno(errno, fmt::format("cannot open {}", path));
  return LineFile(descriptor);
}

LineFile::LineFile(LineFile&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}

LineFile::~LineFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

bool LineFile::append(std::string_view line) {
  const FileLock lock(descriptor_);
  off_t end = ::lseek(descriptor_, 0, SEEK_END);
  std::string text(line);
  text += '\n';
  if (const auto whole = end_of_lines(descriptor_, end); whole < end) {
    if (lock.held() && ::ftruncate(descriptor_, whole) == 0)
      end = whole;
    else
      text.insert(text.begin(), '\n');
  }
  const auto written = ::write(descriptor_, text.data(), text.size());
  if (written == static_cast<ssize_t>(text.size())) return true;
  if (written > 0 && lock.held()) [[maybe_unused]]
    const auto cut = ::ftruncate(descriptor_, end);
  return false;
}

std::string LineFile::tail(std::size_t bytes_max) const {
  const auto size = end_of_lines(descriptor_, ::lseek(descriptor_, 0, SEEK_END));
  std::string text(std::min(bytes_max, static_cast<std::size_t>(std::max<off_t>(size, 0))), '\0');
  if (::pread(descriptor_, text.data(), text.size(), size - static_cast<off_t>(text.size())) !=
      static_cast<ssize_t>(text.size()))
    text.clear();
  return text;
}

}  // namespace isthmus
