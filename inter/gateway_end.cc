// How a run ends: the last step is served until all who can be reached have it, and what was said
// last arrives.
#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "base/listed.h"
#include "inter/gateway.h"

namespace isthmus::inter {
namespace {

constexpr int kChecksAlone =
    3;  // of the last state: each gives no verdict where two results differ
constexpr Nanoseconds kFarewell = 500 * kMillisecond;  // for what was said last
// For who is here, and comes no nearer to the last step: a state is read and hashed before it is
// sent.
constexpr Nanoseconds kComesNearerMin = 120 * kSecond;
constexpr int kComesForPatiences = 60;  // two hours at least: it may say, and fetch, for ever

// Which sites come nearer to the last step: by the steps that they work on, or while chunks come to
// them; and not for ever, since both are what a site says.
class ComingNearer {
 public:
  ComingNearer(std::uint64_t last, Nanoseconds patience, Nanoseconds began)
      : last_(last), patience_(patience), began_(began) {}

  bool comes(const PeerSite& peer, Nanoseconds now) {
    auto& site =
        sites_.try_emplace(peer.site, Site{.step = 0, .since = began_, .came = now}).first->second;
    const auto step = peer.status ? std::min(peer.status->step, last_ + 1) : 0;
    if (step > site.step) {
      site.step = step;
      site.since = now;
    }
    return now - std::max(site.since, peer.link->last_arrival()) < patience_ &&
           now - site.came < kComesForPatiences * patience_;
  }

 private:
  struct Site {
    std::uint64_t step = 0;  // that it works on, and since when
    Nanoseconds since = 0;
    Nanoseconds came = 0;  // for the last step
  };
  const std::uint64_t last_;
  const Nanoseconds patience_, began_;
  std::map<SiteId, Site> sites_;
};

}  // namespace

bool Gateway::has_the_end(SiteId site) const {
  const auto* known = saved_.of(site);
  return known != nullptr && known->saved.id.step >= state_->step &&
         known->saved.state_root == state_root_;
}

// The last step: told to the ranks when a majority has it too, or, computed once more, when nobody
// else is there; served until every site that can be reached has it, or comes no nearer to it, and
// for a while for members that cannot, for who was here a moment ago (one that is started again
// loses its session before it has the next), and for all when this gateway was just started itself.
// Who has it was said to those that were there: one that comes later, or had no part in the last
// step, knows only of who comes to it, and names no others where it ends. That is but a word to
// people: whom a gateway waits for goes by what each one says that is here.
Task<Result<void>> Gateway::serve_the_end() {
  world_.log.info("run_finished", {.outer_step = static_cast<std::int64_t>(state_->step)},
                  {{"root", state_root_.hex()}});
  const auto last = state_->step;
  const auto began = world_.loop.now();
  auto alone_since = began;
  auto told = began;
  std::set<SiteId> came_for_it;
  ComingNearer nearer(last, std::max(straggler_wait_.most(), kComesNearerMin), began);
  int checked_alone = 0;
  while (!stopping_ && !failure_) {
    const auto now = world_.loop.now();
    if (disputed()) {
      auto settled = co_await settle_dispute();
      if (!settled) co_return settled;
      continue;
    }
    if (!bears_difference()) co_return dispute_without_end();
    bool waiting = saving_;
    bool reachable = false;
    for (const auto& [site, peer] : peers_.all()) {
      // Who has another one may be about to find its fault, and to need this one.
      const bool has = has_the_end(site);
      const bool up = peer.link->up();
      // Whoever has saved the last step may end before it acknowledges what we say last.
      const bool farewell = up && !peer.link->drained() && now - began < kSecond;
      const bool comes = up && !has && nearer.comes(peer, now);
      if (comes || farewell) waiting = reachable = true;
      if (up && !has && !(peer.status && peer.status->leaving))
        came_for_it.insert(site);
      else if (up)
        came_for_it.erase(site);
      if (!up && !has &&
          (came_for_it.contains(site) || chain_[last - 1].record.view.is_member(site) ||
           now - started_ < options_.linger))
        waiting = true;
    }
    if (reachable || saving_) alone_since = now;
    const bool alone = !reachable && !saving_ && now - alone_since > options_.linger;
    const bool known_right = right_root(state_root_).has_value();
    const bool unchecked = !known_right && rechecked_root_ != state_root_;
    if (alone && unchecked && !end_told_ && checked_alone++ < kChecksAlone) {
      auto checked = co_await check_state();
      if (!checked) co_return checked;
      continue;
    }
    if (!end_told_ && (known_right || !waiting || alone)) {
      end_told_ = true;
      told = now;
      publish();
    }
    if ((alone || !waiting) && ranks_have_the_end(told)) {
      std::vector<SiteId> without_end;
      for (const auto& [site, peer] : peers_.all())
        if (!has_the_end(site) && (took_part_ || came_for_it.contains(site)))
          without_end.push_back(site);
      if (!without_end.empty())
        world_.log.warning("end_not_everywhere", {.outer_step = static_cast<std::int64_t>(last)},
                           {{"sites", listed(names_of(without_end))}});
      break;
    }
    co_await changed_.wait_until(now + 100 * kMillisecond);
  }
  co_return failure_ ? Result<void>(*failure_) : Result<void>();
}

// What was said last should arrive, that this site leaves above all.
Task<void> Gateway::say_farewell() {
  const auto until = world_.loop.now() + kFarewell;
  while (world_.loop.now() < until &&
         !std::all_of(peers_.all().begin(), peers_.all().end(), [](const auto& p) {
           return !p.second.link->up() || p.second.link->drained();
         }))
    co_await world_.loop.sleep(20 * kMillisecond);
}

}  // namespace isthmus::inter
