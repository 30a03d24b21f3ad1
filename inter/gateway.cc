#include "inter/gateway.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/assert.h"

namespace isthmus::inter {
namespace {

constexpr Nanoseconds kTick = 250 * kMillisecond;
constexpr Nanoseconds kRetryDisk = 5 * kSecond;
constexpr Nanoseconds kBytesPatience =
    3 * kSecond;  // nobody has the bytes of a decided record: then the state is fetched
constexpr Nanoseconds kGrace = 500 * kMillisecond;  // for a member that is not waited for

}  // namespace

Gateway::Gateway(World world, security::Roster roster, SiteId self, GatewayOptions options)
    : world_(world),
      roster_(std::move(roster)),
      self_(self),
      options_(std::move(options)),
      limit_(options_.rate_limit_bytes_per_second),
      store_(world_.disk, options_.folder),
      changed_(world_.loop),
      votes_(world_.loop) {
  ISTHMUS_ASSERT(roster_.find(self_) != nullptr);
  started_ = world_.loop.now();
  for (const auto& site : roster_.sites) {
    if (site.id == self_ || site.gateways.empty()) continue;
    auto& peer = peers_.all()[site.id];
    peer.site = site.id;
    peer.name = site.name;
    // One gateway a site yet; the roster's list has room for more.
    peer.link = std::make_unique<Link>(world_.loop, world_.wire, limit_, world_.log,
                                       world_.random.split(site.id), *this, GatewayId{self_, 0},
                                       GatewayId{site.id, 0}, site.name, site.gateways[0].address,
                                       options_.link);
  }
  world_.wire.receive_with(*this);
}

Gateway::~Gateway() {
  if (tick_timer_) world_.loop.cancel(*tick_timer_);
}

void Gateway::serve(Ranks& ranks) { ranks_ = &ranks; }

void Gateway::stop() {
  stopping_ = true;
  send_status();
  changed_.notify();
}

void Gateway::fail(const Error& error) {
  if (!failure_) world_.log.alarm("gateway_failed", {}, {{"why", error.text()}});
  failure_ = error;
  changed_.notify();
}

Task<Result<void>> Gateway::run() {
  auto loaded = co_await load();
  if (!loaded) co_return loaded;
  while (!layout_ && !stopping_) co_await changed_.wait();
  if (stopping_) co_return Result<void>();
  start_links();
  world_.loop.spawn(vote_writer());
  tick();
  auto began = co_await begin_or_join_run();
  if (!began || stopping_ || failure_) co_return failure_ ? Result<void>(*failure_) : began;
  auto stepped = co_await steps();
  if (!stepped || failure_) {
    if (ranks_) ranks_->refuse(failure_ ? *failure_ : stepped.error());
    co_return failure_ ? Result<void>(*failure_) : stepped;
  }
  if (finished_) co_return co_await serve_the_end();
  // Stopped by the user: what was said last should arrive.
  const auto until = world_.loop.now() + kGrace;
  while (world_.loop.now() < until &&
         !std::all_of(peers_.all().begin(), peers_.all().end(), [](const auto& p) {
           return !p.second.link->up() || p.second.link->drained();
         }))
    co_await world_.loop.sleep(20 * kMillisecond);
  co_return Result<void>();
}

// --- The ranks' side
// -------------------------------------------------------------------------------------------------------------

Result<void> Gateway::attached(const ModelLayout& layout, std::string_view) {
  if (layout_ && layout_->digest() != layout.digest())
    return Error{ErrorCode::mismatch,
                 fmt::format("the ranks' model differs from the run's: {}",
                             Fingerprint::of(*layout_, options_.sync)
                                 .difference(Fingerprint::of(layout, options_.sync)))};
  if (!layout_) {
    layout_ = layout;
    fingerprint_ = Fingerprint::of(layout, options_.sync);
  }
  ranks_here_ = true;
  ranks_leaving_ = false;
  last_rank_progress_ = world_.loop.now();
  // After the caller is done with its own bookkeeping.
  world_.loop.call_after(0, [this] {
    if (state_ && !applying_) publish();
    changed_.notify();
  });
  return {};
}

void Gateway::offer_initial(std::vector<float> parameters) {
  if (!layout_ || parameters.size() != layout_->elements() || state_) return;
  initial_ = std::move(parameters);
  changed_.notify();
}

Result<void> Gateway::contribute(std::uint64_t step, std::vector<float> parameters,
                                 std::uint64_t tokens) {
  if (!state_ || !exchange_ || finished_)
    return Error{ErrorCode::unavailable, "there is no state to contribute to"};
  if (step != working_step() || chain_.size() >= step)
    return Error{ErrorCode::mismatch, fmt::format("step {} is decided: a new state comes", step)};
  if (taking_contribution_ || exchange_->contributed() || applying_ ||
      (pending_ && pending_->step == step))
    return Error{ErrorCode::mismatch, fmt::format("step {} has this site's contribution", step)};
  if (!current_view().is_member(self_))
    return Error{ErrorCode::mismatch,
                 "this site is not a member yet: its work goes on from the next state"};
  if (parameters.size() != layout_->elements())
    return Error{ErrorCode::invalid_argument, "a contribution of another size than the model"};
  last_rank_progress_ = world_.loop.now();
  taking_contribution_ = true;
  world_.loop.spawn(contribute_task(std::move(parameters), tokens));
  return {};
}

void Gateway::progressing() { last_rank_progress_ = world_.loop.now(); }

void Gateway::leaving() {
  ranks_leaving_ = true;
  ranks_here_ = false;
  send_status();
}

Task<void> Gateway::contribute_task(std::vector<float> parameters, std::uint64_t tokens) {
  waits_.computing_s += seconds_of(world_.loop.now() - step_began_);
  contributed_at_ = world_.loop.now();
  auto made = co_await exchange_->contribute(state_->agreed, std::move(parameters), feedback_,
                                             tokens + carried_tokens_);
  taking_contribution_ = false;
  if (!made) {
    // The ranks' numbers, or our disk: nothing was promised to anybody yet.
    world_.log.alarm("contribution_failed",
                     {.outer_step = static_cast<std::int64_t>(working_step())},
                     {{"why", made.error().text()}});
    if (made.error().code == ErrorCode::non_finite && ranks_)
      ranks_->refuse(Error{ErrorCode::non_finite,
                           "the ranks contributed values that are not finite: the training has "
                           "diverged; lower the learning rate or go back to a checkpoint",
                           made.error()});
    changed_.notify();
    // The ranks still have what they contributed: they give it again when the state is published
    // again.
    co_await world_.loop.sleep(kRetryDisk);
    if (state_ && !applying_ && !taking_contribution_) publish();
    co_return;
  }
  pending_ = std::move(*made);
  contributed_step_ = pending_->step;
  feedback_.clear();  // it is part of the contribution now
  carried_tokens_ = 0;
  changed_.notify();
}

void Gateway::publish() {
  if (!ranks_ || !ranks_here_ || !state_) return;
  ranks_->publish({.step = state_->step,
                   .record = state_->record,
                   .parameters = state_->agreed,
                   .merge = MergeRule::keep_progress,
                   .final_step = finished_,
                   .contributed = contributed_step_,
                   .contribution_open = pending_ && pending_->step == working_step()});
}

// --- Steps
// -----------------------------------------------------------------------------------------------------------------------

View Gateway::current_view() const {
  if (!genesis_) return view_of_roster();
  const auto k = working_step();
  if (k <= 1 || chain_.size() < k - 1) return genesis_->record.next_view;
  return chain_[k - 2].record.next_view;
}

security::Digest Gateway::parent_hash() const {
  return working_step() <= 1 ? run_ : chain_[working_step() - 2].record.hash();
}

StepId Gateway::step_id() const {
  return {.run = run_, .view = current_view().digest(), .step = working_step(), .fragment = 0};
}

bool Gateway::learn(const Certificate& certificate) {
  const auto& record = certificate.record;
  if (record.step != chain_.size() + 1 || record.run != run_) return false;
  const auto parent = chain_.empty() ? run_ : chain_.back().record.hash();
  const auto& view = chain_.empty() ? genesis_->record.next_view : chain_.back().record.next_view;
  if (record.parent != parent || record.view != view ||
      !certificate.proves(view, world_.verifier)) {
    world_.log.alarm("record_refused", {.outer_step = static_cast<std::int64_t>(record.step)});
    return false;
  }
  for (const auto& part : record.parts) last_named_[part.site] = record.step;
  for (const auto site : record.next_view.members)
    if (!record.view.is_member(site)) last_named_[site] = record.step;
  chain_.push_back(certificate);
  return true;
}

void Gateway::begin_step() {
  const auto k = working_step();
  const auto id = step_id();
  const auto view = current_view();
  step_began_ = world_.loop.now();
  first_held_at_.reset();
  next_ballot_at_ = 0;
  ballots_tried_ = 0;
  signed_seen_.clear();
  to_say_.clear();
  agreement_.reset();
  persisted_version_ = 0;
  exchange_->begin_step(id, view, parent_hash(), state_root_, kept_from_);
  if (chain_.size() < k) {
    Agreement::Setup setup;
    setup.self = self_;
    setup.may_vote = !lost_vote_;
    setup.frame.run = run_;
    setup.frame.step = k;
    setup.frame.parent = parent_hash();
    setup.frame.parent_root = state_root_;
    setup.frame.view = view;
    setup.frame.next_view = view;
    setup.frame.rule = options_.sync.outer;
    setup.frame.final_step = k == options_.sync.outer_steps;
    setup.min_sites = options_.sync.min_sites;
    for (const auto& site : roster_.sites) setup.roster.insert(site.id);
    setup.complete = [this](Record& record) {
      record.next_view = next_view(record.view, record.step, record.parts, last_named_,
                                   options_.sync.absent_steps, peers_);
      auto& members = record.next_view.members;
      if (my_status().wants_in && !record.next_view.is_member(self_))
        members.insert(std::lower_bound(members.begin(), members.end(), self_), self_);
      record.readmitted = to_readmit(record.view, record.step, peers_);
    };
    Vote vote;
    if (stored_vote_ && stored_vote_->first == k) vote = stored_vote_->second;
    agreement_ = std::make_unique<Agreement>(std::move(setup), std::move(vote));
    agreement_->set_view_change_due(view_change_due());
  }
  if (pending_ && pending_->step == k && !exchange_->contributed()) {
    // Made before a restart.
    taking_contribution_ = true;
    auto restore = [](Gateway& self) -> Task<void> {
      const bool restored = co_await self.exchange_->restore_own();
      self.taking_contribution_ = false;
      if (!restored) {
        self.world_.log.alarm("own_contribution_lost",
                              {.outer_step = static_cast<std::int64_t>(self.working_step())});
        self.fail(Error{ErrorCode::corrupt, "this site's own contribution does not check on disk"});
      }
      self.changed_.notify();
    };
    world_.loop.spawn(restore(*this));
  }
  send_status();
  for (auto& [site, peer] : peers_.all())
    if (peer.link->up() && peer.status && peer.status->step == k) announce_step(peer);
  votes_.notify();
}

// Says what the agreement wants said, each message after the vote that it stands on.
Task<void> Gateway::vote_writer() {
  for (;;) {
    if (!agreement_) {
      co_await votes_.wait();
      continue;
    }
    auto outgoing = agreement_->take_outgoing();
    if (outgoing.empty()) {
      co_await votes_.wait();
      continue;
    }
    const auto id = step_id();
    const auto version = agreement_->vote_version();
    if (version > persisted_version_) {
      const Vote vote = agreement_->vote();
      Result<void> written;
      auto write = [this, &written, &vote, step = id.step] {
        written = store_.write_vote(step, vote);
      };
      co_await run_on(world_.workers, world_.loop, std::move(write), 4096);
      if (!written) {
        fail(Error{written.error().code,
                   "cannot write this site's vote: free the disk and start again",
                   written.error()});
        co_return;
      }
      options_.at_point("between_vote_and_accept", id.step);
      if (!agreement_ || step_id() != id) continue;
      persisted_version_ = version;
    }
    for (const auto& message : outgoing) {
      const auto said = sign(world_.signer, self_, id, message.message);
      broadcast_signed(said);
      receive_ballot(said);
      if (!agreement_ || step_id() != id) break;
    }
  }
}

// From a state that is here: loaded, or the run's first.
Task<Result<void>> Gateway::start_steps() {
  if (state_->step == 0 && !saved_any_) {
    saving_ = true;
    world_.loop.spawn(save(&*state_, state_root_, 0));
  }
  auto settled = co_await settle_feedback();
  if (!settled) co_return settled;
  finished_ = state_->step > 0 && chain_.size() >= state_->step &&
              chain_[state_->step - 1].record.final_step;
  if (!finished_) begin_step();
  publish();
  // Peers learn at once what this site has, also when it was restarted.
  if (saved_any_) {
    Saved saved{.id = step_id(), .state_root = state_root_, .strong_root = {}};
    saved.id.step = saved_step_;
    note_saved(self_, saved);
    peers_.send_to_all(sign(world_.signer, self_, MessageType::saved, encode(saved)).encode());
  }
  co_return Result<void>();
}

Task<Result<void>> Gateway::steps() {
  if (state_) {
    auto started = co_await start_steps();
    if (!started) co_return started;
  }
  std::optional<Nanoseconds> stuck_since;
  while (!stopping_ && !failure_ && !finished_) {
    if (!state_ && adopt_initial()) {
      auto started = co_await start_steps();
      if (!started) co_return started;
      continue;
    }
    if (!state_) {
      auto fetched = co_await transfer_->fetch(
          0, genesis_->record.next_view, self_,
          [this](std::uint64_t step) -> const Record* {
            return step == 0               ? &genesis_->record
                   : step <= chain_.size() ? &chain_[step - 1].record
                                           : nullptr;
          },
          [this] {
            return stopping_ || failure_.has_value() || (!state_ && initial_.has_value());
          });
      if (!fetched) continue;
      auto adopted = co_await adopt_state(std::move(*fetched));
      if (!adopted) co_return adopted;
      stuck_since.reset();
      continue;
    }
    const auto k = working_step();
    if (agreement_ && agreement_->decided() && chain_.size() < k) learn(*agreement_->decided());
    if (chain_.size() >= k) {
      const Certificate certificate = chain_[k - 1];
      auto applied = co_await apply(certificate);
      if (!applied) co_return applied.error();
      if (*applied) {
        stuck_since.reset();
        continue;
      }
      exchange_->want(certificate.record.parts);
      exchange_->consider_fetching();
      if (!exchange_->nobody_has(certificate.record.parts) || peers_.seen().empty()) {
        stuck_since.reset();
      } else if (!stuck_since) {
        stuck_since = world_.loop.now();
      } else if (world_.loop.now() - *stuck_since > kBytesPatience && !saving_ &&
                 !taking_contribution_) {
        auto fetched = co_await transfer_->fetch(
            k, current_view(), self_,
            [this](std::uint64_t step) -> const Record* {
              return step >= 1 && step <= chain_.size() ? &chain_[step - 1].record : nullptr;
            },
            [this] { return stopping_ || failure_.has_value(); });
        if (fetched) {
          auto adopted = co_await adopt_state(std::move(*fetched));
          if (!adopted) co_return adopted;
        }
        stuck_since.reset();
        continue;
      }
    }
    co_await changed_.wait_until(world_.loop.now() + kSecond);
  }
  co_return Result<void>();
}

// Goes on from a state that was fetched, instead of replaying.
Task<Result<void>> Gateway::adopt_state(OuterState fetched) {
  ++counters_.state_fetches;
  const auto step = fetched.step;
  auto logged = co_await log_records(step);
  if (!logged) co_return logged;
  state_ = std::move(fetched);
  state_root_ = inter::state_root(*layout_, *state_);
  kept_from_ = step + 1;
  saving_ = true;
  world_.loop.spawn(save(&*state_, state_root_, step));
  auto settled = co_await settle_feedback();
  if (!settled) co_return settled;
  finished_ = step > 0 && chain_[step - 1].record.final_step;
  if (!finished_) begin_step();
  publish();
  co_return Result<void>();
}

// Writes the decided records up to `step`: always before a state that follows from them.
Task<Result<void>> Gateway::log_records(std::uint64_t step) {
  while (logged_records_ < step) {
    Result<void> written;
    const Certificate certificate = chain_[logged_records_];
    auto write = [this, &written, &certificate] { written = store_.append_record(certificate); };
    co_await run_on(world_.workers, world_.loop, std::move(write), 4096);
    if (!written)
      co_return Error{written.error().code,
                      "cannot write the record of an outer step: free the disk and start again",
                      written.error()};
    ++logged_records_;
  }
  co_return Result<void>();
}

void Gateway::reduce_early(std::uint32_t chunk) {
  const auto view = current_view();
  std::vector<std::shared_ptr<const Contribution>> parts;
  for (const auto member : view.members) {
    auto part = exchange_->incoming(member);
    if (!part || !part->has(chunk)) return;
    parts.push_back(std::move(part));
  }
  if (!early_ || early_->step != working_step() || early_->parts != parts) {
    early_ = std::make_shared<EarlyReduction>();
    early_->step = working_step();
    Record likely;
    for (const auto& part : parts)
      likely.parts.push_back(
          {.site = part->site(), .root = {}, .tokens = part->open().tokens, .base = {}});
    early_->weights = weights_of(likely);
    early_->parts = std::move(parts);
    early_->aggregates.resize(plan_->chunks());
    early_->begun.resize(plan_->chunks());
    early_->done.resize(plan_->chunks());
  }
  if (early_->begun[chunk]) return;
  early_->begun[chunk] = true;
  const auto failed = std::make_shared<bool>(false);
  auto run = [early = early_, plan = plan_, chunk, failed] {
    std::vector<const Contribution*> reduced;
    for (const auto& part : early->parts) reduced.push_back(part.get());
    std::vector<float> aggregate(plan->elements(chunk));
    if (!reduce_chunk(*plan, chunk, early->weights, reduced, aggregate)) {
      *failed = true;
      return;
    }
    early->aggregates[chunk] = std::move(aggregate);
  };
  world_.workers.submit(
      std::move(run), [early = early_, chunk, failed] { early->done[chunk] = !*failed; },
      4 * plan_->elements(chunk) * early_->parts.size());
}

// False while bytes are missing.
Task<Result<bool>> Gateway::apply(const Certificate& certificate) {
  const auto& record = certificate.record;
  const auto k = record.step;
  std::vector<std::shared_ptr<const Contribution>> held;
  std::vector<const Contribution*> parts;
  for (const auto& part : record.parts) {
    auto contribution = exchange_->held(k, part.site);
    if (!contribution || contribution->part() != part) co_return false;
    parts.push_back(contribution.get());
    held.push_back(std::move(contribution));
  }
  const auto decided_at = world_.loop.now();
  // At most one step is unsaved; and our own contribution is coded against the state that this step
  // replaces.
  applying_ = true;
  while ((saving_ || taking_contribution_ || exchange_->contributing()) && !failure_)
    co_await changed_.wait_until(world_.loop.now() + kSecond);
  if (failure_) co_return *failure_;

  // Each chunk is reduced and stepped by itself; the leaves are hashed when all are done.
  const auto weights = weights_of(record);
  struct Shared {
    std::uint32_t left = 0;
    std::optional<Error> failure;
  };
  auto shared = std::make_shared<Shared>();  // with the jobs
  Signal done(world_.loop);
  const auto in_parallel = [&](std::uint32_t jobs, std::uint64_t cost, const auto& body) {
    shared->left = jobs;
    for (std::uint32_t i = 0; i < jobs; ++i) {
      auto failure = std::make_shared<std::optional<Error>>();
      auto run = [&body, i, failure] {
        if (auto result = body(i); !result) *failure = result.error();
      };
      auto after = [shared, failure, &done] {
        if (*failure) shared->failure = **failure;
        --shared->left;
        done.notify();
      };
      world_.workers.submit(std::move(run), std::move(after), cost);
    }
  };
  const auto early =
      early_ && early_->step == k &&
              std::equal(held.begin(), held.end(), early_->parts.begin(), early_->parts.end())
          ? early_
          : nullptr;
  const std::vector<bool> reduced = early ? early->done : std::vector<bool>(plan_->chunks());
  const auto reduce = [&](std::uint32_t i) -> Result<void> {
    if (reduced[i]) {
      outer_step_chunk(*plan_, i, record.rule, early->aggregates[i], *state_);
      return {};
    }
    std::vector<float> aggregate(plan_->elements(i));
    ISTHMUS_CHECK(reduce_chunk(*plan_, i, weights, parts, aggregate));
    outer_step_chunk(*plan_, i, record.rule, aggregate, *state_);
    return {};
  };
  in_parallel(plan_->chunks(), 4 * plan_->chunk_elements() * (parts.size() + 2), reduce);
  while (shared->left > 0) co_await done.wait();
  if (shared->failure)
    co_return Error{
        shared->failure->code,
        "a contribution that was checked does not decode: memory or disk of this machine is broken",
        *shared->failure};
  std::vector<kernels::Hash128> leaves(leaf_count(*layout_, options_.sync.outer.has_momentum()));
  const auto hash = [&](std::uint32_t i) -> Result<void> {
    leaves[i] = kernels::leaf_hash(leaf_bytes(*layout_, *state_, i));
    return {};
  };
  in_parallel(static_cast<std::uint32_t>(leaves.size()), 4 * ModelLayout::kLeafElements, hash);
  while (shared->left > 0) co_await done.wait();

  auto logged = co_await log_records(k);
  if (!logged) co_return logged.error();

  options_.at_point("merging", k);
  if (record.final_step) options_.at_point("final", k);
  early_.reset();
  state_->step = k;
  state_->record = record.hash();
  state_root_ = inter::state_root(leaves);
  if (std::count(record.readmitted.begin(), record.readmitted.end(), self_) > 0 && lost_vote_) {
    Result<void> fresh;
    auto begin = [this, &fresh, k] { fresh = store_.write_vote(k, Vote{}); };
    co_await run_on(world_.workers, world_.loop, std::move(begin), 4096);
    if (!fresh) co_return fresh.error();
    lost_vote_ = false;
    ++counters_.readmitted;
    world_.log.info("vote_readmitted", {.outer_step = static_cast<std::int64_t>(k)});
  }
  if (record.next_view != record.view) {
    ++counters_.view_changes;
    world_.log.info("view_changed", {.outer_step = static_cast<std::int64_t>(k)},
                    {{"members", static_cast<std::uint64_t>(record.next_view.members.size())}});
  }
  if (certificate.ballot > 0) ++counters_.ballots_above_zero;
  auto settled = co_await settle_feedback();
  if (!settled) co_return settled.error();
  finished_ = record.final_step;
  saving_ = true;
  world_.loop.spawn(save(&*state_, state_root_, k));
  applying_ = false;

  const auto now = world_.loop.now();
  if (contributed_at_ > 0) {
    const auto transfer =
        std::max<Nanoseconds>(0, decided_at - std::max(contributed_at_, step_began_));
    waits_.transfer_s += seconds_of(transfer);
  }
  waits_.applying_s += seconds_of(now - decided_at);
  world_.log.info(
      "step_applied", {.outer_step = static_cast<std::int64_t>(k)},
      {{"parts", static_cast<std::uint64_t>(record.parts.size())},
       {"tokens", record.tokens()},
       {"ballot", certificate.ballot},
       {"root", state_root_.hex()},
       {"seconds", seconds_of(now - step_began_)},
       {"exchange_seconds", contributed_at_ > 0 ? seconds_of(now - contributed_at_) : 0.0}});
  if (!finished_) begin_step();
  publish();
  if (finished_) send_status();
  co_return true;
}

// What became of our last contribution, now that its record is applied: what it left at this site
// rides in the next one.
Task<Result<void>> Gateway::settle_feedback() {
  if (!pending_ || !state_ || pending_->step > state_->step || pending_->step > chain_.size())
    co_return Result<void>();
  const auto* part = chain_[pending_->step - 1].record.part_of(self_);
  if (part != nullptr && part->root == pending_->root) {
    tokens_named_ += pending_->tokens;
    feedback_ = std::move(pending_->residual);
    carried_tokens_ = 0;
    pending_.reset();
    co_return Result<void>();
  }
  ++counters_.unnamed;
  tokens_unnamed_ += pending_->tokens;
  if (options_.link.bug == PlantedBug::drop_feedback) {
    feedback_ = std::move(pending_->residual);
    pending_.reset();
    co_return Result<void>();
  }
  // All of it: residual + decode(bytes). The bytes are in memory, or on disk after a restart.
  const auto step = pending_->step;
  auto contribution = exchange_->held(step, self_);
  Result<void> carried;
  auto carry = [this, &carried, contribution, step] {
    std::vector<std::pair<std::uint32_t, Bytes>> from_disk;
    if (!contribution) {
      auto stored = store_.read_contribution(step, self_);
      if (!stored) {
        carried = stored.error();
        return;
      }
      from_disk = std::move(stored->chunks);
    }
    const auto carry_one = [&](std::uint32_t index, std::span<const std::byte> payload) {
      if (carried) carried = carry_chunk(*plan_, index, payload, pending_->residual);
    };
    if (contribution) {
      for (std::uint32_t i = 0; i < plan_->chunks(); ++i) carry_one(i, contribution->payload(i));
    } else {
      for (const auto& [index, sealed] : from_disk)
        if (index < plan_->chunks()) carry_one(index, std::span(sealed).subspan(kSealBytes));
    }
  };
  co_await run_on(world_.workers, world_.loop, std::move(carry), 8 * layout_->elements());
  if (!carried)
    co_return Error{carried.error().code,
                    "what this site contributed and no record named cannot be read back",
                    carried.error()};
  feedback_ = std::move(pending_->residual);
  carried_tokens_ = pending_->tokens;
  pending_.reset();
  world_.log.info("contribution_carried", {.outer_step = static_cast<std::int64_t>(step)},
                  {{"tokens", carried_tokens_}});
  co_return Result<void>();
}

Task<void> Gateway::save(OuterState* state, security::Digest root, std::uint64_t step) {
  Saved saved{.id = step_id(), .state_root = root, .strong_root = {}};
  saved.id.run = run_;
  saved.id.step = step;
  const auto announce = [&] {
    saved_step_ = step;
    saved_any_ = true;
    peers_.send_to_all(sign(world_.signer, self_, MessageType::saved, encode(saved)).encode());
    note_saved(self_, saved);
  };
  if (options_.link.bug == PlantedBug::announce_before_saved) announce();
  for (;;) {
    Result<void> written;
    auto write = [this, &written, state, &root, step] {
      options_.at_point("saving", step);
      written = store_.write_state(*state, root);
    };
    co_await run_on(world_.workers, world_.loop, std::move(write), 8 * layout_->elements());
    if (written) break;
    // The step stays unsaved, and no further one is applied, until the disk has room again.
    world_.log.alarm("state_not_saved", {.outer_step = static_cast<std::int64_t>(step)},
                     {{"why", written.error().text()}});
    co_await world_.loop.sleep(kRetryDisk);
  }
  saving_ = false;
  announce();
  changed_.notify();
}

// Named bytes are kept until a majority of the voters has saved their step.
void Gateway::prune() {
  if (!state_) return;
  std::vector<std::uint64_t> steps;
  for (const auto voter : current_view().voters) {
    const auto found = saved_by_.find(voter);
    steps.push_back(found == saved_by_.end() ? 0 : found->second.id.step);
  }
  std::sort(steps.rbegin(), steps.rend());
  const auto majority_saved = steps[current_view().majority() - 1];
  // The last saved step's bytes stay too: a state is proved by the record after it, so who fetches
  // one replays one.
  const auto bound = std::min(majority_saved, saved_step_);
  if (bound <= kept_from_) return;
  kept_from_ = bound;
  // What a restart makes feedback of stays as well: our own newest one.
  if (auto removed = store_.remove_contributions_below(kept_from_, contributed_step_, self_);
      !removed)
    world_.log.warning("old_contributions_stay", {}, {{"why", removed.error().text()}});
}

Task<Result<void>> Gateway::serve_the_end() {
  world_.log.info("run_finished", {.outer_step = static_cast<std::int64_t>(state_->step)},
                  {{"root", state_root_.hex()}});
  const auto last = state_->step;
  const auto began = world_.loop.now();
  auto alone_since = began;
  while (!stopping_ && !failure_) {
    bool waiting = saving_;
    bool reachable = false;
    for (const auto site : chain_[last - 1].record.view.members) {
      if (site == self_) continue;
      const auto saved = saved_by_.find(site);
      const bool has = saved != saved_by_.end() && saved->second.id.step >= last;
      const auto* peer = peers_.find(site);
      const bool up = peer != nullptr && peer->link->up();
      // Whoever has saved the last step may end before it acknowledges what we say last.
      const bool farewell = up && !peer->link->drained() && world_.loop.now() - began < kSecond;
      if (up && (!has || farewell)) waiting = reachable = true;
      if (!up && !has) waiting = true;
    }
    if (!waiting) break;
    if (reachable || saving_) alone_since = world_.loop.now();
    if (!reachable && !saving_ && world_.loop.now() - alone_since > options_.linger) break;
    co_await changed_.wait_until(world_.loop.now() + 100 * kMillisecond);
  }
  final_served_ = true;
  co_return failure_ ? Result<void>(*failure_) : Result<void>();
}

// --- Time
// ------------------------------------------------------------------------------------------------------------------------

void Gateway::tick() {
  const auto now = world_.loop.now();
  const auto status = encode(my_status());
  if (now - last_status_ >= options_.link.heartbeat ||
      (status != last_status_bytes_ && now - last_status_ >= kTick / 2))
    send_status();
  if (exchange_ && state_ && !finished_) exchange_->consider_fetching();
  consider_ballot();
  tick_timer_ = world_.loop.call_after(kTick, [this] { tick(); });
}

bool Gateway::view_change_due() const {
  const auto view = current_view();
  if (my_status().wants_in) return true;
  for (const auto& [site, peer] : peers_.all()) {
    if (!peer.link->up() || !peer.status || peer.status->step != working_step()) continue;
    if (peer.status->wants_in && !view.is_member(site) && !peer.status->leaving) return true;
    if (peer.status->lost_vote && view.is_voter(site)) return true;
  }
  return false;
}

Nanoseconds Gateway::deadline() const {
  const auto view = current_view();
  const auto now = world_.loop.now();
  Nanoseconds round_trip = 0;
  for (const auto& [site, peer] : peers_.all())
    round_trip = std::max(round_trip, peer.link->round_trip());
  Nanoseconds wait = 0;
  bool all_here = true;
  for (const auto member : view.members) {
    if (agreement_->held().count(member) > 0) continue;
    all_here = false;
    const auto found = peers_.all().find(member);
    if (member == self_) {
      // Our own ranks: as patient with them as with others.
      if (ranks_here_ && now - last_rank_progress_ < options_.link.silence)
        wait = std::max(wait, options_.straggler_wait);
      continue;
    }
    const bool left =
        found != peers_.all().end() && found->second.status && found->second.status->leaving;
    if (left || !peers_.reachable(member)) {
      wait = std::max(wait, kGrace);
      continue;
    }
    const auto& lateness = found->second.lateness;
    const auto learnt = lateness.samples() >= 5 ? lateness.spread() + kGrace : options_.first_wait;
    const bool progresses = found->second.last_progress > 0 &&
                            now - found->second.last_progress < options_.link.silence;
    wait = std::max(
        wait, progresses && now - *first_held_at_ >= learnt ? options_.straggler_wait : learnt);
  }
  // Everything is here and yet nothing is decided: the votes are late.
  if (all_here) wait = 2 * kSecond + 4 * round_trip;
  // Voters take turns, so that they do not outbid each other.
  const auto turn =
      std::lower_bound(view.voters.begin(), view.voters.end(), self_) - view.voters.begin();
  return *first_held_at_ + wait + turn * (kGrace + round_trip);
}

void Gateway::consider_ballot() {
  if (!agreement_ || !agreement_->may_vote() || agreement_->decided() || finished_ || applying_ ||
      chain_.size() >= working_step())
    return;
  const auto now = world_.loop.now();
  const bool due = view_change_due();
  agreement_->set_view_change_due(due);
  votes_.notify();
  if (now < next_ballot_at_) return;
  bool open = first_held_at_ && now >= deadline();
  if (due && !open && first_held_at_) {
    // A change of the view waits only for those whose contributions can come.
    const auto view = current_view();
    const bool here = std::all_of(view.members.begin(), view.members.end(), [&](SiteId m) {
      return agreement_->held().count(m) > 0 || (m != self_ && !peers_.reachable(m));
    });
    const auto turn =
        std::lower_bound(view.voters.begin(), view.voters.end(), self_) - view.voters.begin();
    open = here && now >= *first_held_at_ + (turn + 1) * kGrace;
  }
  if (!open) return;
  Nanoseconds round_trip = 0;
  for (const auto& [site, peer] : peers_.all())
    round_trip = std::max(round_trip, peer.link->round_trip());
  const auto back_off = (2 * kSecond + 4 * round_trip) << std::min(ballots_tried_, 4u);
  ++ballots_tried_;
  next_ballot_at_ =
      now + back_off +
      static_cast<Nanoseconds>(world_.random.uniform() * static_cast<double>(back_off));
  agreement_->open_ballot();
  world_.log.info("ballot_opened", {.outer_step = static_cast<std::int64_t>(working_step())},
                  {{"ballot", agreement_->ballot_opened()},
                   {"held", static_cast<std::uint64_t>(agreement_->held().size())}});
  votes_.notify();
}

// --- For people
// ------------------------------------------------------------------------------------------------------------------

std::vector<std::pair<TransferId, std::uint32_t>> Gateway::acknowledged_chunks(SiteId peer) const {
  const auto found = peers_.all().find(peer);
  return found == peers_.all().end() ? decltype(acknowledged_chunks(peer)){}
                                     : found->second.link->acknowledged_chunks();
}

std::uint64_t Gateway::session_with(SiteId peer) const {
  const auto found = peers_.all().find(peer);
  return found == peers_.all().end() ? 0 : found->second.link->session();
}

std::uint64_t Gateway::memory_bytes() const { return exchange_ ? exchange_->bytes_held() : 0; }

Gateway::Counters Gateway::counters() const {
  auto all = counters_;
  if (exchange_) all.relayed = exchange_->counters().relayed;
  if (agreement_) all.reproposals += agreement_->counters().reproposals;
  return all;
}

GatewayStatus Gateway::status() const {
  GatewayStatus s;
  const auto name_of = [&](SiteId id) {
    const auto* site = roster_.find(id);
    return site != nullptr ? site->name : fmt::format("site {}", id);
  };
  s.site = name_of(self_);
  s.run = genesis_ ? run_.hex() : "";
  s.outer_step = state_ ? state_->step : 0;
  s.outer_steps = options_.sync.outer_steps;
  s.saved_step = saved_step_;
  s.state_root = state_ ? state_root_.hex() : "";
  s.uptime_s = seconds_of(world_.loop.now() - started_);
  s.tokens_named = tokens_named_;
  s.tokens_carried = carried_tokens_;
  const auto view = current_view();
  for (const auto id : view.members) s.members.push_back(name_of(id));
  for (const auto id : view.voters) s.voters.push_back(name_of(id));
  s.waits = waits_;
  s.phase = finished_                                          ? "finished"
            : !layout_                                         ? "waiting for ranks"
            : !genesis_                                        ? "starting"
            : !state_ || (transfer_ && transfer_->fetching())  ? "catching up"
            : applying_                                        ? "applying"
            : exchange_->contributed() || taking_contribution_ ? "exchanging"
            : ranks_here_                                      ? "training"
                                                               : "waiting for ranks";
  for (const auto& [id, peer] : peers_.all()) {
    auto link = peer.link->status();
    if (link.waiting_for.empty() && exchange_ && state_ && !finished_ && exchange_->contributed())
      link.waiting_for = exchange_->held(working_step(), id) ? "vote"
                         : exchange_->arriving(id)           ? "transfer"
                                                             : "contribution";
    s.links.push_back(std::move(link));
  }
  if (ranks_) s.ranks = ranks_->status();
  return s;
}

}  // namespace isthmus::inter
