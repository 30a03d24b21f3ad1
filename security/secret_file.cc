#include "security/secret_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sodium.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/byte_stream.h"
#include "base/disk.h"
#include "base/file_descriptor.h"
#include "security/hex.h"
#include "security/sodium_ready.h"

// The system's calls instead of Disk, which knows neither modes nor owners.

namespace isthmus::security {
namespace {

constexpr std::size_t kKeyBytes = 32;
constexpr std::size_t kLineBytes = 2 * kKeyBytes + 1;

std::size_t file_bytes(std::string_view title, std::size_t keys) {
  return title.size() + 1 + keys * kLineBytes;
}

SecretBytes text_of_keys(std::string_view title,
                         std::initializer_list<std::span<const std::byte>> keys) {
  SecretBytes text(file_bytes(title, keys.size()));
  auto* out = reinterpret_cast<char*>(text.bytes().data());
  std::memcpy(out, title.data(), title.size());
  out += title.size();
  *out++ = '\n';
  for (const auto& key : keys) {
    // Its terminating zero lands where the newline goes.
    sodium_bin2hex(out, kLineBytes, octets(key.data()), kKeyBytes);
    out += kLineBytes;
    out[-1] = '\n';
  }
  return text;
}

Result<void> write_all(int descriptor, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const auto n = ::write(descriptor, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return error_of_errno(errno, "cannot write");
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
  if (::fsync(descriptor) != 0) return error_of_errno(errno, "cannot sync");
  return {};
}

Result<struct stat> status_of(int descriptor, const std::string& path) {
  struct stat s {};
  if (::fstat(descriptor, &s) != 0)
    return error_of_errno(errno, fmt::format("cannot stat {}", path));
  if (!S_ISREG(s.st_mode))
    return Error{ErrorCode::permission, fmt::format("{} is not a regular file", path)};
  return s;
}

Result<void> check_access(const struct stat& s, const std::string& path) {
  if (s.st_uid != ::geteuid())
    return Error{
        ErrorCode::permission,
        fmt::format("the secret key {} belongs to user {}, this process is user {}: run it "
                    "as that user, or chown {} {}",
                    path, s.st_uid, ::geteuid(), ::geteuid(), path)};
  if ((s.st_mode & 077) != 0)
    return Error{ErrorCode::permission,
                 fmt::format("others may use the secret key {} (mode {:04o}): chmod 600 {}", path,
                             s.st_mode & 07777, path)};
  return {};
}

}  // namespace

Result<void> write_secret_file(const std::string& path, std::string_view title,
                               std::initializer_list<std::span<const std::byte>> keys) {
  const auto text = text_of_keys(title, keys);
  const FileDescriptor file(
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (file.get() < 0) {
    if (errno == EEXIST)
      return Error{ErrorCode::already_exists,
                   fmt::format("{} exists, and a secret key is never overwritten: move it away if "
                               "it is no longer needed",
                               path)};
    return error_of_errno(errno, fmt::format("cannot create {}", path));
  }
  if (auto written = write_all(file.get(), text.bytes()); !written) {
    ::unlink(path.c_str());
    return Error{written.error().code, fmt::format("cannot keep the secret key in {}", path),
                 written.error()};
  }
  return make_system_disk()->sync_folder(folder_of(path));
}

Result<std::vector<SecretBytes>> read_secret_file(const std::string& path, std::string_view title,
                                                  std::size_t keys) {
  // Non-blocking, so that a pipe of this name cannot hold us up before it is refused.
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (file.get() < 0)
    return error_of_errno(errno, fmt::format("cannot open the secret key {}", path));
  ISTHMUS_TRY(const auto status, status_of(file.get(), path));

  SecretBytes text(file_bytes(title, keys) + 1);  // one more, to see a file that is too long
  std::size_t size = 0;
  while (size < text.size()) {
    const auto n = ::read(file.get(), text.bytes().data() + size, text.size() - size);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return error_of_errno(errno, fmt::format("cannot read {}", path));
    if (n == 0) break;
    size += static_cast<std::size_t>(n);
  }

  const Error malformed{
      ErrorCode::corrupt,
      fmt::format("{} is not a key file of the kind \"{}\", or is damaged", path, title)};
  const auto content = text_of(text.bytes().first(size));
  for (const std::string_view kind : {"identity", "operator"})
    if (!content.starts_with(title) &&
        content.starts_with(fmt::format("isthmus secret {} v1\n", kind)))
      return Error{
          ErrorCode::invalid_argument,
          fmt::format("{} is a secret {} key: another kind is asked for here", path, kind)};
  if (!content.starts_with(title)) return malformed;  // nothing to protect
  ISTHMUS_CHECK(check_access(status, path));
  if (size != file_bytes(title, keys) || content[title.size()] != '\n') return malformed;
  std::vector<SecretBytes> found;
  for (std::size_t i = 0; i < keys; ++i) {
    const auto line = content.substr(title.size() + 1 + i * kLineBytes, kLineBytes);
    SecretBytes key(kKeyBytes);
    if (line.back() != '\n' || !from_hex(line.substr(0, 2 * kKeyBytes), key.bytes()))
      return malformed;
    found.push_back(std::move(key));
  }
  return found;
}

}  // namespace isthmus::security
