// A feedback as a gateway writes it, slab by slab.
#pragma once

#include "inter/outer_store.h"

namespace isthmus::inter {

inline Result<void> write_feedback(OuterStore& store, const Feedback& feedback) {
  ISTHMUS_TRY(const auto file, store.begin_feedback(feedback.residual.size()));
  for (std::uint32_t slab = 0; slab < file->slabs(); ++slab)
    ISTHMUS_CHECK(file->write_slab(slab, feedback.residual));
  return file->finish(feedback.step, feedback.root, feedback.tokens);
}

}  // namespace isthmus::inter
