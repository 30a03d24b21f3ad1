#include "kernels/transpose.h"

#include "kernels/elements.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/transpose.cc"
#include <hwy/foreach_target.h>  // compiles this file once per target

#include "kernels/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace isthmus::kernels::HWY_NAMESPACE {

// `lanes` rows by `lanes` columns, through a square that stays in the first-level cache.
template <class T>
HWY_INLINE void transpose_square(const T* in, std::int64_t in_stride, float* out,
                                 std::int64_t out_stride) {
  const FloatTag d;
  const hn::RebindToSigned<FloatTag> i32;
  constexpr std::int64_t kLanes = hn::MaxLanes(FloatTag());
  HWY_ALIGN float square[kLanes * kLanes];
  for (std::int64_t r = 0; r < kLanes; ++r)
    hn::Store(load_as_float(d, in + r * in_stride), d, square + r * kLanes);
  const auto down = hn::Mul(hn::Iota(i32, 0), hn::Set(i32, static_cast<int>(kLanes)));
  for (std::int64_t c = 0; c < kLanes; ++c)
    hn::StoreU(hn::GatherIndex(d, square + c, down), d, out + c * out_stride);
}

template <class T>
void transpose(const T* in, std::int64_t in_stride, std::int64_t rows, std::int64_t columns,
               float* out, std::int64_t out_stride) {
  constexpr std::int64_t kLanes = hn::MaxLanes(FloatTag());
  const OneFloatTag one;
  const std::int64_t whole_rows = rows / kLanes * kLanes;
  const std::int64_t whole_columns = columns / kLanes * kLanes;
  for (std::int64_t r = 0; r < rows; ++r) {
    // Row by row what the squares leave over: the last columns, or all columns of the last rows.
    const bool in_squares = r < whole_rows;
    if (in_squares && r % kLanes == 0)
      for (std::int64_t c = 0; c < whole_columns; c += kLanes)
        transpose_square(in + r * in_stride + c, in_stride, out + c * out_stride + r, out_stride);
    for (std::int64_t c = in_squares ? whole_columns : 0; c < columns; ++c)
      hn::StoreU(load_as_float(one, in + r * in_stride + c), one, out + c * out_stride + r);
  }
}

void transpose_rows(const Rows& from, float* out, std::int64_t out_stride) {
  with_element(from.dtype, [&](auto element) {
    transpose(static_cast<const decltype(element)*>(from.data), from.stride, from.rows,
              from.columns, out, out_stride);
  });
}

}  // namespace isthmus::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace isthmus::kernels {

HWY_EXPORT(transpose_rows);

void transpose_to_float(const Rows& from, float* out, std::int64_t out_stride) {
  HWY_DYNAMIC_DISPATCH(transpose_rows)(from, out, out_stride);
}

}  // namespace isthmus::kernels
#endif
