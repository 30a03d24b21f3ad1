#include "launcher/answer_watch.h"

#include <fmt/format.h>

namespace isthmus::launcher {

std::optional<std::string> AnswerWatch::answered(Nanoseconds now) {
  const auto silence = now - std::exchange(answered_, now).value_or(now);
  if (!std::exchange(said_, false)) return std::nullopt;
  return fmt::format("{} gateway answers again, after {:.0f} s", site_, seconds_of(silence));
}

std::optional<std::string> AnswerWatch::silent(Nanoseconds now) {
  if (!answered_ || now - *answered_ < kPatience || said_) return std::nullopt;
  said_ = true;
  return fmt::format(
      "{} gateway hangs: its process is there, and has not answered for {:.0f} s. See what it "
      "waits "
      "for, or end it: then it is started again",
      site_, seconds_of(now - *answered_));
}

void AnswerWatch::absent() {
  answered_.reset();
  said_ = false;
}

}  // namespace isthmus::launcher
