#include "runtime/trained_parameters.h"

#include <algorithm>

#include "base/assert.h"

namespace isthmus::runtime {

TrainedParameters::TrainedParameters(Model& model) : model_(model) {
  for (const auto& tensor : model.tensors()) {
    if (!tensor.trains) continue;
    tensors_.push_back(tensor);
    elements_ += tensor.elements();
  }
}

std::vector<float> TrainedParameters::values() const {
  std::vector<float> values;
  values.reserve(elements_);
  for (const auto& tensor : tensors_) {
    const auto slice = model_.parameters().subspan(tensor.first, tensor.elements());
    values.insert(values.end(), slice.begin(), slice.end());
  }
  return values;
}

void TrainedParameters::set(std::span<const float> values) {
  ISTHMUS_ASSERT(values.size() == elements_);
  for (const auto& tensor : tensors_) {
    const auto slice = model_.parameters().subspan(tensor.first, tensor.elements());
    std::copy_n(values.begin(), slice.size(), slice.begin());
    values = values.subspan(slice.size());
  }
  model_.parameters_changed();
}

void TrainedParameters::replace(std::span<const float> from, std::span<const float> to) {
  ISTHMUS_ASSERT(from.size() == elements_ && to.size() == elements_);
  for (const auto& tensor : tensors_) {
    const auto slice = model_.parameters().subspan(tensor.first, tensor.elements());
    for (std::size_t j = 0; j < slice.size(); ++j)
      slice[j] = slice[j] == from[j] ? to[j] : to[j] + (slice[j] - from[j]);
    from = from.subspan(slice.size());
    to = to.subspan(slice.size());
  }
  model_.parameters_changed();
}

}  // namespace isthmus::runtime
