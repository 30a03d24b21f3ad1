#include "base/random.h"

#include <cmath>
#include <numbers>

#include "base/assert.h"

namespace isthmus {
namespace {

// Positions of this stream are used for splitting, so that children never meet their parent's
// draws.
constexpr std::uint32_t kSplitDomain = 0x73706c74;

std::array<std::uint32_t, 2> halves(std::uint64_t x) {
  return {static_cast<std::uint32_t>(x), static_cast<std::uint32_t>(x >> 32)};
}

}  // namespace

std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> c,
                                        std::array<std::uint32_t, 2> k) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53} * c[0];
    const std::uint64_t b = std::uint64_t{0xCD9E8D57} * c[2];
    c = {static_cast<std::uint32_t>(b >> 32) ^ c[1] ^ k[0], static_cast<std::uint32_t>(b),
         static_cast<std::uint32_t>(a >> 32) ^ c[3] ^ k[1], static_cast<std::uint32_t>(a)};
    k[0] += 0x9E3779B9;
    k[1] += 0xBB67AE85;
  }
  return c;
}

std::array<std::uint32_t, 4> Random::block(std::uint64_t counter) const {
  const auto c = halves(counter);
  return philox4x32({c[0], c[1], 0, 0}, halves(key_));
}

Random Random::split(std::uint64_t name) const {
  const auto n = halves(name);
  const auto b = philox4x32({n[0], n[1], kSplitDomain, 1}, halves(key_));
  return Random((std::uint64_t{b[1]} << 32) | b[0]);
}

Random Random::split(std::string_view name) const {
  std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return split(hash);
}

double Random::normal_at(std::uint64_t counter) const {
  const auto b = block(counter);
  const double u = (static_cast<double>(b[0]) + 1.0) * 0x1p-32;  // in (0, 1]
  const double v = static_cast<double>((std::uint64_t{b[3]} << 32 | b[2]) >> 11) * 0x1p-53;
  return std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * std::numbers::pi * v);
}

std::uint64_t Random::below(std::uint64_t bound) {
  ISTHMUS_ASSERT(bound > 0);
  const std::uint64_t unfair = (0 - bound) % bound;  // 2^64 mod bound
  for (;;) {
    const auto x = next();
    if (x >= unfair) return x % bound;
  }
}

}  // namespace isthmus
