// Panels: the factors of a matrix product as the registers want them, and the product of two of
// them. Private to kernels/: gemm.cc and grouped_gemm.cc cut products into panels; attention lays
// keys and values out with them.
//
//      c [m, n]  =  a [m, k] · b [k, n]
//
//                       b, a panel:   ┌ 32 columns ┐
//                                     │            │ k units
//      a, a panel:                    └────────────┘
//      ┌ k units ┐                    ┌────────────┐
//      └─────────┘ 12 rows at most    └────────────┘  a tile of c: its sums stay in registers
//
// A panel lies [k][12] or [k][32] (attention's, [k][64], are multiplied by itself), so that what is
// multiplied together lies together. The last
// panel of a is as narrow as the rows it has, that of b has zeros beyond its columns. A unit is
// four bytes: one f32, or two bf16 that are neighbours along k, the first one lower, and a zero
// beyond an odd k.
//
// A sum is made in the order of k, wherever the tiles begin; so a row of a result does not depend
// on how many others there are.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace isthmus::kernels {

inline constexpr std::int64_t kPanelRows = 12;
inline constexpr std::int64_t kPanelColumns = 32;

// Lines of b with those that fill its last panel.
inline std::int64_t filled(std::int64_t lines) {
  return (lines + kPanelColumns - 1) / kPanelColumns * kPanelColumns;
}

inline const void* advance(const void* p, std::int64_t elements, DType dtype) {
  return static_cast<const char*>(p) + elements * static_cast<std::int64_t>(size_of(dtype));
}

// A factor in memory: `lines` are rows of a, or columns of b. One of the strides is 1.
struct Factor {
  const void* data = nullptr;
  DType dtype = DType::f32;
  std::int64_t line_stride = 1;   // elements from one line to the next
  std::int64_t inner_stride = 1;  // elements from one step along k to the next

  // Lines are the rows, or the columns, of a matrix whose rows are `stride` elements apart.
  static Factor rows(const void* data, DType dtype, std::int64_t stride) {
    return {data, dtype, stride, 1};
  }
  static Factor columns(const void* data, DType dtype, std::int64_t stride) {
    return {data, dtype, 1, stride};
  }
  Factor from_line(std::int64_t line) const {
    return {advance(data, line * line_stride, dtype), dtype, line_stride, inner_stride};
  }
  Factor from_inner(std::int64_t step) const {
    return {advance(data, step * inner_stride, dtype), dtype, line_stride, inner_stride};
  }
  bool lies_along_inner() const { return inner_stride == 1; }
};

// Where a tile of sums goes, f32 or rounded to bf16.
struct TileTarget {
  void* data = nullptr;
  DType dtype = DType::f32;
  std::int64_t stride = 0;  // elements from one row to the next
  bool adds = false;        // to what is there; f32 only
  // Past the caches, as nobody reads it soon: f32 alone, whose rows begin where cache lines do. For
  // other threads it is there after a hwy::FlushStream().
  bool streams = false;

  TileTarget at(std::int64_t row, std::int64_t column) const {
    auto tile = *this;
    tile.data = const_cast<void*>(advance(data, row * stride + column, dtype));
    return tile;
  }
};

// How lines are cut into panels, all of them or a range of their steps along k.
struct PanelLayout {
  std::int64_t lines = 0;
  std::int64_t width = 0;                     // of a panel
  bool fills = false;                         // the last one with zeros
  std::int64_t units = 0;                     // of a panel
  std::int64_t first_step = 0, end_step = 0;  // of k; the first one begins a unit

  std::int64_t panels() const { return (lines + width - 1) / width; }
  std::int64_t lines_of(std::int64_t panel) const {
    return lines - panel * width < width ? lines - panel * width : width;
  }
  std::int64_t width_of(std::int64_t panel) const { return fills ? width : lines_of(panel); }
};

struct PanelKernels {
  std::int64_t unit_elements;

  std::int64_t units(std::int64_t k) const { return (k + unit_elements - 1) / unit_elements; }

  // Lines of a factor, in panels one after another.
  void (*pack)(const Factor& factor, const PanelLayout& layout, void* panels);
  // A tile [rows, columns], at most [12, 32], from units of a panel of a that has as many rows, and
  // of one of b.
  void (*multiply)(std::int64_t units, const void* a, std::int64_t rows, const void* b,
                   std::int64_t columns, const TileTarget& to);
};

// Of f32; what is bf16 in memory becomes f32 in its panel.
const PanelKernels& float_panels();
// Of pairs of bf16, multiplied as such; for a CPU that has AVX512_BF16.
const PanelKernels& bf16_panels();

inline const PanelKernels& panels_of(DType input, bool native_bf16) {
  return input == DType::bf16 && native_bf16 ? bf16_panels() : float_panels();
}

}  // namespace isthmus::kernels
