#include "inter/gateway.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/assert.h"

namespace isthmus::inter {
namespace {

constexpr Nanoseconds kBytesPatience =
    3 * kSecond;  // nobody has the bytes of a decided record: then the state is fetched
// Over a slow line what keeps links alive leaves room for what they are for: heartbeats are as far
// apart as their peers' patience allows.
LinkOptions paced(LinkOptions link, double bytes_per_second, std::size_t peers) {
  constexpr double kBytes = 600;  // of a heartbeat on one link, with all that the wire adds
  constexpr double kShare = 0.05;
  if (bytes_per_second <= 0) return link;
  const auto wanted = kBytes * static_cast<double>(peers) / (kShare * bytes_per_second);
  const auto longest = std::max(link.heartbeat, link.silence * 2 / 5);
  link.heartbeat = std::clamp(static_cast<Nanoseconds>(wanted * 1e9), link.heartbeat, longest);
  return link;
}

}  // namespace

Gateway::Gateway(World world, security::Roster roster, SiteId self, GatewayOptions options)
    : world_(world),
      roster_(std::move(roster)),
      self_(self),
      options_(std::move(options)),
      limit_(options_.rate_limit_bytes_per_second),
      store_(world_.disk, options_.folder),
      saved_(self_),
      straggler_wait_(options_.straggler_wait),
      changed_(world_.loop),
      votes_(world_.loop) {
  ISTHMUS_ASSERT(roster_.find(self_) != nullptr);
  started_ = world_.loop.now();
  const auto slowest = options_.rate_limit_bytes_per_second_min > 0
                           ? options_.rate_limit_bytes_per_second_min
                           : options_.rate_limit_bytes_per_second;
  options_.link = paced(options_.link, slowest, roster_.sites.size() - 1);
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
  link_tester_ = make_link_tester();
  world_.wire.receive_with(*this);
  world_.wire.limit_bulk(limit_.bytes_per_second());
}

Gateway::~Gateway() {
  for (const auto& timer : {tick_timer_, ballot_timer_})
    if (timer) world_.loop.cancel(*timer);
  if (ranks_) ranks_->forget();
}

void Gateway::serve(Ranks& ranks) { ranks_ = &ranks; }

void Gateway::stop() {
  stopping_ = true;
  send_status();
  changed_.notify();
}

void Gateway::set_rate_limit(double bytes_per_second) {
  if (bytes_per_second == limit_.bytes_per_second()) return;
  limit_.set_rate(world_.loop.now(), bytes_per_second);
  world_.wire.limit_bulk(bytes_per_second);
  for (auto& [site, peer] : peers_.all()) peer.link->rate_changed();
}

void Gateway::fail(const Error& error) {
  if (!failure_) world_.log.alarm("gateway_failed", {}, {{"why", error.text()}});
  failure_ = error;
  changed_.notify();
}

void Gateway::take_layout(ModelLayout layout) {
  layout_ = std::move(layout);
  fingerprint_ = Fingerprint::of(*layout_, options_.sync);
  run_fingerprint_ = Fingerprint::of_run(*layout_, options_.sync);
}

Task<Result<void>> Gateway::run() {
  auto loaded = load();
  if (!loaded) co_return loaded;
  while (!layout_ && !stopping_) co_await changed_.wait();
  if (stopping_) co_return Result<void>();
  start_links();
  world_.loop.spawn(vote_writer());
  tick();
  auto began = co_await begin_or_join_run();
  if (stopping_ && began && !failure_) co_await say_farewell();
  if (!began || stopping_ || failure_) co_return failure_ ? Result<void>(*failure_) : began;
  auto stepped = co_await steps();
  if (!stepped || failure_) {
    if (ranks_) ranks_->refuse(failure_ ? *failure_ : stepped.error());
    co_return failure_ ? Result<void>(*failure_) : stepped;
  }
  if (finished_) {
    auto served = co_await serve_the_end();
    if (stopping_) co_await say_farewell();
    co_return served;
  }
  // Stopped by the user: what is being written is finished.
  while ((saving_ || taking_contribution_) && !failure_)
    co_await changed_.wait_until(world_.loop.now() + 100 * kMillisecond);
  co_await say_farewell();
  co_return Result<void>();
}

// --- Steps

View Gateway::current_view() const { return view_of_step(working_step()); }

View Gateway::view_of_step(std::uint64_t k) const {
  if (!genesis_) return view_of_roster();
  if (const auto* given = recovery_before(k)) return inter::view_of(*given);
  if (k <= 1 || chain_.size() < k - 1) return genesis_->record.next_view;
  return chain_[k - 2].record.next_view;
}

std::vector<const security::Recovery*> Gateway::recoveries() const {
  std::vector<const security::Recovery*> ours;
  for (const auto& recovery : roster_.recoveries)
    if (recovery.run == run_) ours.push_back(&recovery);
  return ours;
}

const security::Recovery* Gateway::recovery_before(std::uint64_t step) const {
  for (const auto* recovery : recoveries())
    if (recovery->step + 1 == step) return recovery;
  return nullptr;
}

// From which the run goes on, and which this site has not come to: it needs that state of another.
const security::Recovery* Gateway::recovery_ahead() const {
  const auto given = recoveries();
  const auto step = state_ ? state_->step : 0;
  return given.empty() || step >= given.back()->step ? nullptr : given.back();
}

security::Digest Gateway::parent_hash() const {
  return working_step() <= 1 ? run_ : chain_[working_step() - 2].record.hash();
}

StepId Gateway::step_id() const {
  return {.run = run_, .view = current_view().digest(), .step = working_step(), .fragment = 0};
}

bool Gateway::learn(const Certificate& certificate, PeerSite* from) {
  const auto& record = certificate.record;
  if (record.step != chain_.size() + 1 || record.run != run_) return false;
  const auto now = world_.loop.now();
  if (from != nullptr && !from->bad_passed_on.may(now)) return false;
  const auto view = view_of_step(record.step);
  if (record.view != view || !certificate.proves(view, world_.verifier) || !append(certificate)) {
    if (from != nullptr) from->bad_passed_on.take(now);
    if (const auto left_out = refused_records_.due(now))
      world_.log.alarm("record_refused", {.outer_step = static_cast<std::int64_t>(record.step)},
                       {{"left_out", *left_out}});
    return false;
  }
  return true;
}

// The next record of the chain, proven or our own disk's.
bool Gateway::append(const Certificate& certificate) {
  const auto& record = certificate.record;
  const auto parent = chain_.empty() ? run_ : chain_.back().record.hash();
  if (record.step != chain_.size() + 1 || record.parent != parent) return false;
  if (record.roster != security::Digest{}) named_roster_ = record.roster;
  for (const auto& part : record.parts) last_named_[part.site] = record.step;
  for (const auto site : record.next_view.members)
    if (!record.view.is_member(site)) last_named_[site] = record.step;
  if (const auto* part = record.part_of(self_)) tokens_named_ += part->tokens;
  readmission_.note(record);
  chain_.push_back(certificate);
  return true;
}

Agreement::Setup Gateway::agreement_setup(const View& view) const {
  const auto k = working_step();
  Agreement::Setup setup;
  setup.self = self_;
  // A vote in a later step is never written over.
  setup.may_vote = !lacks_vote() && (!stored_vote_ || stored_vote_->first <= k);
  setup.frame.run = run_;
  setup.frame.step = k;
  setup.frame.parent = parent_hash();
  setup.frame.parent_root = state_root_;
  setup.frame.view = view;
  setup.frame.next_view = view;
  setup.frame.rule = options_.sync.outer;
  // Or of fewer steps than the run has already, since its sites were started again.
  setup.frame.final_step = k >= options_.sync.outer_steps;
  setup.min_sites = options_.sync.min_sites;
  // A vote under way may name a roster that another one has replaced since.
  auto known = std::ranges::find(rosters_, named_roster_, &KnownRoster::digest);
  if (known == rosters_.end()) known = rosters_.begin();
  for (; known != rosters_.end(); ++known) {
    setup.roster.insert(known->sites.begin(), known->sites.end());
    if (known->digest != named_roster_) setup.newer_rosters.emplace(known->digest, known->voters);
  }
  setup.complete = [this](Record& record) { complete(record); };
  return setup;
}

// Where too few are left, or have come for a while, whoever asks is taken in.
bool Gateway::may_join(SiteId site) const {
  return !too_few_members().empty() || readmission_.due(site, working_step()) || too_few_come();
}

// What may come true of what sites ask for.
std::vector<Wish> Gateway::wishes() const {
  auto all = peers_.wishes(working_step(), self_);
  for (auto& wish : all) wish.joins = wish.joins && may_join(wish.site);
  return all;
}

// What this voter's proposal says beside its parts: who leaves, joins or has another vote file, and
// a newer roster that is due.
void Gateway::complete(Record& record) const {
  const auto wishes = this->wishes();
  record.next_view = next_view(record.view, record.step, record.parts, last_named_,
                               options_.sync.absent_steps, wishes, peers_);
  if (wants_in() && !record.next_view.is_member(self_)) record.next_view.take_in(self_, vote_file_);
  if (newer_roster_due()) {
    record.roster = roster_.digest;
    auto newer = with_vote_files(view_of_roster());
    for (const auto& [site, file] : record.next_view.vote_files)
      if (newer.takes_part(site)) newer.set_vote_file(site, file);
    record.next_view.voters = newer.voters;
    std::erase_if(record.next_view.members,
                  [this](SiteId site) { return roster_.find(site) == nullptr; });
    for (const auto& [site, file] : newer.vote_files)
      if (record.next_view.takes_part(site)) record.next_view.set_vote_file(site, file);
    record.next_view.forget_others();
  }
}

void Gateway::begin_step() {
  const auto k = working_step();
  const auto id = step_id();
  const auto view = current_view();
  note_promises();
  step_began_ = world_.loop.now();
  first_held_at_.reset();
  view_change_since_.reset();
  next_ballot_at_ = 0;
  ballots_tried_ = 0;
  said_.clear();
  // What this site voted in this step stands, whatever state it goes on from.
  if (agreement_ && agreement_step_ == k) {
    vote_on_disk_ = agreement_->vote_version() <= persisted_version_;
    if (!vote_on_disk_) ++counters_.votes_under_way;
    stored_vote_ = std::pair(k, agreement_->vote());
  }
  agreement_.reset();
  agreement_step_ = k;
  ++agreements_;
  persisted_version_ = 0;
  exchange_->begin_step(id, view, parent_hash(), state_root_, at_hand_from_);
  returning_->begin_step();
  if (chain_.size() < k) {
    note_vote();
    Vote vote;
    bool on_disk = true;
    if (stored_vote_ && stored_vote_->first == k) {
      vote = stored_vote_->second;
      on_disk = vote_on_disk_;
    }
    // Cast while this site's state was wrong: no majority can have voted for it. Or by a view that
    // the operator has given up.
    if (vote.accepted &&
        (vote.accepted->record.parent_root != state_root_ || vote.accepted->record.view != view))
      vote.accepted.reset();
    promised_before_ = vote.promised;
    agreement_ = std::make_unique<Agreement>(agreement_setup(view), std::move(vote), on_disk);
    agreement_->set_view_change_due(view_change_due() || awaited_wish() != nullptr ||
                                    awaited_return() != nullptr);
    for (const auto site : exchange_->holds()) {
      agreement_->hold(exchange_->held(k, site)->part());
      first_held_at_ = step_began_;
    }
  }
  if (const auto few = too_few_members(); !few.empty())
    world_.log.warning("too_few_members", {.outer_step = static_cast<std::int64_t>(k)},
                       {{"why", few}});
  if (pending_ && pending_->step == k && !exchange_->contributed())
    fail(Error{ErrorCode::corrupt, "this site's own contribution does not check on disk"});
  send_status();
  for (auto* peer : peers_.working_on(k)) announce_step(*peer);
  votes_.notify();
}

bool Gateway::lacks_vote() const {
  if (!genesis_) return false;
  const auto view = current_view();
  return view.is_voter(self_) && view.vote_file_of(self_) != vote_file_;
}

// Of sites that take part, since they said the last time what the view knows of them.
std::set<SiteId> Gateway::lost_disks(const View& view) const {
  std::set<SiteId> lost;
  if (view.vote_file_of(self_) != vote_file_) lost.insert(self_);
  for (const auto& wish : peers_.wishes(working_step(), self_))
    if (wish.vote_file != kNoVoteFile && wish.vote_file != view.vote_file_of(wish.site))
      lost.insert(wish.site);
  return lost;
}

std::vector<SiteId> Gateway::voters_without_votes(const View& view) const {
  const auto lost = lost_disks(view);
  std::vector<SiteId> voters;
  std::ranges::set_intersection(view.voters, lost, std::back_inserter(voters));
  return voters;
}

void Gateway::note_vote() {
  const bool lacks = lacks_vote() && recovery_ahead() == nullptr;
  if (lacks == std::exchange(lacked_vote_, lacks)) return;
  const EventLog::About at{.outer_step = static_cast<std::int64_t>(working_step())};
  const auto view = current_view();
  if (lacks && view.vote_file_of(self_) == kNoVoteFile) {
    world_.log.info("vote_awaited", at, {{"until", "a record names this site's vote file"}});
  } else if (lacks) {
    ++counters_.votes_lost;
    world_.log.alarm("vote_file_lost", at,
                     {{"effect", "this site does not vote until a record names its new file"},
                      {"then", view.voters.size() - 1 < view.majority()
                                   ? "no record can be decided without it: the operator says "
                                     "where to go on (isthmus roster recover)"
                                   : "the other voters see to it"}});
  } else if (counters_.readmitted < counters_.votes_lost) {
    ++counters_.readmitted;
    world_.log.info("vote_readmitted", at);
  } else {
    world_.log.info("vote_named", at);
  }
}

// A step is entered once more after a restart, or a first time: votes and closes of before rest on
// what is on disk.
Task<Result<void>> Gateway::restore_contributions(std::uint64_t step, View view,
                                                  security::Digest parent,
                                                  security::Digest state_root) {
  if (step > restored_to_) co_return Result<void>();
  const StepId id{.run = run_, .view = view.digest(), .step = step, .fragment = 0};
  auto restored = co_await exchange_->restore(id, view, parent, state_root);
  if (!restored && restored.error().code == ErrorCode::disk_full) {
    Result<std::uint64_t> removed = Error{ErrorCode::cancelled, ""};
    auto remove = [this, &removed] { removed = store_.remove_kept_for_others(self_); };
    co_await run_on(world_.workers, world_.loop, std::move(remove), 4096, Urgency::disk);
    if (removed && *removed > 0) {
      note_removed(*removed);
      restored = co_await exchange_->restore(id, view, parent, state_root);
    }
  }
  if (!restored)
    co_return Error{restored.error().code,
                    "cannot take up the contributions of before: free the disk, or mend what is "
                    "named, and start again",
                    restored.error()};
  co_return Result<void>();
}

const Record* Gateway::record_of(std::uint64_t step) const {
  if (step == 0) return genesis_ ? &genesis_->record : nullptr;
  return step <= chain_.size() ? &chain_[step - 1].record : nullptr;
}

// The memory of the first steps' results: the system takes its time to give it.
Task<void> Gateway::make_room() {
  auto state = std::make_shared<OuterState>();
  auto make = [this, &state] {
    state->agreed.resize(state_->agreed.size());
    state->momentum.resize(state_->momentum.size());
    for (auto& spare : spare_residuals_) spare.resize(state_->agreed.size());
  };
  co_await run_on(world_.workers, world_.loop, std::move(make), 16 * layout_->elements());
  state_before_ = std::move(state);
}

// From a state that is here: loaded, or the run's first.
Task<Result<void>> Gateway::start_steps() {
  applying_ = true;  // nothing is contributed before the feedback is settled
  auto settled = co_await settle_feedback(state_->step);
  if (!settled) co_return settled;
  auto restored =
      co_await restore_contributions(working_step(), current_view(), parent_hash(), state_root_);
  if (!restored) co_return restored;
  misled_base_ = co_await recall_misled_base(state_->step);
  co_await make_room();
  enter_state(state_->step == 0 && !saved_any_, true);
  auto closed = co_await exchange_->close_again();
  if (!closed) co_return closed;
  // Peers learn at once what this site has, also when it was restarted.
  if (saved_any_) {
    Saved saved{.id = step_id(), .state_root = state_root_, .strong_root = {}, .spot_root = {}};
    saved.id.step = saved_step_;
    announce_saved(saved);
  }
  co_return Result<void>();
}

Task<Result<void>> Gateway::steps() {
  if (state_) {
    auto started = co_await start_steps();
    if (!started) co_return started;
  }
  while (!stopping_ && !failure_ && !finished_) {
    Result<void> went_on;
    if (!state_ && adopt_initial())
      went_on = co_await start_steps();
    else if (!state_)
      went_on = co_await fetch_first_state();
    else if (disputed())
      went_on = co_await settle_dispute();
    else
      went_on = co_await advance();
    if (!went_on) co_return went_on;
  }
  co_return Result<void>();
}

Task<Result<void>> Gateway::fetch_first_state() {
  auto fetched = co_await state_fetcher_->fetch(
      0, genesis_->record.next_view, [this](std::uint64_t step) { return record_of(step); },
      [this] { return stopping_ || failure_.has_value() || (!state_ && initial_.has_value()); });
  if (!fetched) co_return Result<void>();
  co_return co_await adopt_state(std::move(*fetched));
}

// Decided steps that are not applied here: what records prove, and not what peers say.
std::uint64_t Gateway::missing() const {
  return chain_.size() - std::min<std::uint64_t>(chain_.size(), state_ ? state_->step : 0);
}

// A site that is far behind is nearer with a state than with all that led to it: from that step on,
// or nothing, while it is not. Once until it is current again, or twice as far behind: what it
// misses meanwhile it replays.
std::optional<std::uint64_t> Gateway::nearer_state() const {
  constexpr std::uint64_t kDearer = 4;  // than a state, in bytes, so that it shortens the way
  const auto missing = this->missing();
  if (missing <= options_.sync.absent_steps) return std::nullopt;  // it is still waited for
  if (state_wanted_behind_ > 0 && missing < 2 * state_wanted_behind_) return std::nullopt;
  const auto vectors = options_.sync.outer.has_momentum() ? 2U : 1U;
  const auto of_state = vectors * sizeof(float) * layout_->elements();
  const auto of_step = current_view().members.size() * plan_->bytes_max();
  if (missing * of_step <= kDearer * of_state) return std::nullopt;
  return working_step() + missing / 2;
}

// False: it is replayed, as nobody gives one.
Task<Result<bool>> Gateway::fetch_nearer_state(std::uint64_t at_least) {
  constexpr std::uint32_t kTries = 5;          // states are written over while they are asked for
  constexpr auto kNoneOffered = 15 * kSecond;  // a server reads and hashes one before it offers it
  state_wanted_behind_ = missing();
  const auto began = world_.loop.now();
  const auto step = static_cast<std::int64_t>(working_step());
  world_.log.info("state_is_nearer", {.outer_step = step}, {{"steps_missing", missing()}});
  auto fetched = co_await state_fetcher_->fetch(
      at_least, current_view(), [this](std::uint64_t of) { return record_of(of); },
      [this, began] {
        const bool none = !state_fetcher_->receives() && state_fetcher_->in_vain() == 0 &&
                          world_.loop.now() - began > kNoneOffered;
        return stopping_ || failure_.has_value() || none || state_fetcher_->in_vain() >= kTries;
      });
  if (!fetched) {
    world_.log.info("state_not_fetched", {.outer_step = step}, {{"then", "all is replayed"}});
    co_return false;
  }
  auto adopted = co_await adopt_state(std::move(*fetched));
  if (!adopted) co_return adopted.error();
  co_return true;
}

// Applies the record of the step at hand once it is decided and its bytes are here; waits for that,
// or fetches a state when nobody has the bytes any more.
Task<Result<void>> Gateway::advance() {
  std::optional<Nanoseconds> stuck_since;
  const auto k = working_step();
  while (!stopping_ && !failure_ && working_step() == k && !disputed()) {
    if (!bears_difference()) co_return dispute_without_end();
    if (agreement_ && agreement_->decided() && chain_.size() < k) learn(*agreement_->decided());
    if (missing() <= options_.sync.absent_steps) state_wanted_behind_ = 0;
    if (chain_.size() >= k) {
      const Certificate certificate = chain_[k - 1];
      auto applied = co_await apply(certificate);
      if (!applied) co_return applied.error();
      if (*applied) co_return Result<void>();
      if (const auto step = nearer_state(); step && !saving_ && !taking_contribution_) {
        auto nearer = co_await fetch_nearer_state(*step);
        if (!nearer) co_return nearer.error();
        if (*nearer) co_return Result<void>();
      }
      exchange_->want(certificate.record.parts, Exchange::Named::by_record);
      exchange_->consider_fetching();
      if (!exchange_->nobody_has(certificate.record.parts) || peers_.seen().empty()) {
        stuck_since.reset();
      } else if (!stuck_since) {
        stuck_since = world_.loop.now();
      } else if (world_.loop.now() - *stuck_since > kBytesPatience && !saving_ &&
                 !taking_contribution_) {
        auto fetched = co_await state_fetcher_->fetch(
            k, current_view(), [this](std::uint64_t step) { return record_of(step); },
            [this, &certificate] {
              return stopping_ || failure_.has_value() || named(certificate.record).has_value();
            });
        if (fetched) co_return co_await adopt_state(std::move(*fetched));
        stuck_since.reset();
        continue;
      }
    }
    co_await changed_.wait_until(world_.loop.now() + kSecond);
  }
  co_return Result<void>();
}

// --- For people

std::vector<std::pair<TransferId, std::uint32_t>> Gateway::acknowledged_chunks(SiteId peer) const {
  const auto found = peers_.all().find(peer);
  return found == peers_.all().end() ? decltype(acknowledged_chunks(peer)){}
                                     : found->second.link->acknowledged_chunks();
}

const Link* Gateway::link_with(SiteId peer) const {
  const auto found = peers_.all().find(peer);
  return found == peers_.all().end() ? nullptr : found->second.link.get();
}

std::uint64_t Gateway::session_with(SiteId peer) const {
  const auto found = peers_.all().find(peer);
  return found == peers_.all().end() ? 0 : found->second.link->session();
}

std::uint64_t Gateway::memory_bytes() const { return exchange_ ? exchange_->bytes_held() : 0; }

Gateway::Counters Gateway::counters() const {
  auto all = counters_;
  if (exchange_) {
    all.relayed = exchange_->relayed();
    all.asked = exchange_->asked();
    all.asked_elsewhere = exchange_->asked_elsewhere();
  }
  if (agreement_) all.reproposals += agreement_->counters().reproposals;
  return all;
}

std::string Gateway::name_of(SiteId id) const {
  const auto* site = roster_.find(id);
  return site != nullptr ? site->name : fmt::format("site {}", id);
}

}  // namespace isthmus::inter
