// Rows: a matrix of f32 or bf16 whose rows may lie apart, so that a column range of a wider matrix
// (q within qkv, gate within gate_up) is one too. Somebody else owns the memory.
#pragma once

#include <cstdint>

#include "base/assert.h"
#include "base/dtype.h"
#include "base/tensor_view.h"

namespace isthmus::kernels {

struct Rows {
  Rows() = default;
  Rows(void* first, DType element, std::int64_t row_count, std::int64_t column_count,
       std::int64_t row_stride)
      : data(first), dtype(element), rows(row_count), columns(column_count), stride(row_stride) {}
  // A dense tensor: its last dimension is the columns, all others are rows.
  Rows(const TensorView& view) : data(view.data), dtype(view.dtype) {  // NOLINT: by intent
    ISTHMUS_ASSERT(view.dtype != DType::i32 && view.shape.rank() > 0);
    columns = stride = view.shape[view.shape.rank() - 1];
    rows = columns == 0 ? 0 : view.elements() / columns;
  }

  // `count` columns from `first` on; the same memory.
  Rows column_range(std::int64_t first, std::int64_t count) const {
    ISTHMUS_ASSERT(first >= 0 && count >= 0 && first + count <= columns);
    return {at(0, first), dtype, rows, count, stride};
  }
  Rows row_range(std::int64_t first, std::int64_t count) const {
    ISTHMUS_ASSERT(first >= 0 && count >= 0 && first + count <= rows);
    return {at(first, 0), dtype, count, columns, stride};
  }
  void* at(std::int64_t row, std::int64_t column) const {
    return static_cast<char*>(data) +
           (row * stride + column) * static_cast<std::int64_t>(size_of(dtype));
  }
  bool same_shape(const Rows& other) const {
    return rows == other.rows && columns == other.columns;
  }

  void* data = nullptr;
  DType dtype = DType::f32;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t stride = 0;  // elements from one row to the next
};

}  // namespace isthmus::kernels
