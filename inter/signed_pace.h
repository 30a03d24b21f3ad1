// SignedPace: how many signed messages of one peer are looked at, of each kind by itself. Each
// costs a signature's check, and more where it is news; that it is well signed is no reason to look
// at a thousand of them. Every step of this gateway gives a budget anew, so that short steps, which
// none but a majority can make, need no faster pace; beside it time gives a little.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "inter/burst_pace.h"
#include "inter/messages.h"

namespace isthmus::inter {

class SignedPace {
 public:
  // Of a site's own words in a step: an announcement and a close again for each session and each
  // who asks; a promise again for each contribution that it comes to hold. Of what it passes on:
  // that of all sites.
  struct Budget {
    std::size_t at_once, each_second;
    static constexpr Budget own(std::size_t sites) { return {64 + 2 * sites, 8}; }
    static constexpr Budget passed_on(std::size_t sites) { return {64 + 8 * sites, 8 + 2 * sites}; }
  };

  bool take(MessageType kind, const Budget& budget, std::uint64_t step, Nanoseconds now) {
    auto& of_kind = kinds_[static_cast<std::size_t>(kind)];
    if (!of_kind.begun || of_kind.step != step)
      of_kind = {true, step,
                 BurstPace(static_cast<int>(budget.at_once),
                           kSecond / static_cast<Nanoseconds>(budget.each_second))};
    return of_kind.pace.take(now);
  }

 private:
  struct Kind {
    bool begun = false;
    std::uint64_t step = 0;
    BurstPace pace{1, kSecond};
  };
  std::array<Kind, static_cast<std::size_t>(MessageType::saved) + 1> kinds_;
};

}  // namespace isthmus::inter
