// How CPU ops look at their places. Private to the CPU column of the op table.
#pragma once

#include <span>

#include "base/tensor_view.h"
#include "kernels/rows.h"

namespace isthmus::runtime::cpu {

// All elements; of what is not there none.
template <class T = float>
std::span<T> flat(const TensorView& view) {
  if (view.data == nullptr) return {};
  return {static_cast<T*>(view.data), static_cast<std::size_t>(view.elements())};
}

// Gate and up side by side.
struct Halves {
  explicit Halves(const kernels::Rows& gate_up)
      : gate(gate_up.column_range(0, gate_up.columns / 2)),
        up(gate_up.column_range(gate_up.columns / 2, gate_up.columns / 2)) {}
  kernels::Rows gate, up;
};

}  // namespace isthmus::runtime::cpu
