// TextReader: a text as it comes out of a plain, gzipped or zstd-compressed file, which its first
// bytes tell apart: a stretch at a time, in bounded memory. Files change and break: a cut or
// damaged one is an error.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/result.h"

namespace isthmus::runtime {

class TextReader {
 public:
  virtual ~TextReader() = default;
  // How many characters of text came; 0: it has ended. Errors: corrupt, io, too_large.
  virtual Result<std::size_t> read(std::span<char> out) = 0;
  // Of the file itself, for progress.
  virtual std::uint64_t file_bytes_read() const = 0;
};

// Errors: not_found, permission, io.
Result<std::unique_ptr<TextReader>> open_text(const std::string& path);

}  // namespace isthmus::runtime
