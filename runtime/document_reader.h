// DocumentReader: the documents of a text file or of a file of JSON lines, in order, in bounded
// memory, and from any place that it has been at.
//
//   text         paragraphs, which blank lines part: two newlines with nothing but spaces, tabs and
//                carriage returns between them, matched from the left: of three, the third opens
//                the next paragraph
//   JSON lines   one a line; empty lines are passed over
//
// Where text is cut into pieces depends on the text alone, never on how much came at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/result.h"
#include "runtime/text_reader.h"

namespace isthmus::runtime {

enum class DocumentFormat : std::uint8_t { text, json_lines };

// A document, or a part of a paragraph that is too long for one piece.
struct DocumentPiece {
  std::string text = {};
  std::uint64_t document = 0;       // counted from 0
  std::uint64_t line = 0;           // counted from 1; of JSON lines
  bool begins = true, ends = true;  // the document; the last paragraph of a text does not end
};

// Where a reader is.
struct ReadPosition {
  std::uint64_t offset = 0;     // in the text
  std::uint64_t documents = 0;  // begun before
  std::uint64_t lines = 0;      // before
  bool inside = false;          // of the last of them
  bool ended = false;
};

class DocumentReader {
 public:
  // Errors: those of open_text; corrupt (the text is shorter than `from` says).
  static Result<DocumentReader> open(const std::string& path, DocumentFormat format,
                                     const ReadPosition& from = {});

  // Nothing at the end. Errors: those of the reader; too_large (a line above 64 MiB).
  Result<std::optional<DocumentPiece>> next();

  const ReadPosition& position() const { return position_; }
  std::uint64_t file_bytes_read() const { return reader_->file_bytes_read(); }

 private:
  DocumentReader(std::unique_ptr<TextReader> reader, DocumentFormat format)
      : reader_(std::move(reader)), format_(format) {}
  Result<void> skip(std::uint64_t bytes);
  Result<void> fill(std::size_t wanted);
  std::string_view rest() const { return std::string_view(buffer_).substr(at_); }
  std::string take(std::size_t text_bytes, std::size_t all_bytes);
  DocumentPiece next_paragraph();
  Result<std::optional<DocumentPiece>> next_line();

  std::unique_ptr<TextReader> reader_;
  DocumentFormat format_;
  std::string buffer_;
  std::size_t at_ = 0;  // what is before has been given
  bool no_more_ = false;
  ReadPosition position_;
};

}  // namespace isthmus::runtime
