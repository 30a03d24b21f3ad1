// How CPU ops look at their places. Private to the CPU column of the op table.
#pragma once

#include <optional>
#include <span>

#include "base/tensor_view.h"
#include "kernels/dropout.h"
#include "kernels/rows.h"
#include "runtime/program.h"

namespace isthmus::runtime::cpu {

// All elements; of what is not there none.
template <class T = float>
std::span<T> flat(const TensorView& view) {
  if (view.data == nullptr) return {};
  return {static_cast<T*>(view.data), static_cast<std::size_t>(view.elements())};
}

// What forward made, where backward makes it again.
inline std::optional<kernels::Rows> again(const TensorView& view) {
  return view.data == nullptr ? std::nullopt : std::optional(kernels::Rows(view));
}

inline kernels::DropoutMask dropout_mask(const Attributes& attributes, const TensorView& keys) {
  return {.rate = static_cast<float>(attributes.dropout),
          .stream = attributes.stream,
          .keys = flat<const std::int32_t>(keys)};
}

// Gate and up side by side.
struct Halves {
  explicit Halves(const kernels::Rows& gate_up)
      : gate(gate_up.column_range(0, gate_up.columns / 2)),
        up(gate_up.column_range(gate_up.columns / 2, gate_up.columns / 2)) {}
  kernels::Rows gate, up;
};

}  // namespace isthmus::runtime::cpu
