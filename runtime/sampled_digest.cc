#include "runtime/sampled_digest.h"

#include <algorithm>

#include "base/byte_stream.h"

namespace isthmus::runtime {

Result<security::Digest> sampled_digest(const File& file, std::uint64_t bytes) {
  constexpr std::uint64_t kBlocks = 64, kBlockBytes = 1 << 16;
  const auto step = std::max(kBlockBytes, bytes / kBlocks);
  security::Hasher hasher;
  Bytes block;
  for (std::uint64_t at = 0; at < bytes; at += step) {
    block.resize(std::min(kBlockBytes, bytes - at));
    ISTHMUS_CHECK(file.read_at(at, block));
    hasher.update(block);
  }
  return hasher.finish();
}

}  // namespace isthmus::runtime
