#include "compress/zstd_stage.h"

#include <fmt/format.h>
#include <zstd.h>

#include <cstdint>
#include <cstring>
#include <new>

#include "base/assert.h"

namespace isthmus::compress {
namespace {

constexpr std::byte kRaw{0};
constexpr std::byte kZstd{1};

// Level 1: higher ones cost speed and gain nothing on quantised values.
constexpr int kLevel = 1;

template <class Context, std::size_t (*free_context)(Context*)>
struct Free {
  void operator()(Context* context) const { free_context(context); }
};

Error bad(std::string sentence) { return Error{ErrorCode::bad_frame, std::move(sentence)}; }

// One frame of today's format: the library would also read obsolete ones, with decoders that are
// less well tested, and skip frames that hold nothing.
Result<void> check_frame(std::span<const std::byte> frame, std::size_t declared) {
  std::uint32_t magic = 0;
  if (frame.size() < sizeof magic) return bad("zstd: the frame is too short");
  std::memcpy(&magic, frame.data(), sizeof magic);
  if (magic != ZSTD_MAGICNUMBER) return bad("zstd: not a frame");
  if (const auto content = ZSTD_getFrameContentSize(frame.data(), frame.size());
      content != declared)
    return bad(fmt::format("zstd: the frame does not hold {} bytes, as declared", declared));
  if (ZSTD_findFrameCompressedSize(frame.data(), frame.size()) != frame.size())
    return bad("zstd: the frame ends early or late");
  return {};
}

}  // namespace

struct ZstdStage::Contexts {
  std::unique_ptr<ZSTD_CCtx, Free<ZSTD_CCtx, ZSTD_freeCCtx>> compress{ZSTD_createCCtx()};
  std::unique_ptr<ZSTD_DCtx, Free<ZSTD_DCtx, ZSTD_freeDCtx>> decompress{ZSTD_createDCtx()};
};

ZstdStage::ZstdStage() : contexts_(std::make_unique<Contexts>()) {
  if (!contexts_->compress || !contexts_->decompress) throw std::bad_alloc();
}

ZstdStage::~ZstdStage() = default;

std::size_t ZstdStage::pack(std::span<const std::byte> bytes, std::span<std::byte> out) {
  ISTHMUS_ASSERT(out.size() >= packed_bytes_max(bytes.size()));
  if (!bytes.empty()) {
    // Room for one byte less than raw takes: what does not fit there gains nothing.
    const auto size = ZSTD_compressCCtx(contexts_->compress.get(), out.data() + 1, bytes.size() - 1,
                                        bytes.data(), bytes.size(), kLevel);
    if (!ZSTD_isError(size)) {
      out[0] = kZstd;
      return 1 + size;
    }
    std::memcpy(out.data() + 1, bytes.data(), bytes.size());
  }
  out[0] = kRaw;
  return 1 + bytes.size();
}

void ZstdStage::tag_raw(std::span<std::byte> payload) { payload[0] = kRaw; }

std::optional<std::span<const std::byte>> ZstdStage::raw(std::span<const std::byte> payload) {
  if (payload.empty() || payload[0] != kRaw) return std::nullopt;
  return payload.subspan(1);
}

Result<void> ZstdStage::unpack(std::span<const std::byte> payload, std::span<std::byte> out) {
  if (payload.empty()) return bad("an empty chunk payload");
  const auto body = payload.subspan(1);
  if (payload[0] == kRaw) {
    if (body.size() != out.size())
      return bad(
          fmt::format("a raw chunk payload of {} bytes, declared as {}", body.size(), out.size()));
    if (!out.empty()) std::memcpy(out.data(), body.data(), out.size());
    return {};
  }
  if (payload[0] != kZstd)
    return bad(fmt::format("unknown chunk payload tag {}", std::to_integer<int>(payload[0])));
  ISTHMUS_CHECK(check_frame(body, out.size()));
  const auto size = ZSTD_decompressDCtx(contexts_->decompress.get(), out.data(), out.size(),
                                        body.data(), body.size());
  if (ZSTD_isError(size)) return bad(fmt::format("zstd: {}", ZSTD_getErrorName(size)));
  if (size != out.size()) return bad(fmt::format("zstd: {} bytes instead of {}", size, out.size()));
  return {};
}

}  // namespace isthmus::compress
