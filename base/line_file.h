// LineFile: whole lines, appended to a file that several processes may share. What a full disk, or
// a crash, leaves of a line is cut off again, so that readers find nothing but whole lines.
//
// A line is one system call, under a lock of the file (flock), for a torn line of ours looks like
// one that another process is writing. Who holds that lock for longer than a moment has been
// stopped, and nobody waits for it: then a torn line stays, and the next one begins after it.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "base/result.h"

namespace isthmus {

// Not thread-safe; several of one file are.
class LineFile {
 public:
  // Made when it is not there. Errors: io, permission, not_found (its folder).
  static Result<LineFile> open(const std::string& path);
  LineFile(LineFile&& other) noexcept;
  LineFile& operator=(LineFile&&) = delete;
  ~LineFile();

  // `line` is without its end. False: there is no room, and the file is as it was.
  bool append(std::string_view line);
  // The last lines that are whole: at most so many bytes, of which the first may be a line's rest.
  std::string tail(std::size_t bytes_max) const;

 private:
  explicit LineFile(int descriptor) : descriptor_(descriptor) {}

  int descriptor_;
};

}  // namespace isthmus
