#include "inter/saved_states.h"

#include <algorithm>

namespace isthmus::inter {
namespace {

constexpr Nanoseconds kApart = kSecond / 2;  // what one site says anew of one step, passed on

bool differ_in_spots(const Saved& a, const Saved& b) {
  return a.id.step == b.id.step && a.state_root == b.state_root && a.spot_root && b.spot_root &&
         *a.spot_root != *b.spot_root;
}

}  // namespace

const SavedStates::Known* SavedStates::of(SiteId site) const {
  const auto found = known_.find(site);
  return found == known_.end() ? nullptr : &found->second;
}

std::uint32_t SavedStates::next_revision(std::uint64_t step) const {
  const auto* before = mine();
  return before != nullptr && before->saved.id.step == step ? before->saved.revision + 1 : 0;
}

bool SavedStates::note(const Signed& message, const Saved& saved, bool from_signer) {
  if (const auto* known = of(message.signer)) {
    if (saved.id.step < known->saved.id.step || known->message.digest() == message.digest())
      return false;
    if (saved.id.step == known->saved.id.step && !from_signer &&
        saved.revision <= known->saved.revision)
      return false;
  }
  known_[message.signer] = {saved, message};
  return true;
}

std::vector<SiteId> SavedStates::differing_spots(SiteId site) const {
  std::vector<SiteId> differing;
  const auto* ours = mine();
  if (ours == nullptr) return differing;
  for (const auto& [other, theirs] : known_)
    if ((other == site || site == self_) && differ_in_spots(theirs.saved, ours->saved))
      differing.push_back(other);
  return differing;
}

std::uint64_t SavedStates::saved_by_majority(const View& view) const {
  std::vector<std::uint64_t> steps;
  for (const auto voter : view.voters) {
    const auto* known = of(voter);
    steps.push_back(known == nullptr ? 0 : known->saved.id.step);
  }
  std::ranges::sort(steps, std::ranges::greater());
  return steps[view.majority() - 1];
}

std::size_t SavedStates::vouching(const View& view, std::uint64_t step,
                                  const security::Digest& root) const {
  return static_cast<std::size_t>(std::ranges::count_if(known_, [&](const auto& entry) {
    const auto& [site, known] = entry;
    return site != self_ && view.is_voter(site) && known.saved.id.step == step &&
           known.saved.state_root == root;
  }));
}

bool SavedStates::passes_on(SiteId signer, std::uint64_t step, std::uint64_t step_end,
                            Nanoseconds now) {
  auto& passed_on = passed_on_[signer];
  const bool newer = step > passed_on.step && step < step_end;
  passed_on.step = std::max(passed_on.step, step);
  passed_on.due = !newer && now - passed_on.when < kApart;
  if (!passed_on.due) passed_on.when = now;
  return !passed_on.due;
}

std::vector<const Signed*> SavedStates::due(Nanoseconds now) {
  std::vector<const Signed*> messages;
  for (auto& [signer, passed_on] : passed_on_) {
    if (!passed_on.due || now - passed_on.when < kApart) continue;
    passed_on.due = false;
    passed_on.when = now;
    if (const auto* known = of(signer)) messages.push_back(&known->message);
  }
  return messages;
}

}  // namespace isthmus::inter
