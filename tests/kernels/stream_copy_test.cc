#include "kernels/stream_copy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "tests/kernels/outer_bits.h"

namespace isthmus::kernels {
namespace {

TEST(StreamCopy, ExactlyWhatItIsTold) {
  on_every_target([] {
    std::vector<float> from(200);
    for (std::size_t i = 0; i < from.size(); ++i)
      from[i] = value_of(0x7FC00001 + static_cast<std::uint32_t>(i));
    for (std::size_t at = 0; at < 20; ++at)
      for (std::size_t to_at = 0; to_at < 20; ++to_at)
        for (const std::size_t count : {0, 1, 15, 16, 17, 63, 64, 150}) {
          std::vector<float> to(200, 1.0F);
          const auto before = to;
          stream_copy(std::span(from).subspan(at, count), std::span(to).subspan(to_at, count));
          ASSERT_EQ(std::memcmp(&to[to_at], &from[at], 4 * count), 0);
          std::copy_n(before.begin(), count, to.begin() + static_cast<std::ptrdiff_t>(to_at));
          ASSERT_EQ(to, before) << "nothing beside it";
        }
  });
}

}  // namespace
}  // namespace isthmus::kernels
