#include "kernels/panels.h"

#include "base/assert.h"
#include "kernels/elements.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/panels.cc"
#include <hwy/foreach_target.h>  // compiles this file once per target

#include "kernels/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace isthmus::kernels::HWY_NAMESPACE {

// Sums of a tile: 24 vectors of 32 registers, or 12 of 16.
constexpr int kVectors = 2;
#if HWY_TARGET == HWY_AVX3_DL
constexpr int kRowsAtOnce = 12;
#else
constexpr int kRowsAtOnce = 6;
#endif

// What is loaded now is used after so many steps along k, later than memory answers.
constexpr std::int64_t kStepsAhead = 16;
constexpr std::int64_t kLinesAhead = 12;  // the same of lines that lie along k
// Steps that are laid out in one panel before the next one's turn: so few, and whole lines of the
// cache are written even if those of all panels have one place in it.
constexpr std::int64_t kStepsTogether = 4;

// Columns [column, column + 2 vectors) of a row of sums.
template <class V>
HWY_INLINE void put_row(V left, V right, const TileTarget& to, std::int64_t row,
                        std::int64_t column, std::int64_t columns) {
  const FloatTag d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto at = row * to.stride + column;
  if (column + kVectors * lanes <= columns) {
    if (to.dtype == DType::bf16) {
      auto* c = static_cast<bf16_t*>(to.data) + at;
      store_float(left, d, c);
      store_float(right, d, c + lanes);
      return;
    }
    auto* c = static_cast<float*>(to.data) + at;
    if (to.streams) {
      hn::Stream(left, d, c);
      hn::Stream(right, d, c + lanes);
      return;
    }
    if (to.adds) {
      left = hn::Add(hn::LoadU(d, c), left);
      right = hn::Add(hn::LoadU(d, c + lanes), right);
    }
    hn::StoreU(left, d, c);
    hn::StoreU(right, d, c + lanes);
    return;
  }
  HWY_ALIGN float sums[kVectors * hn::MaxLanes(FloatTag())];
  hn::Store(left, d, sums);
  hn::Store(right, d, sums + lanes);
  const OneFloatTag one;
  for (std::int64_t j = 0; column + j < columns; ++j) {
    if (to.dtype == DType::bf16) {
      store_float(hn::Set(one, sums[j]), one, static_cast<bf16_t*>(to.data) + at + j);
    } else {
      auto* c = static_cast<float*>(to.data) + at + j;
      *c = to.adds ? *c + sums[j] : sums[j];
    }
  }
}

// Rows [first_row, first_row + kRows) of a tile.
template <int kRows>
HWY_NOINLINE void multiply_rows(std::int64_t k, const float* a, std::int64_t rows, const float* b,
                                std::int64_t columns, const TileTarget& to,
                                std::int64_t first_row) {
  const FloatTag d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  for (std::int64_t column = 0; column < columns; column += kVectors * lanes) {
    hn::Vec<FloatTag> sums[kRows][kVectors];
    ISTHMUS_UNROLL
    for (int i = 0; i < kRows; ++i) {
      sums[i][0] = hn::Zero(d);
      sums[i][1] = hn::Zero(d);
    }
    const float* left = a + first_row;
    const float* right = b + column;
    for (std::int64_t l = 0, row = 0; l < k; ++l) {
      if (l % kStepsAhead == 0 && row < kRows && !to.streams) {
        const char* c = static_cast<const char*>(to.at(first_row + row++, column).data);
        __builtin_prefetch(c, 1);
        __builtin_prefetch(c + 64, 1);
      }
      hwy::Prefetch(left + kStepsAhead * rows);
      hwy::Prefetch(right + kStepsAhead * kPanelColumns);
      hwy::Prefetch(right + kStepsAhead * kPanelColumns + 16);
      const auto right0 = hn::LoadU(d, right);
      const auto right1 = hn::LoadU(d, right + lanes);
      ISTHMUS_UNROLL
      for (int i = 0; i < kRows; ++i) {
        const auto factor = hn::Set(d, left[i]);
        sums[i][0] = hn::MulAdd(factor, right0, sums[i][0]);
        sums[i][1] = hn::MulAdd(factor, right1, sums[i][1]);
      }
      left += rows;
      right += kPanelColumns;
    }
    ISTHMUS_UNROLL
    for (int i = 0; i < kRows; ++i)
      put_row(sums[i][0], sums[i][1], to, first_row + i, column, columns);
  }
}

// As many rows as are left, at most kRows.
template <int kRows>
void multiply_left(std::int64_t k, const float* a, std::int64_t rows, const float* b,
                   std::int64_t columns, const TileTarget& to, std::int64_t first_row) {
  if (rows - first_row >= kRows) return multiply_rows<kRows>(k, a, rows, b, columns, to, first_row);
  if constexpr (kRows > 1) multiply_left<kRows - 1>(k, a, rows, b, columns, to, first_row);
}

void multiply_floats(std::int64_t k, const float* a, std::int64_t rows, const float* b,
                     std::int64_t columns, const TileTarget& to) {
  for (std::int64_t row = 0; row < rows; row += kRowsAtOnce)
    multiply_left<kRowsAtOnce>(k, a, rows, b, columns, to, row);
}

#if HWY_TARGET != HWY_SCALAR
// Four lines that lie along k, four steps of k: turned.
template <class T>
HWY_INLINE void pack_four_by_four(const T* in, std::int64_t line_stride, float* out,
                                  std::int64_t width) {
  const FourFloatTag d;
  const hn::Repartition<double, FourFloatTag> pairs;
  const auto line0 = load_as_float(d, in);
  const auto line1 = load_as_float(d, in + line_stride);
  const auto line2 = load_as_float(d, in + 2 * line_stride);
  const auto line3 = load_as_float(d, in + 3 * line_stride);
  const auto low01 = hn::BitCast(pairs, hn::InterleaveLower(d, line0, line1));
  const auto low23 = hn::BitCast(pairs, hn::InterleaveLower(d, line2, line3));
  const auto high01 = hn::BitCast(pairs, hn::InterleaveUpper(d, line0, line1));
  const auto high23 = hn::BitCast(pairs, hn::InterleaveUpper(d, line2, line3));
  hn::StoreU(hn::BitCast(d, hn::InterleaveLower(pairs, low01, low23)), d, out);
  hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(pairs, low01, low23)), d, out + width);
  hn::StoreU(hn::BitCast(d, hn::InterleaveLower(pairs, high01, high23)), d, out + 2 * width);
  hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(pairs, high01, high23)), d, out + 3 * width);
}
#endif

// Of one panel, steps [first, end) of k, of lines that lie along k.
template <class T>
void pack_turned(const T* in, std::int64_t line_stride, std::int64_t lines, std::int64_t first,
                 std::int64_t end, std::int64_t width, float* out) {
#if HWY_TARGET != HWY_SCALAR
  if (lines >= 4) {
    const std::int64_t whole = first + (end - first) / 4 * 4;
    for (std::int64_t line = 0; line < lines; line += 4) {
      const std::int64_t from = line + 4 <= lines ? line : lines - 4;  // the last four, again
      const T* ahead = in + (from + kLinesAhead) * line_stride;        // of this panel or another
      for (std::int64_t l = first; l < whole; l += 4) {
        if (l % 16 == 0)
          for (std::int64_t i = 0; i < 4; ++i) prefetch_to_l2(ahead + i * line_stride + l);
        pack_four_by_four(in + from * line_stride + l, line_stride, out + l * width + from, width);
      }
    }
    first = whole;
  }
#endif
  const OneFloatTag one;
  for (std::int64_t l = first; l < end; ++l)
    for (std::int64_t line = 0; line < lines; ++line)
      hn::StoreU(load_as_float(one, in + line * line_stride + l), one, out + l * width + line);
}

// So many steps of a whole panel, of lines that lie side by side.
template <int kWidth, class T>
HWY_INLINE void pack_whole_panel(const T* in, std::int64_t step_stride, std::int64_t steps,
                                 float* out) {
  using Tag = hn::CappedTag<float, kWidth % 16 == 0 ? 16 : 4>;
  const Tag d;
  constexpr auto kLanes = static_cast<int>(hn::MaxLanes(Tag()));
  for (std::int64_t l = 0; l < steps; ++l, in += step_stride, out += kWidth) {
    ISTHMUS_UNROLL
    for (int i = 0; i < kWidth; i += kLanes) hn::StoreU(load_as_float(d, in + i), d, out + i);
  }
}

// Steps [first, end) of k, of lines that lie side by side.
template <class T>
void pack_straight(const T* in, std::int64_t step_stride, const PanelLayout& layout,
                   std::int64_t first, std::int64_t end, float* out) {
  const auto panels = layout.panels();
  for (std::int64_t begin = first; begin < end; begin += kStepsTogether) {
    const auto steps = end - begin < kStepsTogether ? end - begin : kStepsTogether;
    for (std::int64_t l = begin + kStepsAhead; l < begin + kStepsAhead + steps; ++l)
      for (std::int64_t line = 0; line < layout.lines; line += 64 / sizeof(T))
        prefetch_to_l2(in + l * step_stride + line);
    for (std::int64_t panel = 0; panel < panels; ++panel) {
      const auto lines = layout.lines_of(panel), width = layout.width_of(panel);
      const T* from = in + begin * step_stride + panel * layout.width;
      float* to = out + panel * layout.width * layout.units + begin * width;
      const bool whole = lines == layout.width;
      if (whole && lines == kPanelColumns) {
        pack_whole_panel<kPanelColumns>(from, step_stride, steps, to);
      } else if (whole && lines == kPanelRows) {
        pack_whole_panel<kPanelRows>(from, step_stride, steps, to);
      } else {
        for (std::int64_t l = 0; l < steps; ++l)
          for_lanes(static_cast<std::size_t>(lines), [=](auto tag, std::size_t i) {
            hn::StoreU(load_as_float(tag, from + l * step_stride + i), tag, to + l * width + i);
          });
      }
    }
  }
}

template <class T>
void pack_lines(const T* in, const Factor& factor, const PanelLayout& layout, float* out) {
  constexpr std::int64_t kAtOnce = 128;  // of k, where lines lie along it
  const auto first = layout.first_step, end = layout.end_step;
  const auto width = layout.width, panels = layout.panels(), whole = layout.lines / width;
  const auto panel_floats = width * layout.units;
  if (factor.lies_along_inner()) {
    for (std::int64_t l = first; l < end; l += kAtOnce)
      for (std::int64_t panel = 0; panel < panels; ++panel)
        pack_turned(in + panel * width * factor.line_stride, factor.line_stride,
                    layout.lines_of(panel), l, l + kAtOnce < end ? l + kAtOnce : end,
                    layout.width_of(panel), out + panel * panel_floats);
  } else {
    pack_straight(in, factor.inner_stride, layout, first, end, out);
  }
  if (whole == panels || !layout.fills) return;
  for (std::int64_t l = first; l < end; ++l)
    for (std::int64_t line = layout.lines_of(whole); line < width; ++line)
      out[whole * panel_floats + l * width + line] = 0.0F;
}

void pack_floats(const Factor& factor, const PanelLayout& layout, float* panels) {
  with_element(factor.dtype, [&](auto element) {
    pack_lines(static_cast<const decltype(element)*>(factor.data), factor, layout, panels);
  });
}

}  // namespace isthmus::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace isthmus::kernels {

HWY_EXPORT(pack_floats);
HWY_EXPORT(multiply_floats);

const PanelKernels& float_panels() {
  static constexpr PanelKernels kKernels{
      1,
      [](const Factor& factor, const PanelLayout& layout, void* panels) {
        HWY_DYNAMIC_DISPATCH(pack_floats)(factor, layout, static_cast<float*>(panels));
      },
      [](std::int64_t units, const void* a, std::int64_t rows, const void* b, std::int64_t columns,
         const TileTarget& to) {
        HWY_DYNAMIC_DISPATCH(multiply_floats)
        (units, static_cast<const float*>(a), rows, static_cast<const float*>(b), columns, to);
      }};
  return kKernels;
}

}  // namespace isthmus::kernels
#endif
