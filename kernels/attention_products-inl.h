// The products of attention: c = or += a · b, of f32, in tiles that stay in registers. Compiled
// once for each instruction set; private to attention.cc, whose loops are unrolled (-O3).
#if defined(ISTHMUS_KERNELS_ATTENTION_PRODUCTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ISTHMUS_KERNELS_ATTENTION_PRODUCTS_INL_H_
#undef ISTHMUS_KERNELS_ATTENTION_PRODUCTS_INL_H_
#else
#define ISTHMUS_KERNELS_ATTENTION_PRODUCTS_INL_H_
#endif

#include <cstdint>

#include "kernels/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace isthmus::kernels::HWY_NAMESPACE {

constexpr int kTileRows = 4;
#if HWY_TARGET == HWY_AVX3_DL
constexpr int kTileVectors = 4;  // 16 sums, 4 vectors of b and one of a: of 32 registers
#else
constexpr int kTileVectors = 2;  // 8 sums, of 16 registers
#endif

// A factor of a product: element (row, column) is at data[row * row_stride + column *
// column_stride], so that a transposed one is the same kernel.
struct FloatFactor {
  const float* data;
  std::int64_t row_stride;
  std::int64_t column_stride;
};

enum class Sum { set, add };

// c [4, kVectors vectors] = or += a [4, k] · b [k, kVectors vectors]
template <Sum kSum, int kVectors>
HWY_INLINE void multiply_tile(std::int64_t k, const FloatFactor& a, const float* b,
                              std::int64_t b_stride, float* c, std::int64_t c_stride) {
  const FloatTag d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  hn::Vec<FloatTag> sums[kTileRows][kVectors];
  for (int i = 0; i < kTileRows; ++i)
    for (int j = 0; j < kVectors; ++j)
      sums[i][j] = kSum == Sum::add ? hn::LoadU(d, c + i * c_stride + j * lanes) : hn::Zero(d);
  const float* a0 = a.data;
  const float* a1 = a0 + a.row_stride;
  const float* a2 = a1 + a.row_stride;
  const float* a3 = a2 + a.row_stride;
  for (std::int64_t l = 0; l < k; ++l) {
    hn::Vec<FloatTag> right[kVectors];
    for (int j = 0; j < kVectors; ++j) right[j] = hn::LoadU(d, b + l * b_stride + j * lanes);
    const std::int64_t at = l * a.column_stride;
    const auto left0 = hn::Set(d, a0[at]);
    for (int j = 0; j < kVectors; ++j) sums[0][j] = hn::MulAdd(left0, right[j], sums[0][j]);
    const auto left1 = hn::Set(d, a1[at]);
    for (int j = 0; j < kVectors; ++j) sums[1][j] = hn::MulAdd(left1, right[j], sums[1][j]);
    const auto left2 = hn::Set(d, a2[at]);
    for (int j = 0; j < kVectors; ++j) sums[2][j] = hn::MulAdd(left2, right[j], sums[2][j]);
    const auto left3 = hn::Set(d, a3[at]);
    for (int j = 0; j < kVectors; ++j) sums[3][j] = hn::MulAdd(left3, right[j], sums[3][j]);
  }
  for (int i = 0; i < kTileRows; ++i)
    for (int j = 0; j < kVectors; ++j) hn::StoreU(sums[i][j], d, c + i * c_stride + j * lanes);
}

// c [m, n] = or += a [m, k] · b [k, n]; m a multiple of 4, n of 16.
template <Sum kSum>
void multiply(std::int64_t m, std::int64_t n, std::int64_t k, const FloatFactor& a, const float* b,
              std::int64_t b_stride, float* c, std::int64_t c_stride) {
  const FloatTag d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t column = 0;
  for (; column + kTileVectors * lanes <= n; column += kTileVectors * lanes)
    for (std::int64_t row = 0; row < m; row += kTileRows)
      multiply_tile<kSum, kTileVectors>(
          k, {a.data + row * a.row_stride, a.row_stride, a.column_stride}, b + column, b_stride,
          c + row * c_stride + column, c_stride);
  for (; column < n; column += lanes)
    for (std::int64_t row = 0; row < m; row += kTileRows)
      multiply_tile<kSum, 1>(k, {a.data + row * a.row_stride, a.row_stride, a.column_stride},
                             b + column, b_stride, c + row * c_stride + column, c_stride);
}

}  // namespace isthmus::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
