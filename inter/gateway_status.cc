// What a gateway shows of itself.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/counted.h"
#include "base/listed.h"
#include "inter/gateway.h"

namespace isthmus::inter {

GatewayStatus Gateway::status() const {
  GatewayStatus s;
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
  s.attention = attention();
  s.waits = waits_;
  // What the step waits for without an end has no deadline.
  if (const auto since = waiting_since(); since && missed_sites().empty() && agreement_ &&
                                          !agreement_->decided() && !finished_ && !applying_) {
    const auto until = deadline(*since);
    s.deadline_s = std::max(0.0, seconds_of(until.at - world_.loop.now()));
    s.deadline = said(until, *since);
  }
  const auto behind = this->behind();
  s.phase = finished_                                                   ? "finished"
            : !layout_                                                  ? "waiting for ranks"
            : !genesis_ || !exchange_                                   ? "starting"
            : !state_ || (state_fetcher_ && state_fetcher_->fetching()) ? "catching up"
            : !disk_takes()                                             ? "waiting for the disk"
            : behind > 1                                                ? "catching up"
            : applying_                                                 ? "applying"
            : exchange_->contributed() || taking_contribution_          ? "exchanging"
            : rank_pulse_.here()                                        ? "training"
                                                                        : "waiting for ranks";
  const auto* self = roster_.find(self_);
  const bool nobody_dials_us = self->gateways.empty() || self->gateways[0].address.empty();
  for (const auto& [id, peer] : peers_.all()) {
    auto link = peer.link->status();
    if (link.state == "connecting" && link.address.empty() && nobody_dials_us)
      link.state = "no address";
    const auto [tests, others] = link_tester_->shares(peer.link->peer());
    link.wire_sent_bytes = others.sent;
    link.wire_received_bytes = others.received;
    link.link_test_sent_bytes = tests.sent;
    link.link_test_received_bytes = tests.received;
    if (link.waiting_for.empty() && exchange_ && state_ && !finished_ && exchange_->contributed())
      link.waiting_for = exchange_->held(working_step(), id) ? "vote"
                         : exchange_->arriving(id)           ? "transfer"
                                                             : "contribution";
    s.links.push_back(std::move(link));
  }
  if (ranks_) s.ranks = ranks_->status();
  if (!finished_ && rank_pulse_.hang(world_.loop.now()))  // what they said last is not so any more
    for (auto& rank : s.ranks)
      rank.state =
          fmt::format("silent for {:.0f} s", seconds_of(rank_pulse_.silence(world_.loop.now())));
  if (s.phase == "catching up") {
    if (behind > 0) s.catching_up_to = s.outer_step + behind;
    // What they trained before is no news.
    for (auto& rank : s.ranks) rank.loss = rank.tokens_per_second = 0;
  }
  return s;
}

// One is a step that has just been decided. What others have decided is known by their word alone:
// what half of the voters in sight say, so that no single one of several makes us seem behind.
std::uint64_t Gateway::behind() const {
  const auto view = current_view();
  std::vector<std::uint64_t> said;
  for (const auto& [site, peer] : peers_.all())
    if (peer.link->up() && peer.status && peer.status->step > 0 && view.is_voter(site))
      said.push_back(peer.status->step - 1);
  std::uint64_t decided = chain_.size();
  if (!said.empty()) {
    const auto middle = said.begin() + static_cast<std::ptrdiff_t>((said.size() - 1) / 2);
    std::ranges::nth_element(said, middle);
    decided = std::clamp(*middle, decided, std::max(decided, options_.sync.outer_steps));
  }
  const auto applied = state_ ? state_->step : 0;
  return decided - std::min(decided, applied);
}

Task<void> Gateway::news(Nanoseconds until) { co_await changed_.wait_until(until); }

// "": there are enough.
std::string Gateway::too_few_members() const {
  const auto members = genesis_ ? current_view().members.size() : 0;
  if (!genesis_ || finished_ || members >= options_.sync.min_sites) return {};
  return fmt::format("no step is made until more sites join: the run has {}, and min_sites = {}",
                     counted(members, "member"), options_.sync.min_sites);
}

// Sites without which nothing goes on here, and what that means. "": none.
std::string Gateway::missed_sites() const {
  if (!layout_ || stopping_) return {};
  if (finished_) {
    std::vector<SiteId> without_end;
    for (const auto site : peers_.seen())
      if (!has_the_end(site)) without_end.push_back(site);
    if (without_end.empty()) return {};
    return fmt::format("{} to have saved the last step", listed(names_of(without_end)));
  }
  if (!genesis_) return founding_waits_for();
  if (const auto* given = recovery_ahead())
    return fmt::format(
        "a site that has the state from which the roster goes on: step {} with the root {}; this "
        "site has step {}{}. If no site has it, the operator names one that some site has (isthmus "
        "roster recover --replace)",
        given->step, given->root.hex(), state_ ? state_->step : 0,
        state_ ? fmt::format(" with the root {}", state_root_.hex()) : "");
  const auto view = current_view();
  const auto without_votes = voters_without_votes(view);
  std::vector<std::string> away;
  auto left = view.voters.size();
  for (const auto voter : view.voters) {
    const bool reachable = voter == self_ || peers_.reachable(voter);
    if (!reachable) away.push_back(name_of(voter));
    if (!reachable || std::ranges::find(without_votes, voter) != without_votes.end()) --left;
  }
  if (!away.empty() && left < view.majority())
    return fmt::format("{}: no outer step is decided without a majority of the voters{}",
                       some_of(away, view.majority() - left),
                       without_votes.empty()
                           ? ""
                           : fmt::format(", and no record names the vote file of {}",
                                         listed(names_of(without_votes))));
  if (!state_ && peers_.seen().empty()) return "any site that has the run's state";
  if (agreement_ && exchange_ && state_ && !agreement_->decided() && !contributions_may_suffice()) {
    std::vector<SiteId> idle;
    for (const auto& [site, peer] : peers_.all())
      if (view.is_member(site) && agreement_->held().count(site) == 0 && !progresses(peer))
        idle.push_back(site);
    if (!idle.empty())
      return fmt::format(
          "{}: nothing comes of {}, and an outer step is made of min_sites = {} contributions at "
          "least",
          listed(names_of(idle)), idle.size() > 1 ? "them" : "it", options_.sync.min_sites);
  }
  return {};
}

std::vector<std::string> Gateway::names_of(const std::vector<SiteId>& sites) const {
  std::vector<std::string> names;
  for (const auto site : sites) names.push_back(site == self_ ? "this site" : name_of(site));
  return names;
}

// None that is worth a word here: those of others come back by themselves, as long as there is a
// majority without them.
Gateway::LostVotes Gateway::lost_votes() const {
  if (!begun_ || finished_ || recovery_ahead() != nullptr) return {};  // the view may be an old one
  const auto view = current_view();
  auto lost = voters_without_votes(view);
  if (view.voters.size() - lost.size() < view.majority()) return {std::move(lost), true};
  if (lacked_vote_) return {{self_}, false};
  return {};
}

// "": of none.
std::string Gateway::sentence_of(const LostVotes& lost) const {
  if (lost.sites.empty()) return {};
  const bool one = lost.sites.size() == 1;
  const auto view = current_view();
  const bool named = std::ranges::any_of(
      lost.sites, [&](SiteId site) { return view.vote_file_of(site) != kNoVoteFile; });
  const auto names = listed(names_of(lost.sites));
  const auto file =
      named ? fmt::format("{} lost {} (or run_dir is another folder than before)", names,
                          one ? "its vote file" : "their vote files")
            : fmt::format("no record names the vote file{} of {} yet", one ? "" : "s", names);
  if (!lost.stop_the_run)
    return file + (named ? ": it does not vote until a record names its new one"
                         : ": it votes from then on");
  return fmt::format(
      "{}, and no record is decided without {}: the operator says where to go on "
      "(isthmus roster recover)",
      file, one ? "it" : "them");
}

void Gateway::say_lost_votes() {
  const auto lost = lost_votes();
  if (lost == lost_votes_said_) return;
  // Of its own alone note_vote() has told.
  if (!lost.sites.empty() && lost.sites != std::vector{self_})
    world_.log.alarm("votes_lost", {}, {{"why", sentence_of(lost)}});
  lost_votes_said_ = lost;
}

// A link that breaks for a moment is not worth a word.
void Gateway::say_missed_sites() {
  constexpr Nanoseconds kPatience = 20 * kSecond, kAgain = 120 * kSecond;
  const auto missed = missed_sites();
  const auto now = world_.loop.now();
  if (missed.empty()) {
    if (missed_said_) world_.log.info("sites_are_back", {}, {});
    missed_since_.reset();
    missed_said_.reset();
    return;
  }
  if (!missed_since_) missed_since_ = now;
  if (now - *missed_since_ < kPatience || (missed_said_ && now - *missed_said_ < kAgain)) return;
  missed_said_ = now;
  world_.log.warning("sites_missed", {}, {{"waits_for", missed}});
}

// "": they are heard, or nothing is expected of them.
std::string Gateway::silent_ranks() const {
  const auto silence = rank_pulse_.silence(world_.loop.now()), patience = rank_pulse_.patience();
  if (finished_ || silence < patience / 2) return {};
  const auto view = current_view();
  const auto others = view.members.size() - (view.is_member(self_) ? 1 : 0);
  const bool others_go_on = genesis_ && others >= std::max<std::size_t>(options_.sync.min_sites, 1);
  const auto then = others_go_on ? "the others go on without them" : "nothing goes on without them";
  if (silence < patience)
    return fmt::format(
        "nothing was heard of its ranks for {:.0f} s; after {:.0f} s they count as hanging, and {}",
        seconds_of(silence), seconds_of(patience), then);
  return fmt::format(
      "its ranks hang: they are connected, and nothing was heard of them for {:.0f} s; {}. See "
      "what they wait for, or start them again",
      seconds_of(silence), then);
}

void Gateway::say_hanging_ranks() {
  if (finished_) return;  // nothing is expected of them any more, and nothing said
  const bool hang = rank_pulse_.hang(world_.loop.now());
  if (hang == std::exchange(ranks_hang_, hang)) return;
  if (hang)
    world_.log.warning("ranks_hang", {}, {{"why", silent_ranks()}});
  else
    world_.log.info("ranks_hang_no_more", {}, {{"here", rank_pulse_.here()}});
}

// What is so now, unlike the event log, which says when it became so.
std::vector<std::string> Gateway::attention() const {
  std::vector<std::string> all;
  if (failure_) all.push_back(fmt::format("it ends: {}", failure_->text()));
  // At the end others take a moment.
  if (const auto missed = missed_sites(); !missed.empty() && (!finished_ || missed_said_))
    all.push_back(fmt::format("it waits for {}", missed));
  if (!genesis_ && !genesis_refused_.empty()) all.push_back(genesis_refused_);
  for (const auto& [id, peer] : peers_.all())
    if (const auto& why = peer.link->refused(); !why.empty())
      all.push_back(fmt::format("no session with {}: {}", name_of(id), why));
  if (const auto lost = lost_votes(); !lost.sites.empty()) all.push_back(sentence_of(lost));
  if (const auto few = too_few_members(); !few.empty()) all.push_back(few);
  if (exchange_ && !exchange_->disk_refuses().empty())
    all.push_back(
        fmt::format("its contributions cannot be written, and are tried again; the "
                    "others go on without it where they can: {}",
                    exchange_->disk_refuses()));
  if (!not_saved_why_.empty())
    all.push_back(fmt::format("the state cannot be saved, and is tried again: {}", not_saved_why_));
  if (const auto silent = silent_ranks(); !silent.empty()) all.push_back(silent);
  if (disputed_since_ || differs_long())
    all.push_back("its state differs from that of others: it is computed again, or fetched");
  return all;
}

}  // namespace isthmus::inter
