// The values of the ranks as one model: states told to them, contributions found in their memory.
#include <algorithm>

#include "base/assert.h"
#include "base/copy_to.h"
#include "inter/attached_ranks.h"
#include "kernels/stream_copy.h"

namespace isthmus::inter {
namespace {

constexpr std::uint64_t kSliceElements = 4 << 20;  // copied before others have a turn

}  // namespace

void AttachServer::Server::publish(const Published& state) {
  ++publication_;
  if (!complete_) return;
  ISTHMUS_ASSERT(state.parameters.size() == layout_.elements());
  published_ = true;
  latest_.publication = publication_;
  latest_.step = state.step;
  latest_.record = state.record;
  latest_.run = state.run;
  latest_.merge = state.merge;
  latest_.final_step = state.final_step;
  latest_.contribution_open = state.contribution_open;
  latest_.contributed = state.contributed;
  for (auto& [number, rank] : ranks_) {
    rank.contribution.reset();
    if (rank.initial == AttachedRank::InitialState::offered)
      rank.initial = AttachedRank::InitialState::none;
    rank.state_waits = true;
  }
  telling_ = false;
  waiting_values_ = {};
  published_values_ = state.parameters;
  const bool drafted = draft_ && state.draft == draft_;
  for (auto& [number, rank] : ranks_) rank.state_is_there = drafted;
  close_draft();
  tell_soon();
}

std::shared_ptr<StateDraft> AttachServer::Server::draft() {
  close_draft();
  if (!complete_ || !state_areas_ || !all_took()) return nullptr;
  draft_ = std::make_shared<RankDraft>(state_areas_);
  return draft_;
}

void AttachServer::Server::close_draft() {
  if (draft_) std::exchange(draft_, nullptr)->close();
}

// What is being told ends unsaid; the ranks hear the next state.
void AttachServer::Server::forget() {
  ++publication_;
  telling_ = false;
  published_values_ = {};
  waiting_values_ = {};
  close_draft();
}

// Not within the call: a state must not overtake the answer to the contribution that it follows
// from.
void AttachServer::Server::tell_soon() {
  if (std::exchange(telling_, true)) return;
  loop_.post(
      [self = shared_from_this(), began = era()] { self->loop_.spawn(tell_all(self, began)); });
}

// Copies the newest state to every rank whose area is free, then what the others will need, so that
// the gateway may go on.
Task<void> AttachServer::Server::tell_all(Self self, Era began) {
  std::uint64_t budget = kSliceElements;
  while (!self->stopped_ && self->era() == began) {
    const auto next = std::ranges::find_if(self->ranks_, [](const auto& entry) {
      return entry.second.state_waits && !entry.second.told;
    });
    if (next != self->ranks_.end()) {
      const auto number = next->first;
      const Copy copy = [&](const BoxRun& run, std::uint64_t place) {
        const AttachedRank& rank = self->ranks_.at(number);
        const auto values = self->reading() ? self->published_values_
                                            : std::span<const float>(self->waiting_values_);
        kernels::stream_copy(
            values.subspan(run.canonical, run.count),
            rank.memory->floats(rank.state_offset, rank.elements).subspan(place, run.count));
      };
      bool there = self->ranks_.at(number).state_is_there;
      if (!there) there = co_await self->each_run(number, began, budget, copy);
      if (!there) co_return;
      AttachedRank& rank = self->ranks_.at(number);
      rank.state_waits = false;
      rank.told = self->latest_.publication;
      rank.connection->send(attach::encode(self->latest_));
      continue;
    }
    const bool waits = std::ranges::any_of(
        self->ranks_, [](const auto& entry) { return entry.second.state_waits; });
    if (!waits) self->waiting_values_ = {};
    if (waits && self->reading()) {
      LargeVector<float> kept;
      kept.reserve(self->published_values_.size());
      while (kept.size() < self->published_values_.size()) {
        const auto rest = self->published_values_.subspan(kept.size());
        const auto slice = rest.first(std::min<std::uint64_t>(rest.size(), kSliceElements));
        kept.insert(kept.end(), slice.begin(), slice.end());
        co_await self->loop_.sleep(0);
        if (self->stopped_ || self->era() != began) co_return;
      }
      self->waiting_values_ = std::move(kept);
      self->published_values_ = {};
      continue;  // some may have taken theirs meanwhile
    }
    self->published_values_ = {};
    self->telling_ = false;
    if (!self->state_areas_) {
      auto areas = co_await self->find_areas(began, true);
      if (areas) self->state_areas_ = std::move(areas);
    }
    co_return;
  }
}

void AttachServer::Server::gather_initial_if_all() {
  using enum AttachedRank::InitialState;
  if (!complete_ || published_ || gathering_) return;
  bool all = true;
  bool any = false;
  for (const auto& [number, rank] : ranks_) {
    if (rank.initial == none) return;
    all &= rank.initial == offered;
    any |= rank.initial == offered;
  }
  if (!any) return;
  if (all) {
    gathering_ = true;
    return loop_.spawn(gather_initial(shared_from_this(), era()));
  }
  // Some ranks came later than those whose parameters the gateway has.
  for (auto& [number, rank] : ranks_) {
    if (rank.initial == offered) rank.connection->send(attach::encode(attach::Taken{0}));
    rank.initial = taken;
  }
}

Task<void> AttachServer::Server::gather_initial(Self self, Era began) {
  auto parameters = co_await self->gather(began);
  if (!parameters) co_return;
  for (auto& [number, rank] : self->ranks_) {
    rank.initial = AttachedRank::InitialState::taken;
    rank.connection->send(attach::encode(attach::Taken{0}));
  }
  self->outer_.offer_initial(std::move(*parameters));
}

void AttachServer::Server::gather_contribution_if_all() {
  if (!complete_ || gathering_) return;
  std::uint64_t tokens = 0;
  const auto& first = ranks_.begin()->second.contribution;
  for (const auto& [number, rank] : ranks_) {
    if (!rank.contribution) return;
    if (rank.contribution->step != first->step)
      return refuse_all({ErrorCode::mismatch, "the ranks contributed to different steps"});
    if (rank.contribution->tokens > ~tokens)
      return refuse_all({ErrorCode::invalid_argument, "too many tokens"});
    tokens += rank.contribution->tokens;
  }
  gathering_ = true;
  loop_.spawn(contribute(shared_from_this(), era(), first->step, tokens));
}

Task<void> AttachServer::Server::contribute(Self self, Era began, std::uint64_t step,
                                            std::uint64_t tokens) {
  auto pieces = self->stopped_ || self->era() != began ? nullptr : self->pieces_;
  if (!pieces) pieces = co_await self->find_areas(began, false);
  self->gathering_ = false;
  if (!pieces) {
    if (!self->stopped_ && self->published_) self->gather_contribution_if_all();
    co_return;
  }
  self->pieces_ = pieces;
  const auto accepted = std::make_shared<bool>(false);  // with the values, which may go any time
  auto values = std::make_shared<const RankValues>(
      std::move(pieces),
      [weak = self->weak_from_this(), &loop = self->loop_, began, step, accepted] {
        loop.post([weak, began, step, accepted] {
          if (const auto server = weak.lock(); server && *accepted)
            server->contribution_read(began, step);
        });
      });
  const std::uint64_t generation = self->generation_;
  const auto taken = self->outer_.contribute(step, std::move(values), tokens);
  *accepted = taken.has_value();
  if (taken || self->stopped_ || self->generation_ != generation) co_return;
  if (taken.error().code != ErrorCode::mismatch) {
    self->refuse_all(taken.error());
    co_return;
  }
  // Late: the state of that step is on its way, and says so by coming without an answer.
  self->log_.info("contribution_not_taken", {{}, static_cast<std::int64_t>(step)},
                  {{"reason", taken.error().text()}});
}

// The areas are the ranks' again. A state that has been told meanwhile has said so.
void AttachServer::Server::contribution_read(Era began, std::uint64_t step) {
  if (stopped_ || era() != began) return;
  for (auto& [number, rank] : ranks_) rank.connection->send(attach::encode(attach::Taken{step}));
}

Task<std::shared_ptr<const RankPieces>> AttachServer::Server::find_areas(Era began,
                                                                         bool of_states) {
  if (stopped_ || era() != began) co_return nullptr;
  auto areas = std::make_shared<RankPieces>();
  std::uint64_t budget = kSliceElements;
  for (std::uint32_t number = 0; number < world_; ++number) {
    if (ranks_.at(number).memory) areas->keep(ranks_.at(number).memory);
    const Copy note = [&](const BoxRun& run, std::uint64_t place) {
      const AttachedRank& rank = ranks_.at(number);
      const auto area = rank.memory->floats(of_states ? rank.state_offset : 0, rank.elements);
      areas->add(run.canonical, area.subspan(place, run.count));
    };
    const bool current = co_await each_run(number, began, budget, note);
    if (!current) co_return nullptr;
  }
  areas->sort();
  co_return areas;
}

Task<bool> AttachServer::Server::each_run(std::uint32_t number, Era began, std::uint64_t& budget,
                                          const Copy& copy) {
  std::uint64_t before = 0;  // elements of the boxes before this one
  // The rank is looked up anew after each turn of others: one that goes ends the era.
  for (std::size_t b = 0; b < ranks_.at(number).boxes.size(); ++b) {
    BoxRuns runs(layout_, ranks_.at(number).boxes[b]);
    std::uint64_t copied = 0;
    for (;;) {
      const auto run = runs.next(budget);
      if (!run) break;
      copy(*run, before + run->dense);
      copied += run->count;
      budget -= run->count;
      if (budget > 0) continue;
      co_await loop_.sleep(0);
      budget = kSliceElements;
      if (stopped_ || era() != began) co_return false;
    }
    before += copied;
  }
  co_return true;
}

Task<std::optional<LargeVector<float>>> AttachServer::Server::gather(Era began) {
  LargeVector<float> whole;
  whole.reserve(layout_.elements());
  std::uint64_t budget = kSliceElements;
  bool current = !stopped_ && era() == began;
  while (current && whole.size() < layout_.elements()) {
    whole.resize(std::min(layout_.elements(), whole.size() + kSliceElements));
    if (whole.size() < layout_.elements()) co_await loop_.sleep(0);
    current = !stopped_ && era() == began;
  }
  for (std::uint32_t number = 0; current && number < world_; ++number) {
    const Copy copy = [&](const BoxRun& run, std::uint64_t place) {
      const AttachedRank& rank = ranks_.at(number);
      copy_to(rank.memory->floats(0, rank.elements).subspan(place, run.count),
              whole.begin() + static_cast<std::ptrdiff_t>(run.canonical));
    };
    current = co_await each_run(number, began, budget, copy);
  }
  gathering_ = false;
  if (current) co_return std::optional(std::move(whole));
  // What came meanwhile has waited for this.
  if (!stopped_ && published_)
    gather_contribution_if_all();
  else if (!stopped_)
    gather_initial_if_all();
  co_return std::nullopt;
}

}  // namespace isthmus::inter
