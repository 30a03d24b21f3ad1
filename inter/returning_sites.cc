#include "inter/returning_sites.h"

#include <algorithm>

namespace isthmus::inter {
namespace {

constexpr Nanoseconds kAwayPatience = 60 * kSecond;  // for a session that breaks on the way
constexpr std::uint64_t kStates = 2;
constexpr std::uint64_t kBytesAnyway = 512 << 20;
constexpr std::uint64_t kStepsMax = 256;  // their files are listed at every step
constexpr std::uint32_t kReplayedMeanwhile = 2;
// Whatever it says of itself: in one step, and in all, but for what is forgiven.
constexpr Nanoseconds kStepHeldUpMax = 60 * kSecond;
constexpr Nanoseconds kHeldUpMax = 300 * kSecond;
constexpr Nanoseconds kHeldUpLeast = kSecond / 4;  // until it is looked at again
constexpr Nanoseconds kHeldUpMost = kSecond;       // between two looks, or it was not so
constexpr int kForgiven = 8;                       // one part of so many of the time

}  // namespace

std::uint64_t steps_kept_for_return(std::uint64_t state_bytes, std::uint64_t step_bytes_max) {
  return std::min(kStepsMax, (kStates * state_bytes + kBytesAnyway) /
                                 std::max<std::uint64_t>(1, step_bytes_max));
}

// What was asked for before, and not begun, may still be chosen.
void ReturningSites::asks_for_state(SiteId site, std::uint64_t step, bool begins,
                                    std::uint64_t kept_from) {
  const auto first = step + 1;
  if (first < kept_from) return;  // already gone
  auto& s = sites_[site];
  s.away_since.reset();
  s.needs_from = begins || !s.needs_from ? first : std::min(*s.needs_from, first);
  if (begins) s.needs_after_state = first;
}

void ReturningSites::works_on(SiteId site, std::uint64_t step, std::uint64_t newest,
                              std::uint64_t kept_from, Nanoseconds now) {
  auto& s = sites_[site];
  s.away_since.reset();
  if (step > s.step && s.step > 0 && s.needs_from == s.step) {
    const auto steps = step - s.step;
    s.pace.add((now - s.said_at) / static_cast<Nanoseconds>(steps));
    s.replayed += static_cast<std::uint32_t>(std::min<std::uint64_t>(steps, kReplayedMeanwhile));
  }
  if (step > s.step) s.said_at = now;  // to go back is no progress
  s.step = step;
  if (step >= newest || step >= s.needs_after_state) s.needs_after_state.reset();
  if (step >= newest) {
    s.needs_from.reset();
    s.behind = 0;
  } else if (step >= kept_from) {
    s.needs_from = step;
    s.behind = std::max(s.behind, newest - step);
  }
}

void ReturningSites::went_away(SiteId site, Nanoseconds now) {
  if (const auto found = sites_.find(site); found != sites_.end()) found->second.away_since = now;
}

void ReturningSites::is_member(SiteId site) {
  const auto found = sites_.find(site);
  if (found == sites_.end()) return;
  found->second.behind = 0;
  found->second.pace = {};
}

std::uint64_t ReturningSites::keep_from(std::uint64_t not_needed, Nanoseconds now) {
  std::erase_if(sites_, [now](const auto& entry) {
    const auto& since = entry.second.away_since;
    return since && now - *since > kAwayPatience && entry.second.held_up_as_of(now) == 0;
  });
  auto from = not_needed;
  for (auto& [site, s] : sites_) {
    const auto too_old = [&](const auto& step) {
      return step && *step + steps_kept_max_ < not_needed;
    };
    if (s.away_since && now - *s.away_since > kAwayPatience) {
      s.needs_from.reset();
      s.needs_after_state.reset();
    }
    // Whoever is that late goes on from the state that it fetches, or from another one.
    if (too_old(s.needs_from)) s.needs_from = s.needs_after_state;
    if (too_old(s.needs_from)) s.needs_from.reset();
    if (s.needs_from) from = std::min(from, *s.needs_from);
  }
  return from;
}

void ReturningSites::begin_step() {
  for (auto& [site, s] : sites_) {
    s.held_up_now = 0;
    s.last_counted.reset();
    s.replayed = 0;
  }
}

Nanoseconds ReturningSites::Site::held_up_as_of(Nanoseconds now) const {
  return std::max<Nanoseconds>(0, held_up - (now - counted_at) / kForgiven);
}

void ReturningSites::holds_up(SiteId site, Nanoseconds now) {
  auto& s = sites_[site];
  const auto longer = s.last_counted ? std::min(now - *s.last_counted, kHeldUpMost) : kHeldUpLeast;
  s.held_up = s.held_up_as_of(now) + longer;
  s.held_up_now += longer;
  s.counted_at = s.last_counted.emplace(now);
}

bool ReturningSites::may_hold_up(SiteId site, Nanoseconds most, Nanoseconds now) const {
  const auto found = sites_.find(site);
  return found == sites_.end() || found->second.held_up_as_of(now) < most;
}

bool ReturningSites::awaited(SiteId site, std::uint64_t newest, std::uint64_t kept_from,
                             Nanoseconds now, Nanoseconds patience) const {
  const auto found = sites_.find(site);
  if (found == sites_.end()) return false;
  const auto& s = found->second;
  const bool replays = !s.away_since && s.step > 0 && s.step >= kept_from && s.step < newest;
  if (!replays) return false;
  const auto behind = static_cast<Nanoseconds>(std::max(s.behind, newest - s.step));
  return s.replayed < kReplayedMeanwhile && s.held_up_now < kStepHeldUpMax &&
         now - s.said_at < std::min(kStepHeldUpMax, std::max(patience, 2 * s.pace.spread())) &&
         may_hold_up(site, std::min(kHeldUpMax, 2 * behind * patience), now);
}

}  // namespace isthmus::inter
