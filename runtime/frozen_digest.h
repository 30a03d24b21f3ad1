// What tells one frozen part of a model from another: the base that adapters were trained on, the
// same at all sites of a federation, and when a run goes on.
#pragma once

#include <string>

#include "runtime/model.h"

namespace isthmus::runtime {

// BLAKE2b of the names, shapes and values of all tensors that do not train, hex; "": all do. Reads
// each of them once.
std::string frozen_digest(Model& model);

}  // namespace isthmus::runtime
