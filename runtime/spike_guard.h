// SpikeGuard: recognises steps that would do harm: with gradients many times as long as those of
// the steps before.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "runtime/model.h"

namespace isthmus::runtime {

class SpikeGuard {
 public:
  static constexpr std::size_t kNorms = 64;     // of the last steps, whose median is what is usual
  static constexpr std::size_t kNormsMin = 16;  // before that nothing is

  // A spike is above `multiple` of the median; 0: nothing is one. `norms`: of another guard, where
  // it ended.
  explicit SpikeGuard(double multiple, std::vector<double> norms = {});

  // The longest gradient that is none (AdamWOptions::gradient_norm_skip); 0: no limit yet.
  double limit() const;
  // Of each step with targets, taken or not: what stays long becomes usual. Says why it was not
  // taken; "": it was.
  std::string note(const UpdateReport& update);

  const std::vector<double>& norms() const { return norms_; }  // the oldest first

 private:
  double multiple_;
  std::vector<double> norms_;
};

}  // namespace isthmus::runtime
