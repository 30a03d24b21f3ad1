// Learnt: a running mean and deviation of times, as TCP keeps them for its round trip (RFC 6298).
#pragma once

#include <cstdint>
#include <cstdlib>

#include "base/clock.h"

namespace isthmus::inter {

class Learnt {
 public:
  void add(Nanoseconds sample) {
    if (samples_ == 0) {
      mean_ = sample;
      deviation_ = sample / 2;
    } else {
      deviation_ += (std::abs(sample - mean_) - deviation_) / 4;
      mean_ += (sample - mean_) / 8;
    }
    ++samples_;
  }
  std::uint32_t samples() const { return samples_; }
  Nanoseconds mean() const { return mean_; }
  Nanoseconds deviation() const { return deviation_; }
  Nanoseconds spread() const { return mean_ + 4 * deviation_; }

 private:
  Nanoseconds mean_ = 0, deviation_ = 0;
  std::uint32_t samples_ = 0;
};

}  // namespace isthmus::inter
