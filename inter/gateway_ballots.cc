// When a gateway votes, opens a ballot, and how long it waits for whom (PROTOCOL.md, "Ballots" and
// "Deadlines").
#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "inter/gateway.h"

namespace isthmus::inter {
namespace {

constexpr Nanoseconds kTick = 250 * kMillisecond;
constexpr Nanoseconds kBallotsApart = 20 * kMillisecond;
constexpr Nanoseconds kGrace = 500 * kMillisecond;  // for a member that is not waited for
constexpr Nanoseconds kNewVotersWait = 30 * kSecond;
constexpr int kWishesAwaited = 4;  // of one site, in a row
constexpr std::uint32_t kPromisesBrokenMax = 2, kPromisesKept = 16;
constexpr Nanoseconds kTooFewWait = 60 * kSecond;  // longer than ranks take to start again

}  // namespace

// Says what the agreement wants said, each message after the vote that it stands on. While nothing
// waits to be said the vote goes into the other slot as well: what a disk forgets of one is then no
// vote that was never cast.
Task<void> Gateway::vote_writer() {
  std::optional<std::pair<std::uint64_t, Vote>> in_one_slot;
  for (;;) {
    std::vector<Agreement::Outgoing> outgoing;
    if (agreement_) outgoing = agreement_->take_outgoing();
    const auto version = agreement_ ? agreement_->vote_version() : 0;
    if (outgoing.empty() && version <= persisted_version_) {
      if (!in_one_slot) {
        co_await votes_.wait();
        continue;
      }
      // A disk that does not take it has the first one still.
      auto write_again = [this, &in_one_slot] {
        static_cast<void>(store_.write_vote(in_one_slot->first, in_one_slot->second));
      };
      co_await run_on(world_.workers, world_.loop, std::move(write_again), 4096, Urgency::prompt);
      in_one_slot.reset();
      continue;
    }
    const auto of = agreements_;
    const auto id = step_id();
    if (version > persisted_version_) {
      in_one_slot = std::pair(id.step, agreement_->vote());
      Result<void> written;
      std::uint64_t removed_below = 0;
      auto write = [this, &written, &in_one_slot, &removed_below] {
        written = with_room(removed_below, [&] {
          return store_.write_vote(in_one_slot->first, in_one_slot->second);
        });
      };
      co_await run_on(world_.workers, world_.loop, std::move(write), 4096, Urgency::prompt);
      note_removed(removed_below);
      if (!written) {
        fail(Error{written.error().code,
                   "cannot write this site's vote: free the disk and start again",
                   written.error()});
        co_return;
      }
      options_.at_point("between_vote_and_accept", id.step);
      if (agreements_ != of) continue;  // a step later
      persisted_version_ = version;
    }
    for (const auto& message : outgoing) {
      const auto said = sign(world_.signer, self_, id, message.message);
      broadcast_signed(said);
      receive_ballot(said, message.message);
      if (agreements_ != of) break;
    }
  }
}

void Gateway::tick() {
  const auto now = world_.loop.now();
  if (now - last_status_ >= options_.link.heartbeat ||
      (now - last_status_ >= kTick / 2 && encode_own(my_status()) != last_status_bytes_))
    send_status();
  if (exchange_ && state_ && !finished_) exchange_->consider_fetching();
  if (state_server_) state_server_->tidy();
  for (const auto* message : saved_.due(now)) relay_to_all(*message, nullptr);
  for (const auto* message : said_.due(now)) relay(*message, nullptr);
  note_since();
  consider_ballot();
  give_way_to_twin();
  count_waits();
  say_missed_sites();
  say_hanging_ranks();
  say_lost_votes();
  tick_timer_ = world_.loop.call_at(next_beat(now, kTick), [this] { tick(); });
}

// Peers that have a session with another live process of this identity refuse us. One word of it
// may come from the connection that a restart left behind, and nobody can check it, so a single
// peer must not be able to stop a site: only a process ends itself that nobody ever took up, and
// that all who are here refuse, more than half of the sites. A later start may find the other one
// gone.
void Gateway::give_way_to_twin() {
  constexpr std::uint64_t kRefusals = 3;
  std::vector<std::string_view> refused_by;
  for (const auto& [site, peer] : peers_.all()) {
    const auto& counters = peer.link->counters();
    if (counters.sessions > 0) return;
    if (counters.refused_as_duplicate >= kRefusals)
      refused_by.push_back(peer.link->peer_name());
    else if (peer.link->connected())
      return;
  }
  if (2 * refused_by.size() <= peers_.all().size() || failure_) return;
  fail(Error{ErrorCode::busy,
             fmt::format("another live process of this site has a session with {}: stop that one "
                         "first, or do not start this one",
                         fmt::join(refused_by, ", "))});
}

// What the step at hand waits for at this site; null: there is none.
double WaitStatus::*Gateway::waits_for() const {
  if (!exchange_ || finished_ || stopping_) return nullptr;
  if (state_fetcher_->fetching()) return &WaitStatus::transfer_s;
  if (!state_) return &WaitStatus::straggler_s;  // to begin the run with, or to fetch a state from
  if (applying_ || taking_contribution_) return &WaitStatus::applying_s;
  // Decided, but not all of it is here.
  if (chain_.size() >= working_step()) return &WaitStatus::transfer_s;
  const auto view = current_view();
  if (!exchange_->contributed() && view.is_member(self_)) return &WaitStatus::computing_s;
  if (exchange_->sending(view)) return &WaitStatus::transfer_s;
  bool all_held = true;
  for (const auto member : view.members) {
    if (exchange_->held(working_step(), member)) continue;
    all_held = false;
    if (exchange_->incoming(member) && peers_.reachable(member)) return &WaitStatus::transfer_s;
  }
  return all_held ? &WaitStatus::agreement_s : &WaitStatus::straggler_s;
}

// Called on every tick, and where what is waited for changes.
void Gateway::count_waits() {
  const auto now = world_.loop.now();
  if (waits_for_ != nullptr) waits_.*waits_for_ += seconds_of(now - waits_counted_);
  waits_counted_ = now;
  waits_for_ = waits_for();
}

// No record names our roster yet, and everyone who votes and can be reached has it, a majority.
bool Gateway::newer_roster_known() const {
  if (roster_.digest == named_roster_) return false;
  const auto view = current_view();
  std::size_t have = view.is_voter(self_) ? 1 : 0;
  for (const auto& [site, peer] : peers_.all()) {
    if (!view.is_voter(site) || !peer.link->up() || !peer.status) continue;
    if (peer.status->roster_epoch != roster_.epoch) return false;
    ++have;
  }
  return have >= view.majority();
}

// And those who will vote are known to have a vote file: all of them or, after a while, a majority.
// Who is named without one has no vote until another record names that, and the run would stop with
// the next site that is lost.
bool Gateway::newer_roster_due() const {
  if (!newer_roster_known()) return false;
  const auto newer = with_vote_files(view_of_roster());
  const bool waits =
      !roster_known_since_ || world_.loop.now() - *roster_known_since_ < kNewVotersWait;
  return newer.vote_files.size() >= (waits ? newer.voters.size() : newer.majority());
}

// What is waited for counts from when it began, in steps that come and go.
void Gateway::note_since() {
  const auto now = world_.loop.now();
  const auto since = [now](std::optional<Nanoseconds>& time, bool is_so) {
    if (!is_so)
      time.reset();
    else if (!time)
      time = now;
  };
  since(roster_known_since_, genesis_ && newer_roster_known());
  since(too_few_since_, agreement_ && !contributions_may_suffice());
  since(differs_since_, differs_unresolved());
}

bool Gateway::too_few_come() const {
  return too_few_since_ && world_.loop.now() - *too_few_since_ >= kTooFewWait;
}

bool Gateway::view_change_due() const {
  const auto view = current_view();
  if (newer_roster_due()) return true;
  if (wants_in()) return true;
  const auto wishes = this->wishes();
  return std::any_of(wishes.begin(), wishes.end(), [&](const Wish& wish) {
    return roster_.find(wish.site) != nullptr && changes(view, wish);
  });
}

// One that would like to join says so in each step anew: its word for this one is on its way, and
// without ballot 0 there is time for it. Or null.
const PeerSite* Gateway::awaited_wish() const {
  const auto now = world_.loop.now();
  const auto late = votes_late();
  if (now - step_began_ >= late) return nullptr;
  const auto view = current_view();
  return peers_.about_to_join(working_step(), now - late, [&](SiteId site) {
    return !view.is_member(site) && may_join(site) &&
           returning_->may_hold_up(site, kWishesAwaited * late, now);
  });
}

// One that replays what the others are past, faster than they go on, so that it can join; or null.
const PeerSite* Gateway::awaited_return() const {
  const auto now = world_.loop.now();
  const auto view = current_view();
  for (const auto& [site, peer] : peers_.all())
    if (peer.link->up() && peer.status && peer.status->contributes && !peer.status->leaving &&
        !view.is_member(site) &&
        returning_->awaited(site, working_step(), kept_from_, now, votes_late()))
      return &peer;
  return nullptr;
}

bool Gateway::all_held() const {
  const auto members = current_view().members;
  return std::ranges::all_of(
      members, [this](SiteId member) { return agreement_->held().count(member) > 0; });
}

// Voters take turns, so that they do not outbid each other.
std::ptrdiff_t Gateway::turn() const {
  const auto voters = current_view().voters;
  return std::ranges::lower_bound(voters, self_) - voters.begin();
}

// When votes that were to come must have come.
Nanoseconds Gateway::votes_late() const {
  return 2 * kSecond + 4 * peers_.longest_round_trip(current_view());
}

// What is said of others counts of those alone whom this site does not see: nobody signs it.
bool Gateway::all_held_by_majority(const View& view) const {
  const auto said_by = [this](const PeerSite& peer) -> const Status* {
    const bool is_of_this_step = peer.status && peer.status->step == working_step();
    return peer.link->up() && is_of_this_step ? &*peer.status : nullptr;
  };
  const auto holders = std::ranges::count_if(view.voters, [&](SiteId voter) {
    if (voter == self_) return true;
    if (peers_.sees(voter)) {
      const auto* status = said_by(peers_.all().at(voter));
      return status != nullptr && std::ranges::includes(status->holds, view.members);
    }
    return std::ranges::any_of(peers_.all(), [&](const auto& entry) {
      const auto* status = said_by(entry.second);
      return status != nullptr && std::ranges::count(status->sees_complete, voter) > 0;
    });
  });
  return static_cast<std::size_t>(holders) >= view.majority();
}

bool Gateway::progresses(const PeerSite& peer) const {
  // On a slow line its status is behind what it contributes.
  if (exchange_ && exchange_->arriving(peer.site)) return true;
  return peer.last_progress > 0 && world_.loop.now() - peer.last_progress < options_.link.silence;
}

const Learnt& Gateway::lateness_of(SiteId member) const {
  return member == self_ ? own_lateness_ : peers_.all().at(member).lateness;
}

Nanoseconds Gateway::usual_wait(SiteId member) const {
  const auto& lateness = lateness_of(member);
  return lateness.samples() > 0 ? lateness.spread() + kGrace : options_.first_wait;
}

// The step before this one is decided. Who is named has kept what it promised; who says that its
// ranks compute, and was waited for in vain to the last, is waited for as one that says nothing
// after a second time, until it has contributed to some more. What is here and not named came in
// time: it did not come to enough others.
void Gateway::note_promises() {
  const auto decided = chain_.size();
  if (!first_held_at_ || !agreement_ || agreement_step_ != decided || working_step() != decided + 1)
    return;
  const auto& record = chain_[decided - 1].record;
  const auto waited = world_.loop.now() - *first_held_at_;
  for (auto& [site, peer] : peers_.all()) {
    if (!record.view.is_member(site)) continue;
    if (record.part_of(site) == nullptr) {
      const bool to_the_last = waited >= usual_wait(site) + straggler_wait_.most();
      if (!to_the_last || !progresses(peer) || agreement_->held().contains(site)) continue;
      peer.promises_broken = std::min(peer.promises_broken + 1, kPromisesBrokenMax);
      peer.promises_kept = 0;
    } else if (++peer.promises_kept >= kPromisesKept) {
      peer.promises_kept = 0;
      if (peer.promises_broken > 0) --peer.promises_broken;
    }
  }
}

// Whether contributions of the members that are here, or show progress, may still suffice.
bool Gateway::contributions_may_suffice() const {
  const auto view = current_view();
  const auto lost = lost_disks(view);
  const auto possible = std::ranges::count_if(view.members, [&](SiteId member) {
    if (agreement_->held().count(member) > 0) return true;
    if (lost.contains(member)) return false;
    if (member == self_) return rank_pulse_.live(world_.loop.now()) || exchange_->contributing();
    return peers_.reachable(member) && progresses(peers_.all().at(member));
  });
  return possible >= std::max<std::ptrdiff_t>(options_.sync.min_sites, 1);
}

// The first contribution is held, or, where none is, the view has to change.
std::optional<Nanoseconds> Gateway::waiting_since() const {
  return first_held_at_ ? first_held_at_ : view_change_since_;
}

Gateway::Deadline Gateway::deadline(Nanoseconds since) const {
  using Why = Deadline::Why;
  const auto view = current_view();
  const auto lost = lost_disks(view);
  const auto now = world_.loop.now();
  Nanoseconds longest = 0;
  Deadline latest;
  const auto wait = [&](Nanoseconds time, Why why, SiteId site = 0) {
    if (time < longest) return;
    longest = time;
    latest.why = why;
    latest.site = site;
  };
  bool all_here = true;
  for (const auto member : view.members) {
    if (agreement_->held().count(member) > 0) continue;
    all_here = false;
    const auto found = peers_.all().find(member);
    const bool left =
        found != peers_.all().end() && found->second.status && found->second.status->leaving;
    if (left || (member != self_ && !peers_.reachable(member))) {
      wait(kGrace, Why::away, member);
      continue;
    }
    if (lost.contains(member)) {
      wait(kGrace, Why::unnamed_disk, member);
      continue;
    }
    if (member == self_) {
      // Our own ranks: as patient with them as with others. What they gave is made without them.
      if (rank_pulse_.live(now) || exchange_->contributing())
        wait(usual_wait(self_) + straggler_wait_.most(), Why::own_ranks, member);
      continue;
    }
    const auto usual = usual_wait(member);
    if (progresses(found->second) && found->second.promises_broken < kPromisesBrokenMax &&
        now - since >= usual)
      wait(usual + straggler_wait_.most(), Why::progress, member);
    else
      wait(usual, lateness_of(member).samples() > 0 ? Why::learnt : Why::none_known, member);
  }
  // Everything is here and yet nothing is decided: the votes are late, or not everything is there.
  if (all_here && all_held_by_majority(view))
    wait(votes_late(), Why::votes);
  else if (all_here)
    wait(straggler_wait_.most(), Why::on_their_way);
  if (const auto* peer = awaited_return(); peer != nullptr && now - since + kGrace >= longest)
    wait(now - since + kGrace, Why::returns, peer->site);
  latest.at = since + longest + turn() * (kGrace + peers_.longest_round_trip(view));
  return latest;
}

std::string Gateway::said(const Deadline& deadline, Nanoseconds since) const {
  using Why = Deadline::Why;
  const auto in_all = fmt::format("{:.1f} s", seconds_of(deadline.at - since));
  const auto site = name_of(deadline.site);
  switch (deadline.why) {
    case Why::learnt: {
      const auto& lateness = lateness_of(deadline.site);
      return fmt::format(
          "{}, at most {} after the first contribution: its own usually comes after {:.1f} s, give "
          "or take {:.1f} s ({} known)",
          site, in_all, seconds_of(lateness.mean()), seconds_of(lateness.deviation()),
          lateness.samples());
    }
    case Why::none_known:
      return fmt::format("{}, at most {}: how late it usually is, is not known yet", site, in_all);
    case Why::progress:
      return fmt::format(
          "{}, at most {} ({}), and only while it shows progress: it is later than usual", site,
          in_all, straggler_wait_.why());
    case Why::own_ranks:
      return fmt::format(
          "its own ranks, at most {} ({}), and only while something is heard of them", in_all,
          straggler_wait_.why());
    case Why::away:
      return fmt::format("{}, {} and no more: it leaves, or nobody reaches it", site, in_all);
    case Why::unnamed_disk:
      return fmt::format(
          "{}, {} and no more: {}, and contributes from the step after the record that names the "
          "one it has now",
          deadline.site == self_ ? "this site" : site, in_all,
          current_view().vote_file_of(deadline.site) == kNoVoteFile
              ? "it has a vote file that no record names yet"
              : "it lost its vote file");
    case Why::votes:
      return fmt::format("votes, {}: four round trips, of {:.0f} ms at most, and 2 s", in_all,
                         seconds_of(peers_.longest_round_trip(current_view())) * 1e3);
    case Why::on_their_way:
      return fmt::format("contributions on their way to other sites, at most {} ({})", in_all,
                         straggler_wait_.why());
    case Why::returns:
      return fmt::format(
          "{}, at most {} if it comes no nearer: it was away, and replays what it missed", site,
          in_all);
  }
  return {};
}

// For a word that anybody may say at any time: what it costs grows with the number of sites.
void Gateway::consider_ballot_soon() {
  if (ballot_timer_) return;
  const auto at = ballot_considered_ + kBallotsApart;
  if (ballot_considered_ == 0 || at <= world_.loop.now()) return consider_ballot();
  ballot_timer_ = world_.loop.call_at(at, [this] {
    ballot_timer_.reset();
    consider_ballot();
  });
}

void Gateway::consider_ballot() {
  if (!agreement_ || !agreement_->may_vote() || agreement_->decided() || finished_ || applying_ ||
      checking_ || chain_.size() >= working_step())
    return;
  ++counters_.ballots_considered;
  const auto now = ballot_considered_ = world_.loop.now();
  const bool due = view_change_due();
  const auto *returns = awaited_return(), *wishes = awaited_wish();
  const auto since = waiting_since();
  const auto until = since ? deadline(*since) : Deadline();
  // Also where contributions are missing that would not be waited for any more.
  if (returns != nullptr && (all_held() || until.why == Deadline::Why::returns))
    returning_->holds_up(returns->site, now);
  if (wishes != nullptr && wishes != returns && all_held()) returning_->holds_up(wishes->site, now);
  agreement_->set_view_change_due(due || returns != nullptr || wishes != nullptr);
  if (!due) view_change_since_.reset();
  if (due && !view_change_since_) view_change_since_ = now;
  votes_.notify();
  if (now < next_ballot_at_) return;
  bool open = since && now >= until.at;
  if (due && !open && first_held_at_) {
    // A change of the view waits only for those whose contributions can come.
    const auto view = current_view();
    const auto lost = lost_disks(view);
    const bool here = std::all_of(view.members.begin(), view.members.end(), [&](SiteId m) {
      return agreement_->held().count(m) > 0 || (m != self_ && !peers_.reachable(m)) ||
             lost.contains(m);
    });
    open = here && now >= *first_held_at_ + (turn() + 1) * kGrace;
  }
  if (!open) return;
  const auto back_off = votes_late() << std::min(ballots_tried_, 4u);
  ++ballots_tried_;
  next_ballot_at_ =
      now + back_off +
      static_cast<Nanoseconds>(world_.random.uniform() * static_cast<double>(back_off));
  agreement_->open_ballot(!contributions_may_suffice());
  world_.log.info("ballot_opened", {.outer_step = static_cast<std::int64_t>(working_step())},
                  {{"ballot", agreement_->ballot_opened()},
                   {"held", static_cast<std::uint64_t>(agreement_->held().size())},
                   {"waited_for", since ? said(until, *since) : ""}});
  votes_.notify();
}

}  // namespace isthmus::inter
