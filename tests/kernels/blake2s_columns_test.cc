// The digests of every column against Python's hashlib, which is OpenSSL's BLAKE2s, for bytes that
// both make alike: byte i is (i * 131 + i / 251) mod 256. Made with:
//
//   python3 -c "import hashlib
//   for n in (0, 1, 63, 64, 65, 1023, 1024, 1025, 2048, 131585):
//     b = bytes((i * 131 + i // 251) % 256 for i in range(n)); b += bytes(-n % 64)
//     d = b''.join(hashlib.blake2s(b''.join(b[r + 4*c:r + 4*c + 4] for r in range(0, len(b),
//     64))).digest()
//                  for c in range(16))
//     print(n, hashlib.blake2s(d).hexdigest())"
//
// with the sixteen digests hashed once more, by a BLAKE2s of this test's own.
#include "kernels/blake2s_columns.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "base/random.h"
#include "kernels/vector_targets.h"

namespace isthmus::kernels {
namespace {

std::vector<std::byte> sample(std::size_t count) {
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(i * 131 + i / 251);
  return bytes;
}

// RFC 7693, as plainly as it can be written.
std::string plain_blake2s(std::vector<std::byte> bytes) {
  constexpr std::uint32_t kIv[8] = {0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A,
                                    0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19};
  constexpr int kSigma[10][16] = {{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
                                  {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
                                  {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4},
                                  {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
                                  {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13},
                                  {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
                                  {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11},
                                  {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
                                  {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5},
                                  {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0}};
  constexpr int kMixed[8][4] = {{0, 4, 8, 12},  {1, 5, 9, 13},  {2, 6, 10, 14}, {3, 7, 11, 15},
                                {0, 5, 10, 15}, {1, 6, 11, 12}, {2, 7, 8, 13},  {3, 4, 9, 14}};
  const std::uint64_t length = bytes.size();
  std::uint32_t h[8];
  std::copy(std::begin(kIv), std::end(kIv), h);
  h[0] ^= 0x01010020;
  bytes.resize(std::max<std::size_t>(64, (bytes.size() + 63) / 64 * 64));
  for (std::size_t at = 0; at < bytes.size(); at += 64) {
    const bool last = at + 64 == bytes.size();
    const std::uint64_t so_far = last ? length : at + 64;
    std::uint32_t m[16], v[16];
    std::memcpy(m, bytes.data() + at, 64);
    std::copy(std::begin(h), std::end(h), v);
    std::copy(std::begin(kIv), std::end(kIv), v + 8);
    v[12] ^= static_cast<std::uint32_t>(so_far);
    v[13] ^= static_cast<std::uint32_t>(so_far >> 32);
    if (last) v[14] = ~v[14];
    for (const auto& sigma : kSigma)
      for (int g = 0; g < 8; ++g) {
        auto& [a, b, c, d] = kMixed[g];
        v[a] += v[b] + m[sigma[2 * g]];
        v[d] = std::rotr(v[d] ^ v[a], 16);
        v[c] += v[d];
        v[b] = std::rotr(v[b] ^ v[c], 12);
        v[a] += v[b] + m[sigma[2 * g + 1]];
        v[d] = std::rotr(v[d] ^ v[a], 8);
        v[c] += v[d];
        v[b] = std::rotr(v[b] ^ v[c], 7);
      }
    for (int i = 0; i < 8; ++i) h[i] ^= v[i] ^ v[8 + i];
  }
  std::string hex;
  for (const auto word : h)
    for (int byte = 0; byte < 4; ++byte) hex += fmt::format("{:02x}", word >> (8 * byte) & 0xff);
  return hex;
}

class Blake2sColumnsTest : public testing::Test {};

TEST_F(Blake2sColumnsTest, AreThoseOfHashlibOnEveryInstructionSet) {
  const std::pair<std::size_t, std::string> expected[] = {
      {0, "0211b09f3b29b54b55191919d96dd1d2c0264da61dab56f840c6b566c6b4576f"},
      {1, "262c3de00087eabf1c3546a19f61a9022e7aefd07c9bc9e7a42c712c4c78b685"},
      {63, "cfdf2c992dd9c8b5d24fbe68e62002fc8018c4d019318ec80487e2a87c138bdd"},
      {64, "954f0f4eb34e8268d7b82f27917a2157c22a0fc1c95f99b57eeae35bc36f08af"},
      {65, "ec6228a76dbb05f24a8562101f7a80bb8d0abdcf303886c4a1067438338d9bb1"},
      {1023, "3c91e12c1f5d3f076e748a0beb1274750ecf5b8cde739b44bf8d6c2997c32420"},
      {1024, "5f35e51b5552908fdf8f8d327337cb218a47d92e59d4786d7339b3259de43e5e"},
      {1025, "dd282142a35cfa95d02d0a91c5e66f2ab4e0b00f1ff57fcf6b308b01fa1199d0"},
      {2048, "6f62a958b4b59b98110d9657f9d99ba50a9f24fabb0ad792dd310aab69be0a59"},
      {131585, "376854e1cf33905e35c5300c94006733cdc5d464d30eb236db4c9ae2fb482eb7"},
  };
  for (const auto& target : vector_targets()) {
    const ForcedVectorTarget forced(target);
    for (const auto& [count, digest] : expected) {
      const auto digests = blake2s_columns(sample(count));
      EXPECT_EQ(plain_blake2s({digests.begin(), digests.end()}), digest)
          << target.name << ", " << count << " bytes";
    }
  }
}

TEST_F(Blake2sColumnsTest, AnyAlignmentAndLengthGivesThePlainDigests) {
  Random random(5);
  for (const auto& target : vector_targets()) {
    const ForcedVectorTarget forced(target);
    for (int i = 0; i < 60; ++i) {
      const auto all = sample(5000 + 3000 * random.below(2));
      const auto from = random.below(64), count = random.below(all.size() - from);
      const auto bytes = std::span(all).subspan(from, count);
      const auto digests = blake2s_columns(bytes);
      std::vector<std::byte> padded(bytes.begin(), bytes.end());
      padded.resize((count + 63) / 64 * 64);
      const auto column = random.below(kBlake2sColumns);
      std::vector<std::byte> stream;
      for (std::size_t row = 0; row < padded.size(); row += 64)
        stream.insert(stream.end(), padded.begin() + static_cast<std::ptrdiff_t>(row + 4 * column),
                      padded.begin() + static_cast<std::ptrdiff_t>(row + 4 * column + 4));
      std::string hex;
      for (std::size_t byte = 0; byte < kBlake2sBytes; ++byte)
        hex += fmt::format("{:02x}",
                           std::to_integer<unsigned>(digests[column * kBlake2sBytes + byte]));
      ASSERT_EQ(hex, plain_blake2s(stream)) << target.name << ", " << count << " bytes";
    }
  }
}

}  // namespace
}  // namespace isthmus::kernels
