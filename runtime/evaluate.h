// Held-out loss: how well a model predicts text it was not trained on, in bits per byte. The first
// sequences of the text, one after the other without overlap, each from its own beginning, without
// a begin token.
#pragma once

#include <cstdint>
#include <string>

#include "base/disk.h"
#include "base/result.h"
#include "runtime/model.h"

namespace isthmus::runtime {

struct HeldOutLoss {
  double bits_per_byte = 0;
  std::int64_t sequences = 0;  // how many there were, at most as many as asked for
};

// Sequences have the length of the model's shape. Errors: not_found, io; invalid_argument (the text
// is shorter than one sequence and a byte, the model's vocabulary is not of bytes).
Result<HeldOutLoss> held_out_loss(Model& model, Disk& disk, const std::string& path,
                                  std::int64_t sequences_max = 24);

}  // namespace isthmus::runtime
