// BoxRuns: a box of a canonical tensor as runs of consecutive elements, to copy between the dense
// memory of a rank and the canonical vector of the gateway. A row-parallel slice
//
//        canonical, shape {3, 6}              box first {0, 2}, count {3, 2}, dense
//        . . a b . .
//        . . c d . .              ⇄           a b c d e f
//        . . e f . .
//
// is three runs of two; a column-parallel one (whole rows) is a single run.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/result.h"
#include "inter/model_layout.h"

namespace isthmus::inter {

// How many elements the box has. Errors: invalid_argument, when it does not lie in its tensor or is
// empty.
Result<std::uint64_t> check_box(const std::vector<TensorInfo>& tensors, const Box& box);

struct BoxRun {
  std::uint64_t canonical = 0;  // first element in the vector of the whole model
  std::uint64_t dense = 0;      // first element in the box
  std::uint64_t count = 0;
};

class BoxRuns {
 public:
  // A box that check_box() has passed.
  BoxRuns(const ModelLayout& layout, const Box& box);
  // In ascending order, each at most `count_max` elements.
  std::optional<BoxRun> next(std::uint64_t count_max);

 private:
  std::size_t outer_ = 0;  // dimensions outside of a run
  std::array<std::uint64_t, Shape::kRankMax> count_{};
  std::array<std::uint64_t, Shape::kRankMax> stride_{};
  std::array<std::uint64_t, Shape::kRankMax> index_{};
  std::uint64_t run_ = 1;        // elements of one run
  std::uint64_t in_run_ = 0;     // of them already given
  std::uint64_t canonical_ = 0;  // where the current run starts
  std::uint64_t dense_ = 0;
  std::uint64_t left_ = 0;
};

}  // namespace isthmus::inter
