#include "compress/zstd_stream.h"

#include <fmt/format.h>
#include <zstd.h>
#include <zstd_errors.h>

#include "base/assert.h"

namespace isthmus::compress {

struct ZstdStream::Context {
  ZSTD_DCtx* decoder = ZSTD_createDCtx();

  Context() { ISTHMUS_ASSERT(decoder != nullptr); }
  ~Context() { ZSTD_freeDCtx(decoder); }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
};

ZstdStream::ZstdStream() : context_(std::make_unique<Context>()) {}
ZstdStream::~ZstdStream() = default;
ZstdStream::ZstdStream(ZstdStream&&) noexcept = default;
ZstdStream& ZstdStream::operator=(ZstdStream&&) noexcept = default;

Result<ZstdStream::Step> ZstdStream::decode(std::span<const std::byte> in,
                                            std::span<std::byte> out) {
  ZSTD_inBuffer from{in.data(), in.size(), 0};
  ZSTD_outBuffer to{out.data(), out.size(), 0};
  const auto left = ZSTD_decompressStream(context_->decoder, &to, &from);
  if (ZSTD_isError(left) != 0) {
    const bool wide = ZSTD_getErrorCode(left) == ZSTD_error_frameParameter_windowTooLarge;
    return Error{wide ? ErrorCode::too_large : ErrorCode::corrupt, ZSTD_getErrorName(left)};
  }
  if (from.pos > 0 || to.pos > 0) between_frames_ = left == 0;
  return Step{from.pos, to.pos};
}

}  // namespace isthmus::compress
