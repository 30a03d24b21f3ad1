// CanonicalTensor: a parameter as files and other sites see it, and its place in the flat buffers
// of this process. Each parameter begins at a multiple of 16 elements; gaps stay zero.
//
//                │ matrices │ norm weights │ frozen matrices │ frozen norm weights │
//   parameters   0       matrix_elements   trained_elements                      elements
//   gradients, moments ─────────────────── trained_elements
//   bf16 copies  │ matrices │ frozen matrices │ copy_elements
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "base/tensor_view.h"
#include "runtime/program.h"

namespace isthmus::runtime {

struct CanonicalTensor {
  std::string name;       // "model.layers.0.self_attn.q_proj.weight"
  Shape shape;            // as on disk: a linear is {out, in}
  std::size_t first = 0;  // of its elements in the flat buffers
  bool trains = true;     // else it has neither gradient nor moments
  bool decays = false;    // whether weight decay applies
  Initial initial = Initial::normal;

  std::size_t elements() const { return static_cast<std::size_t>(shape.elements()); }
};

struct ParameterLayout {
  std::vector<std::size_t> first;       // element, per parameter of the program
  std::vector<std::size_t> copy_first;  // of the bf16 copy; of a norm weight: none (kNoCopy)
  std::size_t matrix_elements = 0;      // of those that train
  std::size_t trained_elements = 0;
  std::size_t frozen_matrix_elements = 0;
  std::size_t elements = 0;
  // In ascending byte order of their names: the order of files, of the federation and of
  // fingerprints. A tied head has no tensor of its own.
  std::vector<CanonicalTensor> tensors;

  static constexpr std::size_t kNoCopy = static_cast<std::size_t>(-1);
  std::size_t copy_elements() const { return matrix_elements + frozen_matrix_elements; }
};

ParameterLayout lay_out_parameters(const Program& program);

}  // namespace isthmus::runtime
