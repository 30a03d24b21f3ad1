#include "kernels/outer_arithmetic.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tests/kernels/outer_bits.h"

namespace isthmus::kernels {
namespace {

TEST(OuterArithmetic, FloatEnvironment) { EXPECT_TRUE(float_environment_is_ieee()); }

TEST(OuterArithmetic, AllFinite) {
  on_every_target([] {
    for (const std::size_t length : kLengths) {
      std::vector<float> x = mixed_values("finite", length);
      EXPECT_TRUE(all_finite(x));
      for (std::size_t i = 0; i < length; ++i) {
        const float kept = x[i];
        for (const float bad : {INFINITY, -INFINITY, std::nanf(""), value_of(0xff800001)}) {
          x[i] = bad;
          EXPECT_FALSE(all_finite(x)) << i << " of " << length;
        }
        x[i] = std::numeric_limits<float>::max();
        EXPECT_TRUE(all_finite(x));
        x[i] = kept;
      }
    }
  });
}

TEST(OuterArithmetic, AllWithin) {
  on_every_target([] {
    for (const std::size_t length : kLengths) {
      std::vector<float> x(length, -1.5F);
      EXPECT_TRUE(all_within(x, 1.5F));
      for (std::size_t i = 0; i < length; ++i) {
        for (const float bad : {std::nextafter(1.5F, 2.0F), -1.6F, INFINITY, -INFINITY,
                                std::nanf(""), value_of(0xff800001)}) {
          x[i] = bad;
          EXPECT_FALSE(all_within(x, 1.5F)) << i << " of " << length;
        }
        x[i] = 1.5F;
      }
    }
  });
}

TEST(OuterArithmetic, Arithmetic) {
  on_every_target([] {
    for (const std::size_t length : kLengths) {
      const std::vector<float> a = mixed_values("a", length);
      const std::vector<float> b = mixed_values("b", length);
      const float weight = 0.37F;
      std::vector<float> got(length);
      std::vector<float> want(length);

      subtract(a, b, got);
      for (std::size_t i = 0; i < length; ++i) want[i] = a[i] - b[i];
      EXPECT_TRUE(same_bits(got, want)) << "subtract " << length;

      add(a, b, got);
      for (std::size_t i = 0; i < length; ++i) want[i] = a[i] + b[i];
      EXPECT_TRUE(same_bits(got, want)) << "add " << length;

      scale(weight, a, got);
      for (std::size_t i = 0; i < length; ++i) want[i] = weight * a[i];
      EXPECT_TRUE(same_bits(got, want)) << "scale " << length;

      got = b;
      accumulate(weight, a, got);
      for (std::size_t i = 0; i < length; ++i) {
        volatile float product = weight * a[i];  // volatile: rounded by itself
        want[i] = b[i] + product;
      }
      EXPECT_TRUE(same_bits(got, want)) << "accumulate " << length;

      got = a;  // in place
      add(got, b, got);
      for (std::size_t i = 0; i < length; ++i) want[i] = a[i] + b[i];
      EXPECT_TRUE(same_bits(got, want)) << "add in place " << length;
    }
  });
}

// A fused multiply-add would give another result here; the test above would not notice values for
// which it happens not to matter.
TEST(OuterArithmetic, AccumulateRoundsTwice) {
  on_every_target([] {
    const float a = 1.0F + 0x1p-12F;
    for (const std::size_t length : {1, 16, 64}) {
      const std::vector<float> x(length, a);
      std::vector<float> sum(length, -(1.0F + 0x1p-11F));
      accumulate(a, x, sum);  // a² = 1 + 2^-11 + 2^-24: the last bit is lost when rounded first
      for (const float value : sum) EXPECT_EQ(value, 0.0F);
    }
  });
}

}  // namespace
}  // namespace isthmus::kernels
