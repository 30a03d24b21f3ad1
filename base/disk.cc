#include "base/disk.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <memory>

#include "base/aligned_buffer.h"

namespace isthmus {
namespace {

Error disk_error(int number, std::string sentence) {
  auto error = error_of_errno(number, std::move(sentence));
  if (error.code == ErrorCode::disk_full) error.message += "; free some on its file system";
  return error;
}

bool is_folder(const std::string& path) {
  struct stat s {};
  return ::stat(path.c_str(), &s) == 0 && S_ISDIR(s.st_mode);
}

bool is_there_and_no_file(const std::string& path) {
  struct stat s {};
  return ::stat(path.c_str(), &s) == 0 && !S_ISREG(s.st_mode);
}

class SystemFile final : public File {
 public:
  SystemFile(int descriptor, std::string path) : descriptor_(descriptor), path_(std::move(path)) {}
  ~SystemFile() override {
    ::close(descriptor_);
    if (direct_ >= 0) ::close(direct_);
  }
  // Big aligned writes go through this descriptor of the same file.
  void write_directly(int direct) { direct_ = direct; }

  Result<void> read_at(std::uint64_t offset, std::span<std::byte> out) const override {
    while (!out.empty()) {
      const auto n = ::pread(descriptor_, out.data(), out.size(), static_cast<off_t>(offset));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return disk_error(errno, fmt::format("cannot read {}", path_));
      if (n == 0) return Error{ErrorCode::corrupt, fmt::format("{} ends too early", path_)};
      offset += static_cast<std::uint64_t>(n);
      out = out.subspan(static_cast<std::size_t>(n));
    }
    return {};
  }
  Result<void> write_at(std::uint64_t offset, std::span<const std::byte> bytes) override {
    while (!bytes.empty()) {
      const bool direct = may_be_direct(offset, bytes);
      const auto n = ::pwrite(direct ? direct_ : descriptor_, bytes.data(), bytes.size(),
                              static_cast<off_t>(offset));
      if (n < 0 && direct && errno == EINVAL) {
        can_direct_ = false;  // this file system asks for more
        continue;
      }
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return disk_error(errno, fmt::format("cannot write {}", path_));
      if (!direct) start_write_back(offset, static_cast<std::uint64_t>(n));
      offset += static_cast<std::uint64_t>(n);
      bytes = bytes.subspan(static_cast<std::size_t>(n));
    }
    return {};
  }
  Result<void> truncate(std::uint64_t bytes) override {
    if (::ftruncate(descriptor_, static_cast<off_t>(bytes)) != 0)
      return disk_error(errno, fmt::format("cannot resize {}", path_));
    return {};
  }
  Result<std::uint64_t> size() const override {
    struct stat s {};
    if (::fstat(descriptor_, &s) != 0)
      return disk_error(errno, fmt::format("cannot stat {}", path_));
    return static_cast<std::uint64_t>(s.st_size);
  }
  Result<void> sync() override {
    if (::fdatasync(descriptor_) != 0)
      return disk_error(errno, fmt::format("cannot sync {}", path_));
    return {};
  }

 private:
  bool may_be_direct(std::uint64_t offset, std::span<const std::byte> bytes) const {
    constexpr std::size_t kDirectBytesMin = 64 << 10;
    return direct_ >= 0 && can_direct_ && bytes.size() >= kDirectBytesMin &&
           (reinterpret_cast<std::uintptr_t>(bytes.data()) | offset | bytes.size()) %
                   kDiskAlignment ==
               0;
  }

  // What is written in a row goes to the disk soon, so that a sync has little left to wait for.
  void start_write_back(std::uint64_t offset, std::uint64_t bytes) {
    constexpr std::uint64_t kInRow = 1 << 20;
    std::uint64_t end = row_end_.exchange(offset + bytes, std::memory_order_relaxed);
    if (end != offset) row_begin_.store(offset, std::memory_order_relaxed);
    const auto begin = row_begin_.load(std::memory_order_relaxed);
    if (offset + bytes < begin + kInRow) return;
    row_begin_.store(offset + bytes, std::memory_order_relaxed);
    // A hint: whether it was taken, sync() will tell.
    (void)::sync_file_range(descriptor_, static_cast<off_t>(begin),
                            static_cast<off_t>(offset + bytes - begin), SYNC_FILE_RANGE_WRITE);
  }

  int descriptor_;
  int direct_ = -1;
  std::atomic<bool> can_direct_ = true;
  std::string path_;
  // Of the last writes that followed one another, and are not on their way yet. Guesses, where
  // several threads write.
  std::atomic<std::uint64_t> row_begin_ = 0, row_end_ = 0;
};

class SystemLock final : public DiskLock {
 public:
  explicit SystemLock(int descriptor) : descriptor_(descriptor) {}
  ~SystemLock() override { ::close(descriptor_); }

 private:
  int descriptor_;
};

class SystemDisk final : public Disk {
  Result<std::unique_ptr<File>> open(const std::string& name, Open how) override {
    auto path = name;
    // Opened to be read, a folder would be one that cannot be read now.
    if (is_folder(path))
      return Error{
          ErrorCode::wrong_kind,
          fmt::format("{} is a folder where a file has to be: move it away, or name another",
                      path)};
    // Of a pipe even opening would wait, for somebody who writes into it.
    if (how == Open::read && is_there_and_no_file(path))
      return Error{ErrorCode::wrong_kind,
                   fmt::format("{} is no file, but a pipe or a device: name another", path)};
    if (how == Open::create) {
      ISTHMUS_TRY(path, replaced_by(name));
      // A new inode: whoever still reads the old file keeps what it opened.
      if (::unlink(path.c_str()) != 0 && errno != ENOENT)
        return disk_error(errno, fmt::format("cannot replace {}", path));
    }
    const int flags = how == Open::read        ? O_RDONLY
                      : how == Open::update    ? O_RDWR
                      : how == Open::overwrite ? O_RDWR | O_CREAT
                                               : O_RDWR | O_CREAT | O_EXCL;
    const int descriptor = ::open(path.c_str(), flags | O_CLOEXEC, 0644);
    if (descriptor < 0) return disk_error(errno, fmt::format("cannot open {}", path));
    auto file = std::make_unique<SystemFile>(descriptor, path);
    if (how != Open::read)
      file->write_directly(::open(path.c_str(), O_RDWR | O_DIRECT | O_CLOEXEC));
    return std::unique_ptr<File>(std::move(file));
  }
  Result<void> rename(const std::string& from, const std::string& to) override {
    if (::rename(from.c_str(), to.c_str()) != 0)
      return disk_error(errno, fmt::format("cannot rename {} to {}", from, to));
    return {};
  }
  Result<std::string> replaced_by(const std::string& path) const override {
    struct stat s {};
    if (::lstat(path.c_str(), &s) != 0) return path;  // nothing; or what comes next says why not
    std::string target = path;
    if (S_ISLNK(s.st_mode)) {
      const std::unique_ptr<char, decltype(&::free)> real(::realpath(path.c_str(), nullptr),
                                                          ::free);
      if (!real || ::lstat(real.get(), &s) != 0)
        return disk_error(errno, fmt::format("cannot follow the link {}", path));
      target = real.get();
    }
    if (!S_ISREG(s.st_mode))
      return Error{ErrorCode::invalid_argument,
                   fmt::format("{} is no file, and stays as it is: name another", path)};
    return target;
  }
  Result<void> remove(const std::string& path) override {
    if (::unlink(path.c_str()) != 0 && errno != ENOENT)
      return disk_error(errno, fmt::format("cannot remove {}", path));
    return {};
  }
  Result<bool> exists(const std::string& path) const override {
    struct stat s {};
    if (::stat(path.c_str(), &s) == 0) return true;
    if (errno == ENOENT || errno == ENOTDIR) return false;
    return disk_error(errno, fmt::format("cannot stat {}", path));
  }
  Result<std::vector<std::string>> list(const std::string& folder) const override {
    std::error_code error;
    std::vector<std::string> names;
    for (std::filesystem::directory_iterator i(folder, error), end; !error && i != end;
         i.increment(error))
      names.push_back(i->path().filename().string());
    if (error) return disk_error(error.value(), fmt::format("cannot list {}", folder));
    std::sort(names.begin(), names.end());
    return names;
  }
  Result<void> make_folders(const std::string& path) override {
    std::error_code error;
    if (path.empty() || std::filesystem::is_directory(path, error)) return {};
    if (exists(path).value_or(false))
      return Error{
          ErrorCode::wrong_kind,
          fmt::format("{} is a file where a folder has to be: move it away, or name another",
                      path)};
    const auto above = folder_of(path);
    if (above != path) ISTHMUS_CHECK(make_folders(above));
    std::filesystem::create_directory(path, error);
    if (error) return disk_error(error.value(), fmt::format("cannot make the folder {}", path));
    return sync_folder(above);  // or it may be gone, with all that was synced in it
  }
  Result<void> sync_folder(const std::string& path) override {
    const int descriptor =
        ::open(path.empty() ? "." : path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (descriptor < 0) return disk_error(errno, fmt::format("cannot open the folder {}", path));
    const int status = ::fsync(descriptor);
    const int number = errno;
    ::close(descriptor);
    if (status != 0) return disk_error(number, fmt::format("cannot sync the folder {}", path));
    return {};
  }
  Result<std::unique_ptr<DiskLock>> lock(const std::string& path) override {
    const int descriptor = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (descriptor < 0) return disk_error(errno, fmt::format("cannot open {}", path));
    if (::flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
      const int number = errno;
      ::close(descriptor);
      if (number == EWOULDBLOCK)
        return Error{ErrorCode::busy, fmt::format("{} is locked by another process", path)};
      return disk_error(number, fmt::format("cannot lock {}", path));
    }
    return std::unique_ptr<DiskLock>(std::make_unique<SystemLock>(descriptor));
  }
};

}  // namespace

std::unique_ptr<Disk> make_system_disk() { return std::make_unique<SystemDisk>(); }

Result<Bytes> read_file(const Disk& disk, const std::string& path, std::uint64_t bytes_max) {
  // Opening for reading changes nothing.
  ISTHMUS_TRY(const auto file, const_cast<Disk&>(disk).open(path, Disk::Open::read));
  ISTHMUS_TRY(const auto size, file->size());
  if (size > bytes_max)
    return Error{ErrorCode::too_large,
                 fmt::format("{} has {} bytes, more than {}", path, size, bytes_max)};
  Bytes bytes(size);
  ISTHMUS_CHECK(file->read_at(0, bytes));
  return bytes;
}

Result<void> replace_file(Disk& disk, const std::string& path, std::span<const std::byte> bytes) {
  ISTHMUS_TRY(const auto target, disk.replaced_by(path));
  const std::string temporary = target + ".new";
  {
    ISTHMUS_TRY(auto file, disk.open(temporary, Disk::Open::create));
    ISTHMUS_CHECK(file->write_at(0, bytes));
    ISTHMUS_CHECK(file->sync());
  }
  ISTHMUS_CHECK(disk.rename(temporary, target));
  return disk.sync_folder(folder_of(target));
}

std::string folder_of(const std::string& path) {
  const auto slash = path.rfind('/');
  if (slash == std::string::npos) return "";
  return slash == 0 ? "/" : path.substr(0, slash);
}

}  // namespace isthmus
