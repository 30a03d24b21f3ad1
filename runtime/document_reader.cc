#include "runtime/document_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace isthmus::runtime {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{4} << 20;  // of a paragraph that is longer
constexpr std::size_t kBlanksMax = 4095;                   // a longer line is text
constexpr std::size_t kLineBytesMax = std::size_t{64} << 20;
constexpr std::size_t kReadBytes = std::size_t{1} << 20;

// Where a piece may end, at `bytes` or before: behind a line, else between two characters.
std::size_t cut_before(std::string_view text, std::size_t bytes) {
  if (const auto newline = text.rfind('\n', bytes - 1); newline != text.npos) return newline + 1;
  auto cut = bytes;
  while (cut > bytes - 4 && (static_cast<unsigned char>(text[cut]) & 0xC0) == 0x80) --cut;
  return cut;
}

}  // namespace

Result<DocumentReader> DocumentReader::open(const std::string& path, DocumentFormat format,
                                            const ReadPosition& from) {
  ISTHMUS_TRY(auto reader, open_text(path));
  DocumentReader opened(std::move(reader), format);
  ISTHMUS_CHECK(opened.skip(from.offset));
  opened.position_ = from;
  return opened;
}

Result<void> DocumentReader::skip(std::uint64_t bytes) {
  std::string skipped(kReadBytes, '\0');
  while (bytes > 0) {
    const auto wanted = std::min<std::uint64_t>(bytes, skipped.size());
    ISTHMUS_TRY(const auto n, reader_->read(std::span(skipped).first(wanted)));
    if (n == 0) return Error{ErrorCode::corrupt, "the text has become shorter"};
    bytes -= n;
  }
  return {};
}

// Until so much is there that has not been given, or the text ends.
Result<void> DocumentReader::fill(std::size_t wanted) {
  if (rest().size() >= wanted || no_more_) return {};
  buffer_.erase(0, std::exchange(at_, 0));
  while (buffer_.size() < wanted && !no_more_) {
    const auto before = buffer_.size();
    buffer_.resize(before + kReadBytes);
    auto n = reader_->read(std::span(buffer_).subspan(before));
    buffer_.resize(before + n.value_or(0));
    if (!n) return std::move(n).error();
    no_more_ = *n == 0;
  }
  return {};
}

std::string DocumentReader::take(std::size_t text_bytes, std::size_t all_bytes) {
  std::string text(rest().substr(0, text_bytes));
  at_ += all_bytes;
  position_.offset += all_bytes;
  return text;
}

Result<std::optional<DocumentPiece>> DocumentReader::next() {
  if (position_.ended) return std::optional<DocumentPiece>();
  if (format_ == DocumentFormat::json_lines) return next_line();
  ISTHMUS_CHECK(fill(kPieceBytes + kBlanksMax + 2));
  return std::optional(next_paragraph());
}

DocumentPiece DocumentReader::next_paragraph() {
  DocumentPiece piece{.begins = !position_.inside};
  if (piece.begins) ++position_.documents;
  piece.document = position_.documents - 1;
  const auto text = rest();
  for (auto newline = text.find('\n'); newline < std::min(text.size(), kPieceBytes);
       newline = text.find('\n', newline + 1)) {
    const auto next = text.find_first_not_of(" \t\r", newline + 1);
    if (next == text.npos || text[next] != '\n' || next - newline - 1 > kBlanksMax) continue;
    position_.inside = false;
    piece.text = take(newline, next + 1);
    return piece;
  }
  piece.ends = false;
  if (text.size() > kPieceBytes) {
    const auto cut = cut_before(text, kPieceBytes);
    position_.inside = true;
    piece.text = take(cut, cut);
  } else {
    position_.ended = true;
    piece.text = take(text.size(), text.size());
  }
  return piece;
}

Result<std::optional<DocumentPiece>> DocumentReader::next_line() {
  for (;;) {
    auto newline = rest().find('\n');
    while (newline == std::string::npos && !no_more_ && rest().size() <= kLineBytesMax) {
      const auto seen = rest().size();
      ISTHMUS_CHECK(fill(seen + 1));
      newline = rest().find('\n', seen);
    }
    ++position_.lines;
    const auto size = std::min(newline, rest().size());
    if (size > kLineBytesMax)
      return Error{ErrorCode::too_large, fmt::format("line {} has more than {} MiB",
                                                     position_.lines, kLineBytesMax >> 20)};
    position_.ended = newline == std::string::npos;
    DocumentPiece piece{.text = take(size, size + (position_.ended ? 0 : 1)),
                        .document = position_.documents,
                        .line = position_.lines};
    if (piece.text.find_first_not_of(" \t\r") != std::string::npos) {
      ++position_.documents;
      return std::optional(std::move(piece));
    }
    if (position_.ended) return std::optional<DocumentPiece>();
  }
}

}  // namespace isthmus::runtime
