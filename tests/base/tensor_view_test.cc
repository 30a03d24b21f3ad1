#include "base/tensor_view.h"

#include <gtest/gtest.h>

#include <vector>

namespace isthmus {
namespace {

TEST(DType, SizesAndNamesAreThoseOfFiles) {
  EXPECT_EQ(size_of(DType::f32), 4u);
  EXPECT_EQ(size_of(DType::bf16), 2u);
  EXPECT_EQ(size_of(DType::i32), 4u);
  EXPECT_EQ(to_string(DType::f32), "f32");
  EXPECT_EQ(to_string(DType::bf16), "bf16");
  EXPECT_EQ(to_string(DType::i32), "i32");
  static_assert(sizeof(bf16_t) == 2);
}

TEST(Shape, CountsElements) {
  EXPECT_EQ(Shape().elements(), 1);  // a scalar
  EXPECT_EQ(Shape({3}).elements(), 3);
  EXPECT_EQ(Shape({2, 3, 5, 7}).elements(), 210);
  EXPECT_EQ(Shape({4, 0}).elements(), 0);
  EXPECT_EQ(Shape({1 << 20, 1 << 20}).elements(), std::int64_t{1} << 40);
}

TEST(Shape, EqualMeansSameRankAndSizes) {
  EXPECT_EQ(Shape({2, 3}), Shape(std::vector<std::int64_t>{2, 3}));
  EXPECT_NE(Shape({2, 3}), Shape({3, 2}));
  EXPECT_NE(Shape({2}), Shape({2, 1}));
}

TEST(Shape, RefusesFiveDimensions) { EXPECT_DEATH(Shape({1, 1, 1, 1, 1}), "kRankMax"); }

TEST(TensorView, ViewsOnlyAsItsOwnType) {
  std::vector<float> values(6, 1.0f);
  const TensorView view{values.data(), DType::f32, {2, 3}};
  EXPECT_EQ(view.bytes(), 24u);
  view.f32()[5] = 2.0f;
  EXPECT_EQ(values[5], 2.0f);
  EXPECT_DEATH((void)view.bf16(), "DType::bf16");
  EXPECT_DEATH((void)view.i32(), "DType::i32");
  const TensorView half{values.data(), DType::bf16, {2, 3}};
  EXPECT_EQ(half.bytes(), 12u);
}

}  // namespace
}  // namespace isthmus
