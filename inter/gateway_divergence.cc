// When sites hold different states of one step, which only a bug or broken memory can cause: who is
// wrong finds out, computes the step again from its other slot, or fetches the state of the others
// (PROTOCOL.md, "Divergence").
#include <fmt/format.h>

#include <algorithm>

#include "inter/gateway.h"

namespace isthmus::inter {
namespace {

// Sites that disagree without a majority: for the other one to find its fault.
constexpr Nanoseconds kDisputePatience = 60 * kSecond;
// A voter that is here: to save the step too, and to say what it has.
constexpr Nanoseconds kWordPatience = 10 * kSecond;

}  // namespace

// What others say the root of our step is: once they have saved it, or in what they contribute
// next.
std::map<SiteId, security::Digest> Gateway::roots_elsewhere() const {
  auto roots = exchange_->claimed_roots(working_step());
  for (const auto& [site, known] : saved_.all())
    if (site != self_ && known.saved.id.step == state_->step) roots[site] = known.saved.state_root;
  return roots;
}

// The root that is right: a decided record begins from it, or a strict majority of the voters has
// it, of which this site, with `mine`, may be one.
std::optional<security::Digest> Gateway::right_root(const security::Digest& mine) const {
  if (chain_.size() > state_->step) return chain_[state_->step].record.parent_root;
  const auto majority = current_view().majority();
  for (const auto& [root, count] : voters_roots(mine).count)
    if (count >= majority) return root;
  return std::nullopt;
}

Gateway::VotersRoots Gateway::voters_roots(const security::Digest& mine) const {
  VotersRoots roots;
  const auto elsewhere = roots_elsewhere();
  for (const auto voter : current_view().voters) {
    if (voter == self_) {
      ++roots.count[mine];
    } else if (const auto said = elsewhere.find(voter); said != elsewhere.end()) {
      ++roots.count[said->second];
    } else {
      ++roots.silent;
      roots.silent_here += peers_.reachable(voter) ? 1 : 0;
    }
  }
  return roots;
}

// One voter's word alone, which may be a lie, makes nobody compute a step again, while a majority
// is about to say that this site is right.
bool Gateway::disputed() const {
  if (!state_ || !exchange_) return false;
  if (const auto right = right_root(state_root_)) return *right != state_root_;
  if (rechecked_root_ == state_root_ || !differs_elsewhere()) return false;
  auto roots = voters_roots(state_root_);
  return differs_long() || roots.count[state_root_] + roots.silent_here < current_view().majority();
}

bool Gateway::differs_unresolved() const {
  return state_ && exchange_ && !right_root(state_root_) && differs_elsewhere();
}

bool Gateway::differs_long() const {
  return differs_since_ && world_.loop.now() - *differs_since_ > kWordPatience;
}

// Sites differ, nobody knows what is right, and this site's state is right as far as it can tell:
// the other one has to find its fault. False once that has taken too long.
bool Gateway::bears_difference() {
  if (differs_unresolved()) return !disputed_too_long();
  disputed_since_.reset();
  return true;
}

// Only voters count: who has no vote cannot make one doubt its state.
bool Gateway::differs_elsewhere() const {
  const auto view = current_view();
  const auto elsewhere = roots_elsewhere();
  return std::any_of(elsewhere.begin(), elsewhere.end(), [&](const auto& other) {
    return view.is_voter(other.first) && other.second != state_root_;
  });
}

// While voters have not said what they have that could still make a majority, nothing is without an
// end. And who does not see us cannot find a fault of its own.
bool Gateway::disputed_too_long() {
  const auto view = current_view();
  const auto roots = voters_roots(state_root_);
  const bool may_agree = std::ranges::any_of(
      roots.count, [&](const auto& root) { return root.second + roots.silent >= view.majority(); });
  const auto elsewhere = roots_elsewhere();
  const bool unseen = std::ranges::any_of(elsewhere, [&](const auto& other) {
    return view.is_voter(other.first) && other.second != state_root_ && !peers_.sees(other.first);
  });
  if (may_agree || unseen) {
    disputed_since_.reset();
    return false;
  }
  const auto now = world_.loop.now();
  if (!disputed_since_) disputed_since_ = now;
  return now - *disputed_since_ > kDisputePatience;
}

Task<Result<void>> Gateway::settle_dispute() {
  if (disputed_too_long()) co_return dispute_without_end();
  const auto k = state_->step;
  if (std::exchange(disputed_root_, state_root_) != state_root_) {
    ++counters_.divergences;
    world_.log.alarm("state_disputed", {.outer_step = static_cast<std::int64_t>(k)},
                     {{"ours", state_root_.hex()}});
  }
  co_return co_await check_state();
}

// Goes on from the right state, if this site's is found wrong. Until it is, the ranks and the step
// go on as if it were right: another site's word alone, which may be a lie, holds nothing up.
Task<Result<void>> Gateway::check_state() {
  const auto k = state_->step;
  checking_ = true;
  auto found = co_await find_right_state();
  checking_ = false;
  if (failure_ || stopping_) co_return Result<void>();
  if (!found) {
    if (rechecked_root_ != state_root_)
      co_await changed_.wait_until(world_.loop.now() + kSecond);  // then once more
    co_return Result<void>();
  }
  applying_ = true;  // nothing is contributed meanwhile, nor voted
  while ((saving_ || has_contribution_to_make() ||
          (agreement_ && agreement_->vote_version() > persisted_version_)) &&
         !failure_ && !stopping_)
    co_await changed_.wait_until(world_.loop.now() + 100 * kMillisecond);
  if (failure_ || stopping_) co_return Result<void>();
  if (right_root(state_root_) == state_root_) {  // others have said so meanwhile
    applying_ = false;
    publish_if_awaited();
    co_return Result<void>();
  }
  disputed_since_.reset();
  world_.log.alarm("state_replaced", {.outer_step = static_cast<std::int64_t>(k)},
                   {{"by_step", found->step}});
  const bool same_step = found->step == k;
  auto adopted = co_await adopt_state(std::move(*found));
  if (!adopted || !same_step) co_return adopted;
  co_return co_await exchange_->close_again();
}

// The state to go on from instead of ours: computed again, if that gives what is right, or twice
// the same while nobody knows what is right; else that of others. Nothing: ours, or not yet.
Task<std::optional<OuterState>> Gateway::find_right_state() {
  auto again = co_await compute_again();
  if (again && again->second != state_root_) {
    // Ours or this one is a fault of memory: a second time tells.
    auto twice = co_await compute_again();
    if (!twice || twice->second != again->second) again.reset();
  }
  const auto right = right_root(again ? again->second : state_root_);
  if (again && (!right || *right == again->second)) {
    if (again->second != state_root_) co_return std::move(again->first);
    rechecked_root_ = state_root_;
    world_.log.info("state_computed_again", {.outer_step = static_cast<std::int64_t>(state_->step)},
                    {{"root", state_root_.hex()}});
    co_return std::nullopt;
  }
  if (!right || *right == state_root_) co_return std::nullopt;
  const View view = current_view();
  std::function record = [this](std::uint64_t step) { return record_of(step); };
  std::function cancelled = [this] { return stopping_ || failure_.has_value(); };
  co_return co_await state_fetcher_->fetch(state_->step, view, std::move(record),
                                           std::move(cancelled));
}

Error Gateway::dispute_without_end() const {
  std::string roots = fmt::format("{} here", state_root_.hex());
  for (const auto& [site, root] : roots_elsewhere())
    roots += fmt::format(", {} at {}", root.hex(), name_of(site));
  return Error{ErrorCode::corrupt,
               fmt::format("the sites hold different states of step {}, and no majority agrees on "
                           "one: {}. Check the memory of these machines; move {} away at the site "
                           "that is wrong, and start again",
                           state_->step, roots, options_.folder)};
}

// What the ranks were told of this step, if that turned out wrong before a restart.
Task<std::optional<LargeVector<float>>> Gateway::recall_misled_base(std::uint64_t step) {
  std::optional<LargeVector<float>> told;
  auto read = [this, &told, step] { told = store_.read_diverged(*layout_, step); };
  co_await run_on(world_.workers, world_.loop, std::move(read), 4 * layout_->elements());
  co_return told;
}

// State k from the slot before it and the bytes that record k names; nothing when they are not
// here.
Task<std::optional<std::pair<OuterState, security::Digest>>> Gateway::compute_again() {
  const auto k = state_->step;
  if (k == 0 || chain_.size() < k) co_return std::nullopt;
  const Record record = chain_[k - 1].record;
  Named parts;
  for (const auto& part : record.parts) {
    auto contribution = co_await exchange_->recall(k, part.site);
    if (!contribution || !*contribution || (*contribution)->part() != part) co_return std::nullopt;
    parts.push_back(std::move(*contribution));
  }
  std::shared_ptr<const OuterState> base;
  auto read = [this, &base, &record] {
    auto state = store_.read_state(*layout_, record.step - 1);
    if (state && inter::state_root(*layout_, *state) == record.parent_root)
      base = std::make_shared<OuterState>(std::move(*state));
  };
  co_await run_on(world_.workers, world_.loop, std::move(read), 8 * layout_->elements());
  if (!base) co_return std::nullopt;
  auto stepped = co_await take_step(std::move(base), record, std::move(parts), nullptr);
  if (!stepped) co_return std::nullopt;
  co_return std::pair(std::move(stepped->state), stepped->root);
}

}  // namespace isthmus::inter
