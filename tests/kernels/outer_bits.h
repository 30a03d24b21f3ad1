// What tests of kernels on outer state share. Each runs on every instruction set that this CPU has,
// against the scalar specification in the kernel's header: equal to the bit.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/large_vector.h"
#include "base/random.h"
#include "kernels/vector_targets.h"

namespace isthmus::kernels {

inline void on_every_target(const std::function<void()>& body) {
  std::string names;
  for (const VectorTarget& target : vector_targets()) {
    SCOPED_TRACE(target.name);
    names += (names.empty() ? "" : ", ") + target.name;
    const ForcedVectorTarget forced(target);
    body();
  }
  testing::Test::RecordProperty("targets", names);
  fmt::print("targets run: {}\n", names);
}

inline float value_of(std::uint32_t bits) { return std::bit_cast<float>(bits); }

// Ordinary values, and all the odd ones: subnormals, extremes, halves, signed zeros.
inline std::vector<float> mixed_values(std::string_view name, std::size_t count) {
  const Random random = Random(7).split(name);
  const std::array<float, 14> odd = {0.0F,
                                     -0.0F,
                                     value_of(1),
                                     -value_of(1),
                                     value_of(0x007fffff),
                                     0x1p-126F,
                                     0x1p-100F,
                                     1.0F,
                                     std::nextafter(1.0F, 2.0F),
                                     -1.5F,
                                     0x1p24F,
                                     1e30F,
                                     0.49999997F,
                                     1e-30F};
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    const auto block = random.block(i);
    if (block[0] % 8 == 0)
      values[i] = odd[block[1] % odd.size()];
    else
      values[i] = static_cast<float>(random.normal_at(count + i)) *
                  std::ldexp(1.0F, static_cast<int>(block[2] % 40) - 20);
  }
  return values;
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

// Lengths around every vector width.
inline constexpr std::array<std::size_t, 12> kLengths = {0,  1,  3,  8,   15,  16,
                                                         17, 31, 63, 256, 700, 1000};

// Values at any place of a line of the cache, with guards around them.
class Guarded {
 public:
  Guarded(std::size_t length, std::size_t offset)
      : first_(kGuard + offset), length_(length), memory_(first_ + length + kGuard, kUntouched) {}
  std::span<float> span() { return std::span(memory_).subspan(first_, length_); }
  // The values; and that nothing was written beside them.
  std::vector<float> values() const {
    for (std::size_t i = 0; i < memory_.size(); ++i) {
      const bool own = i >= first_ && i < first_ + length_;
      EXPECT_TRUE(own || memory_[i] == kUntouched) << i << " of " << length_ << " at " << first_;
    }
    const auto begin = memory_.begin() + static_cast<std::ptrdiff_t>(first_);
    return {begin, begin + static_cast<std::ptrdiff_t>(length_)};
  }

 private:
  static constexpr std::size_t kGuard = 16;
  static constexpr float kUntouched = 77;
  std::size_t first_, length_;
  LargeVector<float> memory_;  // begins with a line
};
inline constexpr std::size_t kOffsets = 17;

}  // namespace isthmus::kernels
