// CanonicalTensor: a parameter as files and other sites see it, and its place in the flat buffers
// of this process (parameters, gradients, moments, bf16 copies), which all have one layout:
//
//   │ matrices, in the order of the program │ norm weights │      each parameter begins at a
//   multiple 0                         matrix_elements       elements      of 16 elements; gaps
//   stay zero
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
  bool decays = false;    // whether weight decay applies
  Initial initial = Initial::normal;

  std::size_t elements() const { return static_cast<std::size_t>(shape.elements()); }
};

struct ParameterLayout {
  std::vector<std::size_t> first;  // element, per parameter of the program
  std::size_t matrix_elements = 0;
  std::size_t elements = 0;
  // In ascending byte order of their names: the order of files, of the federation and of
  // fingerprints. A tied head has no tensor of its own.
  std::vector<CanonicalTensor> tensors;
};

ParameterLayout lay_out_parameters(const Program& program);

}  // namespace isthmus::runtime
