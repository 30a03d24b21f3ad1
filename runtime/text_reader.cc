#include "runtime/text_reader.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>
#include <vector>

#include "compress/zstd_stream.h"

namespace isthmus::runtime {
namespace {

constexpr std::array<unsigned char, 4> kZstdMagic = {0x28, 0xB5, 0x2F, 0xFD};
constexpr std::size_t kBufferBytes = std::size_t{1} << 18;

Error unreadable(const std::string& path) {
  return error_of_errno(errno, fmt::format("cannot read {}", path));
}
Error broken(const std::string& path, std::string_view kind, std::string_view why) {
  return {ErrorCode::corrupt,
          fmt::format("{} is no whole {} file ({}); fetch it again", path, kind, why)};
}

// zlib's reader passes plain files on as they are.
class PlainOrGzip final : public TextReader {
 public:
  PlainOrGzip(gzFile file, std::string path) : file_(file), path_(std::move(path)) {}

  Result<std::size_t> read(std::span<char> out) override {
    errno = 0;
    const int n = gzread(file_.get(), out.data(), static_cast<unsigned>(out.size()));
    int status = Z_OK;
    const char* reason = gzerror(file_.get(), &status);
    // A file cut short gives its last bytes first, and Z_BUF_ERROR with them.
    if (n < 0 || status == Z_BUF_ERROR)
      return status == Z_ERRNO ? unreadable(path_) : broken(path_, "gzip", reason);
    return static_cast<std::size_t>(n);
  }
  std::uint64_t file_bytes_read() const override {
    return static_cast<std::uint64_t>(std::max<z_off_t>(0, gzoffset(file_.get())));
  }

 private:
  struct Close {
    void operator()(gzFile file) const { gzclose(file); }
  };
  const std::unique_ptr<gzFile_s, Close> file_;
  const std::string path_;
};

class Zstd final : public TextReader {
 public:
  Zstd(int file, std::string path) : file_(file), path_(std::move(path)), buffer_(kBufferBytes) {}
  ~Zstd() override { ::close(file_); }
  Zstd(const Zstd&) = delete;
  Zstd& operator=(const Zstd&) = delete;

  Result<std::size_t> read(std::span<char> out) override {
    for (;;) {
      auto step = stream_.decode(rest_, std::as_writable_bytes(out));
      if (!step) {
        if (step.error().code == ErrorCode::corrupt)
          return broken(path_, "zstd", step.error().message);
        return Error{step.error().code,
                     fmt::format("{} needs more memory than a text should; compress it again "
                                 "without --long",
                                 path_),
                     std::move(step).error()};
      }
      rest_ = rest_.subspan(step->taken);
      if (step->given > 0) return step->given;
      if (!rest_.empty()) continue;
      const auto n = ::read(file_, buffer_.data(), buffer_.size());
      if (n < 0) return unreadable(path_);
      if (n == 0) {
        if (!stream_.between_frames()) return broken(path_, "zstd", "it ends early");
        return std::size_t{0};
      }
      bytes_read_ += static_cast<std::uint64_t>(n);
      rest_ = std::span(buffer_).first(static_cast<std::size_t>(n));
    }
  }
  std::uint64_t file_bytes_read() const override { return bytes_read_; }

 private:
  const int file_;
  const std::string path_;
  compress::ZstdStream stream_;
  std::vector<std::byte> buffer_;
  std::span<const std::byte> rest_;
  std::uint64_t bytes_read_ = 0;
};

}  // namespace

Result<std::unique_ptr<TextReader>> open_text(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return error_of_errno(errno, fmt::format("cannot read the text {}", path));
  std::array<unsigned char, 4> first{};
  if (::pread(file, first.data(), first.size(), 0) == 4 && first == kZstdMagic)
    return std::make_unique<Zstd>(file, path);
  const gzFile gzip = gzdopen(file, "rb");
  if (gzip == nullptr) {
    ::close(file);
    return Error{ErrorCode::io, fmt::format("cannot read the text {}", path)};
  }
  return std::make_unique<PlainOrGzip>(gzip, path);
}

}  // namespace isthmus::runtime
