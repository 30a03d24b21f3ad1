// Blocks of attention: 64 rows of a head, copied to f32 as AttentionLayout says, and back. Compiled
// once for each instruction set; private to attention.cc.
#if defined(ISTHMUS_KERNELS_ATTENTION_BLOCKS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ISTHMUS_KERNELS_ATTENTION_BLOCKS_INL_H_
#undef ISTHMUS_KERNELS_ATTENTION_BLOCKS_INL_H_
#else
#define ISTHMUS_KERNELS_ATTENTION_BLOCKS_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "kernels/attention_layout.h"
#include "kernels/elements.h"
#include "kernels/panels.h"
#include "kernels/rows.h"
#include "kernels/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace isthmus::kernels::HWY_NAMESPACE {

constexpr std::int64_t kBlock = AttentionLayout::kBlock;

// Of the block of rows that begins at `first`.
HWY_INLINE std::int64_t rows_from(std::int64_t first, std::int64_t length) {
  return length - first < kBlock ? length - first : kBlock;
}

// `rows` rows of a head, times `scale`, to f32 [64][width]; what is beyond them becomes zero.
void copy_block(const Rows& from, std::int64_t first_row, std::int64_t column, std::int64_t rows,
                const AttentionLayout& layout, float scale, float* to) {
  with_element(from.dtype, [&](auto element) {
    for (std::int64_t r = 0; r < kBlock; ++r) {
      float* out = to + r * layout.width;
      std::int64_t filled = 0;
      if (r < rows) {
        const auto* in = static_cast<const decltype(element)*>(from.at(first_row + r, column));
        for_lanes(static_cast<std::size_t>(layout.head_dim), [=](auto tag, std::size_t i) {
          hn::StoreU(hn::Mul(load_as_float(tag, in + i), hn::Set(tag, scale)), tag, out + i);
        });
        filled = layout.head_dim;
      }
      for (; filled < layout.width; ++filled) out[filled] = 0.0F;
    }
  });
}

// Rows of a head to f32 [head_dim][64]; those beyond `rows` are zeros.
void transpose_block(const Rows& from, std::int64_t first_row, std::int64_t column,
                     std::int64_t rows, const AttentionLayout& layout, float* to) {
  const auto d = layout.head_dim;
  float_panels().pack(Factor::rows(from.at(first_row, column), from.dtype, from.stride),
                      {rows, kBlock, true, d, 0, d}, to);
}

// `rows` rows of [64][width], times a factor, to rows of a head.
void store_block(const float* from, std::int64_t rows, float factor, const AttentionLayout& layout,
                 const Rows& to, std::int64_t first_row, std::int64_t column) {
  with_element(to.dtype, [&](auto element) {
    for (std::int64_t r = 0; r < rows; ++r) {
      const float* in = from + r * layout.width;
      auto* out = static_cast<decltype(element)*>(to.at(first_row + r, column));
      for_lanes(static_cast<std::size_t>(layout.head_dim), [=](auto tag, std::size_t i) {
        store_float(hn::Mul(hn::LoadU(tag, in + i), hn::Set(tag, factor)), tag, out + i);
      });
    }
  });
}

}  // namespace isthmus::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
