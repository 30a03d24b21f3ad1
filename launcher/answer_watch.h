// AnswerWatch: a gateway that has answered and does so no more, while its process is there: stopped
// by a signal, stuck, or on a machine that has no time for it. One that has ended is the
// supervisor's, which starts it again. One per site; no clocks in it.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "base/clock.h"

namespace isthmus::launcher {

class AnswerWatch {
 public:
  // Longer than any machine makes a gateway wait for its turn.
  static constexpr Nanoseconds kPatience = 30 * kSecond;

  explicit AnswerWatch(std::string site) : site_(std::move(site)) {}

  // What it was asked it answered, or not in time: a sentence, where that is news.
  std::optional<std::string> answered(Nanoseconds now);
  std::optional<std::string> silent(Nanoseconds now);
  // Nothing is there that could answer: it has ended, or has only just begun.
  void absent();

 private:
  std::string site_;
  std::optional<Nanoseconds> answered_;
  bool said_ = false;
};

}  // namespace isthmus::launcher
