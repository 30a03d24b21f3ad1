#include "runtime/canonical_tensor.h"

#include <algorithm>

#include "runtime/family.h"

namespace isthmus::runtime {
namespace {

constexpr std::size_t kParameterAlignment = 16;  // elements: 64 bytes of f32

Shape shape_of_rows(const Shape& whole, std::int64_t rows) {
  return whole.rank() == 1 ? Shape{rows} : Shape{rows, whole[1]};
}

}  // namespace

ParameterLayout lay_out_parameters(const Program& program) {
  ParameterLayout layout;
  layout.first.resize(program.parameters.size());
  layout.copy_first.resize(program.parameters.size(), ParameterLayout::kNoCopy);
  // Those of one kind, one after the other.
  const auto add = [&](bool train, bool matrices) {
    for (std::size_t i = 0; i < program.parameters.size(); ++i) {
      const auto& parameter = program.parameters[i];
      const auto& shape = program.value(parameter.master).shape;
      if (parameter.trains != train || (shape.rank() > 1) != matrices) continue;
      layout.first[i] = layout.elements;
      const auto columns = shape.rank() == 1 ? 1 : shape[1];
      for (const auto& part : parameter.canonical) {
        CanonicalTensor tensor;
        tensor.name = part.name;
        tensor.shape = shape_of_rows(shape, part.rows);
        tensor.first = layout.elements + static_cast<std::size_t>(part.first_row * columns);
        tensor.trains = parameter.trains;
        tensor.decays = parameter.decays;
        tensor.initial = parameter.initial;
        layout.tensors.push_back(std::move(tensor));
      }
      const auto end = layout.elements + static_cast<std::size_t>(shape.elements());
      layout.elements = (end + kParameterAlignment - 1) / kParameterAlignment * kParameterAlignment;
    }
  };
  add(true, true);
  layout.matrix_elements = layout.elements;
  add(true, false);
  layout.trained_elements = layout.elements;
  add(false, true);
  layout.frozen_matrix_elements = layout.elements - layout.trained_elements;
  add(false, false);
  for (std::size_t i = 0; i < program.parameters.size(); ++i) {
    const auto& parameter = program.parameters[i];
    if (program.value(parameter.master).shape.rank() < 2) continue;
    const auto frozen_from = parameter.trains ? 0 : layout.trained_elements;
    layout.copy_first[i] =
        layout.first[i] - frozen_from + (parameter.trains ? 0 : layout.matrix_elements);
  }
  std::sort(layout.tensors.begin(), layout.tensors.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  return layout;
}

}  // namespace isthmus::runtime
