// TrainedParameters: what trains of a model as sites exchange it: tensor after tensor in the order
// of their names, without the gaps of the flat buffers (runtime/canonical_tensor.h).
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "runtime/model.h"

namespace isthmus::runtime {

class TrainedParameters {
 public:
  explicit TrainedParameters(Model& model);  // outlives it

  std::span<const CanonicalTensor> tensors() const { return tensors_; }
  std::size_t elements() const { return elements_; }

  std::vector<float> values() const;
  void set(std::span<const float> values);
  // x ← to + (x − from); where x is `from` this is `to` without rounding.
  void replace(std::span<const float> from, std::span<const float> to);

 private:
  Model& model_;
  std::vector<CanonicalTensor> tensors_;
  std::size_t elements_ = 0;
};

}  // namespace isthmus::runtime
