#include "kernels/bf16.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "base/random.h"
#include "base/thread_pool.h"
#include "tests/kernels/outer_bits.h"

namespace isthmus::kernels {
namespace {

TEST(Bf16, OfChosenValues) {
  on_every_target([] {
    const float most = value_of(0x7f7f0000);
    for (const auto& [in, bits] : std::vector<std::pair<float, int>>{
             {0.0F, 0x0000},
             {-0.0F, 0x8000},
             {1.0F, 0x3f80},
             {value_of(0x3f808000), 0x3f80},  // a tie, to even
             {value_of(0x3f818000), 0x3f82},
             {value_of(0x3f808001), 0x3f81},
             {value_of(1), 0x0000},
             {most, 0x7f7f},
             {std::numeric_limits<float>::max(), 0x7f7f},  // saturates
             {-std::numeric_limits<float>::max(), 0xff7f},
             {INFINITY, 0x7f80},
             {-INFINITY, 0xff80},
             {value_of(0x7f800001), 0x7fc0},  // a NaN whose payload would be cut off
             {value_of(0xffc12345), 0xffc1}}) {
      for (const std::size_t length : {1, 16, 35}) {
        const std::vector<float> values(length, in);
        std::vector<bf16_t> out(length);
        float_to_bf16(values, out);
        for (const bf16_t value : out) EXPECT_EQ(value.bits, bits) << in;
      }
    }
  });
}

// A check of the specification itself, by another route: the nearest of the two neighbours.
TEST(Bf16, SpecificationIsNearestEven) {
  const Random random(3);
  for (std::uint64_t i = 0; i < 200000; ++i) {
    const auto bits = static_cast<std::uint32_t>(random.at(i));
    const float value = value_of(bits);
    if (!std::isfinite(value)) continue;
    const std::uint32_t below = bits & 0xffff0000U;
    const double low = value_of(below);
    const std::uint32_t above = below + 0x10000U;
    if ((above & 0x7f800000U) == 0x7f800000U) continue;  // saturation: chosen values above
    const double high = value_of(above);
    const double to_low = std::fabs(static_cast<double>(value) - low);
    const double to_high = std::fabs(high - static_cast<double>(value));
    const bool takes_low = to_low < to_high || (to_low == to_high && ((below >> 16) & 1U) == 0);
    EXPECT_EQ(to_bf16(value).bits, (takes_low ? below : above) >> 16) << bits;
  }
}

TEST(Bf16, BackIsExact) {
  on_every_target([] {
    std::vector<bf16_t> all(65536);
    for (std::size_t i = 0; i < all.size(); ++i) all[i].bits = static_cast<std::uint16_t>(i);
    std::vector<float> values(all.size());
    bf16_to_float(all, values);
    for (std::size_t i = 0; i < all.size(); ++i)
      EXPECT_EQ(std::bit_cast<std::uint32_t>(values[i]), i << 16);
  });
}

#if defined(__OPTIMIZE__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// What the 65,536 floats with upper half `high` must become: the lower ones one value, the upper
// ones the next.
void expected_bf16(std::uint32_t high, std::vector<bf16_t>& out) {
  const std::uint32_t magnitude = high & 0x7fffU;
  const auto down = static_cast<std::uint16_t>(high);
  if (magnitude >= 0x7f80U) {  // infinity, then NaN: made quiet, payload cut
    std::fill(out.begin(), out.end(), bf16_t{static_cast<std::uint16_t>(down | 0x0040U)});
    if (magnitude == 0x7f80U) out[0] = bf16_t{down};
    return;
  }
  const auto up = static_cast<std::uint16_t>(magnitude == 0x7f7fU ? down : down + 1U);
  const std::ptrdiff_t tie_goes_up = static_cast<std::ptrdiff_t>(high & 1U);
  const auto turn = out.begin() + 0x8001 - tie_goes_up;
  std::fill(out.begin(), turn, bf16_t{down});
  std::fill(turn, out.end(), bf16_t{up});
}

TEST(Bf16, OfEveryFloat) {
  constexpr std::size_t kChunk = 1 << 16;
  ThreadPool pool(available_cpus());
  struct Worker {
    std::vector<float> in = std::vector<float>(kChunk);
    std::vector<bf16_t> out = std::vector<bf16_t>(kChunk);
    std::vector<bf16_t> want = std::vector<bf16_t>(kChunk);
  };
  std::vector<Worker> workers(pool.workers());
  on_every_target([&] {
    std::atomic<std::size_t> wrong_chunks{0};
    pool.parallel_for(65536, [&](std::size_t high, std::size_t worker) {
      Worker& w = workers[worker];
      for (std::size_t low = 0; low < kChunk; ++low)
        w.in[low] = value_of(static_cast<std::uint32_t>((high << 16) | low));
      float_to_bf16(w.in, w.out);
      expected_bf16(static_cast<std::uint32_t>(high), w.want);
      bool same = same_bits(w.out, w.want);
      // The specification itself, where it could turn.
      for (const std::size_t low : {0x0, 0x1, 0x7fff, 0x8000, 0x8001, 0xffff})
        same = same && to_bf16(w.in[low]).bits == w.want[low].bits;
      if (!same) ++wrong_chunks;
    });
    EXPECT_EQ(wrong_chunks.load(), 0U);
  });
}
#endif

}  // namespace
}  // namespace isthmus::kernels
