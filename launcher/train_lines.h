// TrainLines: what `train` prints of its steps: a line for people now and then, or, for programs,
// all of them as events in JSON.
//
//   alpha step 120/240  loss 2.813  12.3 k tokens/s  61 % of peak  rate 0.0019  gradient 0.83  12.0
//   s left
#pragma once

#include <cstdio>
#include <string>

#include "base/clock.h"
#include "runtime/train_observer.h"

namespace isthmus::launcher {

enum class LogFormat { human, json };

class TrainLines final : public runtime::TrainObserver {
 public:
  struct Options {
    std::string site;
    LogFormat format = LogFormat::human;
    double peak = 0;              // FLOP/s that the threads of this rank can do; 0: not known
    Nanoseconds pause = kSecond;  // between two lines for people
  };
  // `out` and `clock` outlive it.
  TrainLines(std::FILE* out, const Clock& clock, Options options);

  void inner_step(const runtime::StepReport& step) override;
  // An event of the log already.
  void held_out(const runtime::HeldOutResult&) override {}

 private:
  std::FILE* out_;
  const Clock& clock_;
  const Options options_;
  Nanoseconds next_ = 0;  // when there may be another line
  double seconds_ = 0;    // of the last steps, on average
};

}  // namespace isthmus::launcher
