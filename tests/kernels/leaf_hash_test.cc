#include "kernels/leaf_hash.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <span>
#include <vector>

namespace isthmus::kernels {
namespace {

TEST(LeafHash, IsXxh3Of128Bits) {
  // The published value of XXH3-128 for no input, seed 0.
  const Hash128 empty = leaf_hash({});
  EXPECT_EQ(empty.high, 0x99aa06d3014798d8ULL);
  EXPECT_EQ(empty.low, 0x6001c324468d497fULL);
  std::vector<std::byte> bytes(1000, std::byte{7});
  const Hash128 before = leaf_hash(bytes);
  bytes[999] = std::byte{6};
  EXPECT_NE(leaf_hash(bytes), before);
}

TEST(LeafHash, IsTheSamePieceByPiece) {
  std::vector<std::byte> bytes(100'000);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * i >> 3);
  LeafHasher hasher;
  for (const std::size_t piece : {1, 100, 8192, 99'999, 100'000}) {
    hasher.begin();
    for (std::size_t at = 0; at < bytes.size(); at += piece)
      hasher.update(std::span(bytes).subspan(at, std::min(piece, bytes.size() - at)));
    EXPECT_EQ(hasher.finish(), leaf_hash(bytes)) << piece;
  }
}

}  // namespace
}  // namespace isthmus::kernels
