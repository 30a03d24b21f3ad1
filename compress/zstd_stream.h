// ZstdStream: what zstd files decompress to, a stretch at a time, in bounded memory. The files are
// a user's: anything in them may be wrong.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "base/result.h"

namespace isthmus::compress {

class ZstdStream {
 public:
  ZstdStream();
  ~ZstdStream();
  ZstdStream(ZstdStream&&) noexcept;
  ZstdStream& operator=(ZstdStream&&) noexcept;

  struct Step {
    std::size_t taken = 0;  // of `in`
    std::size_t given = 0;  // at the front of `out`
  };
  // Neither need be all. Errors: corrupt; too_large (a frame that wants a window above 128 MiB).
  Result<Step> decode(std::span<const std::byte> in, std::span<std::byte> out);

  // Between two frames: here a file may end.
  bool between_frames() const { return between_frames_; }

 private:
  struct Context;
  std::unique_ptr<Context> context_;
  bool between_frames_ = true;
};

}  // namespace isthmus::compress
