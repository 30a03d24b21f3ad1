#include "inter/box_runs.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/assert.h"

namespace isthmus::inter {

Result<std::uint64_t> check_box(const std::vector<TensorInfo>& tensors, const Box& box) {
  if (box.tensor >= tensors.size())
    return Error{ErrorCode::invalid_argument,
                 fmt::format("a box of tensor {}, but there are {}", box.tensor, tensors.size())};
  const TensorInfo& tensor = tensors[box.tensor];
  const std::size_t rank = tensor.shape.rank();
  bool fits = box.first.rank() == rank && box.count.rank() == rank;
  std::uint64_t elements = 1;
  for (std::size_t i = 0; fits && i < rank; ++i) {
    fits = box.first[i] >= 0 && box.count[i] > 0 && box.count[i] <= tensor.shape[i] &&
           box.first[i] <= tensor.shape[i] - box.count[i];
    elements *= static_cast<std::uint64_t>(box.count[i]);
  }
  if (!fits)
    return Error{ErrorCode::invalid_argument,
                 fmt::format("a box of {} does not lie in it", tensor.name)};
  return elements;
}

BoxRuns::BoxRuns(const ModelLayout& layout, const Box& box) {
  const Shape& shape = layout.tensors()[box.tensor].shape;
  const std::size_t rank = shape.rank();
  std::uint64_t stride = 1;
  canonical_ = layout.offset(box.tensor);
  left_ = 1;
  for (std::size_t i = rank; i-- > 0;) {
    count_[i] = static_cast<std::uint64_t>(box.count[i]);
    stride_[i] = stride;
    stride *= static_cast<std::uint64_t>(shape[i]);
    canonical_ += static_cast<std::uint64_t>(box.first[i]) * stride_[i];
    left_ *= count_[i];
  }
  // A run spans the innermost dimension, and further ones as long as those inside are whole.
  outer_ = rank;
  while (outer_ > 0) {
    --outer_;
    run_ *= count_[outer_];
    if (box.count[outer_] != shape[outer_]) break;
  }
}

std::optional<BoxRun> BoxRuns::next(std::uint64_t count_max) {
  ISTHMUS_ASSERT(count_max > 0);
  if (left_ == 0) return std::nullopt;
  const BoxRun run{canonical_ + in_run_, dense_, std::min(run_ - in_run_, count_max)};
  left_ -= run.count;
  dense_ += run.count;
  in_run_ += run.count;
  if (in_run_ == run_) {
    in_run_ = 0;
    for (std::size_t i = outer_; i-- > 0;) {
      canonical_ += stride_[i];
      if (++index_[i] < count_[i]) break;
      canonical_ -= count_[i] * stride_[i];
      index_[i] = 0;
    }
  }
  return run;
}

}  // namespace isthmus::inter
