// RankPulse: whether a site's ranks are there and compute, by the notes that they send of
// themselves. Ranks that hang still hold their connection: after a silence far longer than their
// notes were apart so far, they are no progress any more.
#pragma once

#include <optional>
#include <utility>

#include "base/clock.h"
#include "inter/learnt.h"

namespace isthmus::inter {

class RankPulse {
 public:
  // In a run that has begun they wait for a state. Else they owe their first parameters.
  void attached(Nanoseconds now, bool has_begun) {
    here_ = true;
    waiting_ = has_begun;
    noted_ = in_a_row_ = false;
    last_ = now;
    computing_since_.reset();
  }
  // Those: now they wait until the run begins, however long that takes.
  void offered() { waiting_ = here_; }
  void detached() {
    here_ = noted_ = waiting_ = false;
    computing_since_.reset();
  }
  // A sign of life.
  void note(Nanoseconds now) {
    if (in_a_row_) intervals_.add(now - last_);
    noted_ = in_a_row_ = true;
    last_ = now;
  }
  // They have made their contribution, taken or not, and wait for a state. So long they computed
  // for it since they were told the last one; nothing where they went on without a new one.
  std::optional<Nanoseconds> handed_over(Nanoseconds now) {
    note(now);
    waiting_ = true;
    const auto began = std::exchange(computing_since_, std::nullopt);
    return began ? std::optional(now - *began) : std::nullopt;
  }
  // A state.
  void told(Nanoseconds now) {
    const bool first = !noted_ && !computing_since_;
    if (here_ && (waiting_ || !noted_)) computing_since_ = now;
    if (!waiting_ && !first) return;
    waiting_ = in_a_row_ = false;
    last_ = now;
  }

  bool here() const { return here_; }
  Nanoseconds last() const { return last_; }
  bool live(Nanoseconds now) const { return here_ && (waiting_ || now - last_ < patience()); }
  // How long nothing was heard of ranks that are there and owe a note; 0 where they owe none. From
  // patience() on they hang.
  Nanoseconds silence(Nanoseconds now) const { return here_ && !waiting_ ? now - last_ : 0; }
  bool hang(Nanoseconds now) const { return here_ && !live(now); }
  // How long they may be silent; ten minutes while it is not known how often they are heard.
  Nanoseconds patience() const {
    return intervals_.samples() < kSamples ? kUnknown : kLeast + 4 * intervals_.spread();
  }
  // And not only there: they have computed since they attached.
  bool compute(Nanoseconds now) const { return noted_ && live(now); }

 private:
  static constexpr std::uint32_t kSamples = 5;
  static constexpr Nanoseconds kUnknown = 600 * kSecond;  // a first step may load and compile
  static constexpr Nanoseconds kLeast = 30 * kSecond;     // a checkpoint in between

  Learnt intervals_;  // between notes of one stretch of work
  bool here_ = false, noted_ = false, in_a_row_ = false, waiting_ = false;
  Nanoseconds last_ = 0;
  std::optional<Nanoseconds> computing_since_;
};

}  // namespace isthmus::inter
