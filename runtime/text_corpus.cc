#include "runtime/text_corpus.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "base/byte_stream.h"
#include "base/counted.h"

namespace isthmus::runtime {
namespace {

constexpr const char* kTemporaryEnding = ".new";
constexpr std::size_t kBufferBytes = std::size_t{1} << 20;

// One part of the text on its way to disk.
class Part {
 public:
  Part(Disk& disk, std::string path) : disk_(disk), path_(std::move(path)) {}
  ~Part() {
    if (file_ == nullptr) return;
    file_.reset();
    (void)disk_.remove(temporary());  // half a part is of no use to anybody
  }
  Part(const Part&) = delete;
  Part& operator=(const Part&) = delete;

  Result<void> create() {
    if (const auto folder = folder_of(path_); !folder.empty())
      ISTHMUS_CHECK(disk_.make_folders(folder));
    ISTHMUS_TRY(file_, disk_.open(temporary(), Disk::Open::create));
    return {};
  }
  Result<void> begin_paragraph() {
    if (paragraphs_++ > 0) return add("\n\n");
    return {};
  }
  Result<void> add(std::string_view text) {
    buffer_ += text;
    if (buffer_.size() < kBufferBytes) return {};
    return flush();
  }
  Result<void> finish() {
    ISTHMUS_CHECK(flush());
    return file_->sync();
  }
  Result<void> publish() {
    ISTHMUS_CHECK(disk_.rename(temporary(), path_));
    file_.reset();
    return disk_.sync_folder(folder_of(path_));
  }
  std::uint64_t bytes() const { return written_ + buffer_.size(); }
  std::uint64_t paragraphs() const { return paragraphs_; }

 private:
  std::string temporary() const { return path_ + kTemporaryEnding; }
  Result<void> flush() {
    ISTHMUS_CHECK(file_->write_at(written_, bytes_of(buffer_)));
    written_ += buffer_.size();
    buffer_.clear();
    return {};
  }

  Disk& disk_;
  std::string path_;
  std::unique_ptr<File> file_;
  std::string buffer_;
  std::uint64_t written_ = 0;
  std::uint64_t paragraphs_ = 0;
};

// Deals paragraphs to the two parts, a stretch of text at a time. A blank line is two newlines with
// nothing but spaces, tabs and carriage returns between them, matched from the left: of three, the
// third opens the next paragraph.
class Splitter {
 public:
  static constexpr std::size_t kBlankMax = 4096;  // a longer line is text

  Splitter(Part& train, Part& held_out) : train_(train), held_out_(held_out) {}

  Result<void> begin() { return next_paragraph(); }

  Result<void> feed(std::string_view text) {
    while (!text.empty()) {
      if (!pending_.empty()) {
        const auto blanks = std::min(text.find_first_not_of(" \t\r"), text.size());
        const auto kept = std::min(blanks, kBlankMax - pending_.size());
        pending_ += text.substr(0, kept);
        text.remove_prefix(kept);
        if (text.empty()) break;
        if (text.front() == '\n') {
          pending_.clear();
          ISTHMUS_CHECK(next_paragraph());
          text.remove_prefix(1);
          continue;
        }
        ISTHMUS_CHECK(part_->add(std::exchange(pending_, {})));
      }
      const auto newline = std::min(text.find('\n'), text.size());
      ISTHMUS_CHECK(part_->add(text.substr(0, newline)));
      text.remove_prefix(newline);
      if (text.empty()) break;
      pending_.assign(1, '\n');
      text.remove_prefix(1);
    }
    return {};
  }
  Result<void> finish() { return part_->add(pending_); }
  std::uint64_t paragraphs() const { return paragraphs_; }

 private:
  Result<void> next_paragraph() {
    part_ = paragraphs_++ % kHeldOutPeriod == kHeldOutPlace ? &held_out_ : &train_;
    return part_->begin_paragraph();
  }

  Part& train_;
  Part& held_out_;
  Part* part_ = nullptr;
  std::uint64_t paragraphs_ = 0;
  std::string pending_;  // a newline and blanks: the beginning of a blank line, perhaps
};

struct CloseGzip {
  void operator()(gzFile file) const { gzclose(file); }
};
using GzipReader = std::unique_ptr<gzFile_s, CloseGzip>;

Result<void> feed_all(gzFile source, const std::string& path, Splitter& splitter) {
  std::string buffer(kBufferBytes, '\0');
  for (;;) {
    const int n = gzread(source, buffer.data(), static_cast<unsigned>(buffer.size()));
    int status = Z_OK;
    const char* reason = gzerror(source, &status);
    // A file cut short gives its last bytes first, and Z_BUF_ERROR with them.
    if (n < 0 || status == Z_BUF_ERROR)
      return status == Z_ERRNO ? error_of_errno(errno, fmt::format("cannot read {}", path))
                               : Error{ErrorCode::corrupt,
                                       fmt::format("{} is no whole gzip file ({}); fetch it again",
                                                   path, reason)};
    if (n == 0) return {};
    ISTHMUS_CHECK(splitter.feed(std::string_view(buffer).substr(0, static_cast<std::size_t>(n))));
  }
}

// However they are written.
bool same_file(const std::string& a, const std::string& b) {
  std::error_code none, ignored;
  return std::filesystem::equivalent(a, b, none) ||
         std::filesystem::weakly_canonical(a, ignored) ==
             std::filesystem::weakly_canonical(b, ignored);
}

// Neither part may replace the text, or the other part.
Result<void> refuse_same_files(const std::string& source, const std::string& train,
                               const std::string& held_out) {
  const auto temporary = [](const std::string& path) { return path + kTemporaryEnding; };
  const std::string files[] = {source, train, held_out, temporary(train), temporary(held_out)};
  for (std::size_t i = 0; i < std::size(files); ++i)
    for (std::size_t j = 0; j < i; ++j)
      if (same_file(files[i], files[j]))
        return Error{ErrorCode::invalid_argument,
                     fmt::format("the text, what is to train on and what is held out must be three "
                                 "files: {} and {} are one",
                                 files[j], files[i])};
  return {};
}

}  // namespace

Result<PreparedText> prepare_text(Disk& disk, const std::string& source,
                                  const std::string& train_path, const std::string& held_out_path) {
  ISTHMUS_CHECK(refuse_same_files(source, train_path, held_out_path));
  errno = 0;
  const GzipReader reader(gzopen(source.c_str(), "rb"));
  if (reader == nullptr)
    return error_of_errno(errno, fmt::format("cannot read the text {}", source));
  Part train(disk, train_path), held_out(disk, held_out_path);
  ISTHMUS_CHECK(train.create());
  ISTHMUS_CHECK(held_out.create());
  Splitter splitter(train, held_out);
  ISTHMUS_CHECK(splitter.begin());
  ISTHMUS_CHECK(feed_all(reader.get(), source, splitter));
  ISTHMUS_CHECK(splitter.finish());
  if (held_out.paragraphs() == 0)
    return Error{
        ErrorCode::invalid_argument,
        fmt::format("{} has {} (parted by blank lines): at least {} are needed "
                    "to hold one out. A text that is not made of paragraphs can be trained on as "
                    "it is: name it in data.train, and another one in data.held_out",
                    source, counted(splitter.paragraphs(), "paragraph"), kHeldOutPlace + 1)};
  ISTHMUS_CHECK(train.finish());
  ISTHMUS_CHECK(held_out.finish());
  ISTHMUS_CHECK(train.publish());
  ISTHMUS_CHECK(held_out.publish());
  return PreparedText{splitter.paragraphs(), train.bytes(), held_out.bytes()};
}

}  // namespace isthmus::runtime
