// What a gateway says to its peers, and what it does with what they say.
#include <fmt/format.h>

#include <algorithm>

#include "inter/gateway.h"

namespace isthmus::inter {
namespace {

bool sees(const std::optional<Status>& status, SiteId site) {
  return status && std::ranges::count(status->sees, site) > 0;
}

}  // namespace

// --- From the wire

void Gateway::on_message(GatewayId from, Lane lane, ConnectionId connection,
                         const SharedBytes& message) {
  auto* peer = peers_.find(from.site);
  if (peer == nullptr || peer->link->peer() != from) return;
  const auto bytes = message.bytes();
  if (!bytes.empty() && bytes.front() == static_cast<std::byte>(kLinkTestFrame)) {
    if (lane == Lane::bulk) peer->link->note_other_bulk(bytes.size());
    link_tester_->on_message(from, lane, bytes.subspan(1));
  } else {
    peer->link->wire_message(lane, connection, message);
  }
  if (lane == Lane::control)
    record_server_.send_wanted();  // it may have acknowledged the last ones
}
void Gateway::on_up(GatewayId from, Lane lane, ConnectionId connection) {
  if (auto* peer = peers_.find(from.site); peer != nullptr && peer->link->peer() == from)
    peer->link->wire_up(lane, connection);
}
void Gateway::on_down(GatewayId from, Lane lane, ConnectionId connection) {
  if (auto* peer = peers_.find(from.site); peer != nullptr && peer->link->peer() == from)
    peer->link->wire_down(lane, connection);
  else
    return;
  const auto& peer = *peers_.find(from.site);
  if (peer.link->connected()) return;
  link_tester_->on_lost(from);
  if (peer.status && peer.status->leaving) peer.link->end("it was stopped");
}
void Gateway::on_writable(GatewayId from, Lane lane, ConnectionId connection) {
  if (auto* peer = peers_.find(from.site); peer != nullptr && peer->link->peer() == from)
    peer->link->wire_writable(lane, connection);
  if (lane == Lane::bulk) link_tester_->on_writable();
}

// --- From the links

Introduction Gateway::introduce() {
  return {.boot = boot_, .run = run_, .fingerprint = fingerprint_};
}

void Gateway::on_introduction(GatewayId peer, const Introduction& theirs) {
  if (auto* said = peers_.find(peer.site)) said->run = theirs.run;
}

std::string Gateway::objection(GatewayId peer, const Introduction& theirs) const {
  if (security::validity(roster_, world_.loop.clock().unix_time()) ==
      security::RosterValidity::expired)
    return "the roster has expired: ask the operator for a new one";
  if (run_ != security::Digest{} && theirs.run != security::Digest{} && run_ != theirs.run)
    return fmt::format("run: {} at {}, {} at {}", run_.hex().substr(0, 16), name_of(self_),
                       theirs.run.hex().substr(0, 16), name_of(peer.site));
  // Said at both ends: by name, because each end is the other's "there".
  return fingerprint_.difference(theirs.fingerprint, "at " + name_of(self_),
                                 "at " + name_of(peer.site));
}

void Gateway::on_session(Link& link, bool up) {
  auto* peer = peers_.of(link);
  peer->status.reset();
  peer->announced_step = 0;
  peer->saved_told.clear();
  records_asked_.erase(peer->site);
  if (up) {
    link.send(encode(my_signed_status()));
    if (const auto* saved = saved_.mine()) link.send(saved->message.encode());
  } else {
    if (exchange_) exchange_->session_ended(link);
    if (state_fetcher_) state_fetcher_->session_ended(link);
    if (returning_) returning_->went_away(peer->site, world_.loop.now());
  }
  changed_.notify();
}

void Gateway::on_chunk(Link& link, const ChunkArrival& arrival, const SharedBytes& payload) {
  if (!exchange_ || (state_fetcher_ && state_fetcher_->on_chunk(link, arrival, payload))) {
    if (!exchange_) link.settle(arrival, false);
    return;
  }
  exchange_->on_chunk(link, arrival, payload);
}

void Gateway::on_control(Link& link, std::span<const std::byte> message) {
  ByteReader in(message);
  const auto type = in.get<MessageType>();
  if (!in.ok()) return;
  if (is_signed(type)) {
    if (const auto decoded = decode_signed(type, in)) receive_signed(&link, *decoded);
    return;
  }
  switch (type) {
    case MessageType::status:
      if (const auto status = decode_status(in)) on_status(link, *status);
      break;
    case MessageType::record_request:
      if (const auto request = decode_record_request(in)) record_server_.on_request(link, *request);
      break;
    case MessageType::records:
      if (const auto records = decode_records(in)) on_records(link, *records);
      break;
    case MessageType::fetch:
      if (const auto fetch = decode_fetch(in); fetch && exchange_ && state_)
        exchange_->on_fetch(link, *fetch, state_->step);
      break;
    case MessageType::lacking:
      if (const auto lacking = decode_lacking(in); lacking && exchange_ && state_fetcher_) {
        if (lacking->site == kStateItself) state_fetcher_->on_lacking(link, lacking->step);
        exchange_->on_lacking(link, *lacking);
      }
      break;
    case MessageType::enough:
      if (const auto enough = decode_enough(in); enough && exchange_)
        exchange_->on_enough(link, *enough);
      break;
    case MessageType::state_request: {
      const auto request = decode_state_request(in);
      if (!request || !state_server_ || !state_ || !saved_any_) break;
      StepId id = step_id();
      id.step = saved_step_;
      const auto asked = request->step != 0 ? request->step : saved_step_;
      if (asked > saved_step_) break;
      returning_->asks_for_state(link.peer().site, asked, request->send, kept_from_);
      state_server_->on_request(link, *request, id);
      break;
    }
    default:
      break;
  }
}

// --- Signed messages

void Gateway::receive_signed(Link* from, const Signed& message) {
  const bool contribution = message.type == MessageType::open || message.type == MessageType::close;
  if (message.signer == self_) check_own_word(from, message);
  if (message.signer == self_ && !(contribution && exchange_ && exchange_->lacks_own())) return;
  if (message.type == MessageType::saved)
    receive_saved(from, message);
  else if (message.type == MessageType::accept && !genesis_)
    receive_founding(from, message);
  else if (state_ && exchange_)
    receive_in_step(from, message);
}

// Peers say back what this site said in the step at hand. It had that on its disk before: where the
// disk knows nothing of it, it is one of earlier, on which another vote could be cast and another
// contribution be made.
void Gateway::check_own_word(Link* from, const Signed& message) {
  if (failure_ || !state_ || !exchange_ || !agreement_ || step_of(message) != step_id() ||
      current_view().vote_file_of(self_) != vote_file_)
    return;
  const auto what = forgotten_in(message);
  if (what.empty() || !is_signed_well(from, message)) return;
  fail(Error{
      ErrorCode::corrupt,
      fmt::format("this site has signed {} in outer step {}, of which {} knows nothing: run_dir is "
                  "an older copy, or one of its files was lost. Put the newest one back; or, where "
                  "there is none, move {}/vote away: the site then votes and contributes again "
                  "once a record names its new vote file (where the other voters are no majority, "
                  "name the state to go on from: isthmus roster recover)",
                  what, working_step(), options_.folder, options_.folder)});
}

// What this site has not said, for all that it knows. "": it has, or it may have forgotten it.
std::string Gateway::forgotten_in(const Signed& message) const {
  if (message.type == MessageType::open) {
    const auto open = decode_open(message.body);
    const auto start = open ? Exchange::start_of_attempt(open->attempt) : 0;
    return start > Exchange::start_of_attempt(boot_ << 32) ? "a contribution of a later start" : "";
  }
  if (message.type == MessageType::close) {
    // What a crash has torn is known, and made anew where nobody has it.
    const auto k = working_step();
    if (damaged_step_ == k || taking_contribution_) return {};
    const auto close = decode_close(message.body);
    const auto own = exchange_->held(k, self_);
    const bool forgotten = own ? close && own->part().root != close->root : contributed_step_ < k;
    return close && forgotten ? "a contribution" : "";
  }
  const auto ballot = decode_ballot(message.type, message.body);
  if (!ballot || !agreement_->may_vote()) return {};  // or it has voted in a later step
  const auto& vote = agreement_->vote();
  if (const auto* accept = std::get_if<Accept>(&ballot->ballot)) {
    // One that was cast while this site's state was wrong counts no more (begin_step).
    const bool counts = accept->record.parent_root == state_root_;
    const bool known = vote.accepted && vote.accepted->ballot >= accept->ballot;
    return counts && !known ? fmt::format("a vote in ballot {}", accept->ballot) : std::string();
  }
  const auto number = std::visit([](const auto& said) { return said.ballot; }, ballot->ballot);
  return vote.promised < number ? fmt::format("a promise in ballot {}", number) : std::string();
}

// Of a peer that brings many that are not, no more are looked at for a while.
bool Gateway::is_signed_well(Link* from, const Signed& message) {
  // Of one in a newer roster those tell that have it.
  if (message.type == MessageType::saved && roster_.identity_of(message.signer) == nullptr)
    return false;
  auto* peer = from != nullptr ? peers_.of(*from) : nullptr;
  const auto now = world_.loop.now();
  auto* pace = peer == nullptr                ? nullptr
               : peer->site == message.signer ? &peer->bad_own
                                              : &peer->bad_passed_on;
  if (pace != nullptr && !pace->may(now)) return false;
  ++counters_.signatures_checked;
  if (verify(world_.verifier, message)) return true;
  ++counters_.bad_signatures;
  if (pace != nullptr) pace->take(now);
  if (const auto left_out = bad_signatures_.due(now))
    world_.log.alarm("bad_signature",
                     {.peer = peer != nullptr ? std::string_view(peer->name) : std::string_view()},
                     {{"signer", message.signer}, {"left_out", *left_out}});
  return false;
}

// Of one peer no more are looked at than a step may need.
bool Gateway::within_pace(Link* from, const Signed& message) {
  auto* peer = from != nullptr ? peers_.of(*from) : nullptr;
  if (peer == nullptr) return true;
  const bool own = peer->site == message.signer;
  const auto sites = roster_.sites.size();
  auto& pace = own ? peer->own_words : peer->passed_on;
  const auto budget = own ? SignedPace::Budget::own(sites) : SignedPace::Budget::passed_on(sites);
  const auto now = world_.loop.now();
  if (pace.take(message.type, budget, working_step(), now)) return true;
  ++counters_.signed_dropped;
  if (const auto left_out = peer->floods.due(now))
    world_.log.alarm("message_flood",
                     {.peer = peer->name, .outer_step = static_cast<std::int64_t>(working_step())},
                     {{"signer", message.signer},
                      {"kind", static_cast<std::uint64_t>(message.type)},
                      {"left_out", *left_out},
                      {"why", "it sends more signed messages of a kind than a step has use for"},
                      {"then", "what is beyond that is dropped"}});
  return false;
}

void Gateway::receive_saved(Link* from, const Signed& message) {
  const auto saved = decode_saved(message.body);
  if (!saved || saved->id.run != run_ || !within_pace(from, message) ||
      !is_signed_well(from, message))
    return;
  if (state_fetcher_) state_fetcher_->on_saved(from, message.signer, *saved);
  const bool from_signer = from != nullptr && from->peer().site == message.signer;
  if (!note_saved(message, *saved, from_signer)) return;
  if (saved_.passes_on(message.signer, saved->id.step, chain_.size() + 2, world_.loop.now()))
    relay_to_all(message, from);
}

// An Accept of record 0.
void Gateway::receive_founding(Link* from, const Signed& message) {
  const auto ballot = decode_ballot(message.type, message.body);
  if (!ballot || ballot->id.step != 0 || !within_pace(from, message) ||
      !is_signed_well(from, message))
    return;
  // Its signer says it every second; it is passed on no more often, so that it cannot go round.
  auto& relayed = genesis_relayed_[message.signer];
  if (world_.loop.now() - relayed >= kSecond / 2 || relayed == 0) {
    relayed = world_.loop.now();
    relay_to_all(message, from);
  }
  on_genesis_accept(message.signer, std::get<Accept>(ballot->ballot), message.signature);
}

// Of this step, or not for us: whoever is elsewhere says so in its status, and is told again what
// stands.
void Gateway::receive_in_step(Link* from, const Signed& message) {
  const auto id = step_of(message);
  // A fetched contribution's announcement comes again, to begin the transfer anew: it is not
  // dropped as known.
  const bool known = said_.knows(message);
  if (id != step_id() ||
      (known && message.type != MessageType::open && message.type != MessageType::close))
    return;
  if (!within_pace(from, message)) return;
  if (!known && !is_signed_well(from, message)) return;
  const auto decoded = decode_ballot(message.type, message.body);
  const auto* ballot = decoded ? &decoded->ballot : nullptr;
  if (ballot != nullptr && leads_too_far(*ballot)) return;
  if (!known && counts_in_step(message, ballot) && said_.note(message) &&
      said_.passes_on(message, world_.loop.now()))
    relay(message, from);
  if (message.type == MessageType::open) {
    exchange_->on_open(from, message);
    count_waits();
  } else if (message.type == MessageType::close) {
    exchange_->on_close(from, message);
  } else if (ballot != nullptr) {
    receive_ballot(message, *ballot);
  }
}

// To ballots after which no higher one would be left: whoever has promised one of them is lost for
// the step, and its leader cannot be kept out without deciding it. A message that does not arrive
// costs no more than time, and is said again in the next ballot.
bool Gateway::leads_too_far(const Ballot& ballot) const {
  if (!std::holds_alternative<Prepare>(ballot) && !std::holds_alternative<Propose>(ballot))
    return false;
  const auto number = std::visit([](const auto& said) { return said.ballot; }, ballot);
  const auto seconds = static_cast<std::uint64_t>((world_.loop.now() - step_began_) / kSecond);
  return number > promised_before_ + kBallotsFollowed * (1 + seconds);
}

// Only that is kept, and passed on: anybody can sign anything.
bool Gateway::counts_in_step(const Signed& message, const Ballot* ballot) const {
  const auto view = current_view();
  switch (message.type) {
    case MessageType::open:
      return exchange_->admits(message);
    case MessageType::close:
      return view.is_member(message.signer) && decode_close(message.body).has_value();
    default:
      return view.is_voter(message.signer) && ballot != nullptr && names_members_only(*ballot);
  }
}

// As contributors, in the view of the step: so a ballot is no longer than those of honest voters,
// but for what it says of the next view, which may follow a roster that this site does not have.
bool Gateway::names_members_only(const Ballot& ballot) const {
  const auto view = current_view();
  const auto are_members = [&](const std::vector<Part>& parts) {
    return std::ranges::all_of(parts, [&](const Part& part) { return view.is_member(part.site); });
  };
  const auto fits = [&](const Record& record) {
    return record.view == view && are_members(record.parts);
  };
  if (const auto* promise = std::get_if<Promise>(&ballot))
    return are_members(promise->held) && (!promise->accepted || fits(promise->accepted->record));
  if (const auto* propose = std::get_if<Propose>(&ballot)) return fits(propose->record);
  if (const auto* accept = std::get_if<Accept>(&ballot)) return fits(accept->record);
  return true;
}

void Gateway::receive_ballot(const Signed& message, const Ballot& ballot) {
  if (!agreement_) return;
  const auto promised = agreement_->vote().promised;
  agreement_->receive(message.signer, ballot, message.signature);
  const auto* promise = std::get_if<Promise>(&ballot);
  if (promise != nullptr && current_view().is_voter(message.signer))
    exchange_->note_held_elsewhere(message.signer, promise->held);
  if (agreement_->vote().promised > promised) {
    // Another voter leads: give it time.
    next_ballot_at_ =
        std::max(next_ballot_at_, world_.loop.now() + votes_late() +
                                      static_cast<Nanoseconds>(world_.random.uniform() * 1e9));
  }
  exchange_->want({agreement_->lacking().begin(), agreement_->lacking().end()},
                  Exchange::Named::by_ballot);
  exchange_->consider_fetching();
  votes_.notify();
  if (agreement_->decided()) changed_.notify();
}

// Passes a signed message of this step on to those that do not see its signer.
void Gateway::relay(const Signed& message, Link* from) {
  for (auto* peer : peers_.working_on(working_step())) relay_to(*peer, message, from);
}

void Gateway::relay_to_all(const Signed& message, Link* from) {
  for (auto& [site, peer] : peers_.all())
    if (peer.link->up() && peer.status) relay_to(peer, message, from);
}

void Gateway::relay_to(PeerSite& peer, const Signed& message, Link* from) {
  if (message.signer == self_ || message.signer == peer.site || peer.link.get() == from ||
      sees(peer.status, message.signer))
    return;
  peer.link->send(message.encode());
  ++counters_.relayed_messages;
}

void Gateway::broadcast_signed(const Signed& message) {
  for (auto* peer : peers_.working_on(working_step())) peer->link->send(message.encode());
}

// Everything that stands in this step, for a peer that has just said that it works on it too.
void Gateway::announce_step(PeerSite& peer) {
  if (!state_ || finished_) return;
  peer.announced_step = working_step();
  exchange_->announce(*peer.link);
  if (agreement_ && persisted_version_ >= agreement_->vote_version())
    for (const auto& standing : agreement_->standing())
      peer.link->send(sign(world_.signer, self_, step_id(), standing.message).encode());
  said_.each([&](const Signed& message) {
    if (message.signer == peer.site)
      peer.link->send(message.encode());
    else
      relay_to(peer, message, nullptr);
  });
  exchange_->say_back(*peer.link);
}

// --- Status

// Once its ranks compute: a site of which nothing comes would be dropped and taken in for ever.
bool Gateway::wants_in() const {
  return state_ && !current_view().is_member(self_) && may_join(self_) && !ranks_leaving_ &&
         disk_takes() && rank_pulse_.compute(world_.loop.now()) && chain_.size() < working_step();
}

Status Gateway::my_status() const {
  Status s;
  const auto now = world_.loop.now();
  // Before it has begun its step, nothing of that can be told to it.
  s.step = begun_ ? working_step() : 0;
  s.leaving = stopping_ || ranks_leaving_;
  // Whoever cannot write contributes nothing, however its ranks compute: nobody waits for it. What
  // it has contributed counts while that step is open.
  const bool is_open = exchange_ && state_ && chain_.size() < working_step();
  const bool makes = rank_pulse_.live(now) || (is_open && exchange_->contributing());
  s.contributes =
      !ranks_leaving_ && ((makes && disk_takes()) || (is_open && exchange_->contributed()));
  s.wants_in = wants_in();
  s.finished = finished_;
  s.vote_file = vote_file_;
  s.roster_epoch = roster_.epoch;
  s.first_record = kept_from_;
  s.sees = peers_.seen();
  if (exchange_ && state_) s.holds = exchange_->holds_soon();
  const auto view = current_view();
  for (const auto& [site, peer] : peers_.all()) {
    if (!peer.link->up() || !peer.status || peer.status->step != s.step) continue;
    if (peer.status->contributes) s.sees_contribute.push_back(site);
    if (std::ranges::includes(peer.status->holds, view.members)) s.sees_complete.push_back(site);
  }
  for (auto wish : peers_.wishes(s.step, self_))
    if (wish.hops++ < Wish::kHopsMax && changes(view, wish)) s.wishes.push_back(wish);
  return s;
}

Status Gateway::my_signed_status() {
  auto status = my_status();
  status.wish_signature = signature_of(status.step, status.own_wish(self_));
  return status;
}

void Gateway::send_status() {
  last_status_ = world_.loop.now();
  const auto status = my_signed_status();
  last_status_bytes_ = encode_own(status);
  peers_.send_to_all(encode(status));
}

// One signature for each step and wish.
security::Signature Gateway::signature_of(std::uint64_t step, const Wish& wish) {
  auto body = wish_body(wishes_are_of(), step, wish);
  if (body != signed_wish_.body) {
    const auto signature = world_.signer.sign(security::context::wish, body);
    signed_wish_ = {std::move(body), signature};
  }
  return signed_wish_.signature;
}

const security::Digest& Gateway::wishes_are_of() const { return genesis_ ? run_ : roster_.digest; }

// Only what may count is looked at: not of steps that are over, nor of sites that we see ourselves.
bool Gateway::may_be_wished(PeerSite& by, std::uint64_t step, const Wish& wish) {
  if (step < working_step() || wish.site == self_ || roster_.find(wish.site) == nullptr ||
      peers_.sees(wish.site))
    return false;
  auto body = wish_body(wishes_are_of(), step, wish);
  auto& known = checked_wishes_[wish.site];
  if (known.body == body && known.signature == wish.signature) return true;
  const auto now = world_.loop.now();
  if (!by.bad_passed_on.may(now)) return false;
  if (!world_.verifier.verify(wish.site, security::context::wish, body, wish.signature)) {
    ++counters_.bad_signatures;
    by.bad_passed_on.take(now);
    return false;
  }
  known = {std::move(body), wish.signature};
  return true;
}

void Gateway::on_status(Link& link, const Status& status) {
  auto& peer = *peers_.of(link);
  const auto before = std::exchange(peer.status, status);
  std::erase_if(peer.status->wishes,
                [&](const Wish& wish) { return !may_be_wished(peer, status.step, wish); });
  peer.vote_file = status.vote_file;
  const auto now = world_.loop.now();
  if (status.contributes) peer.last_progress = now;
  if (status.wants_in) peer.wished_at = now;
  if (status.step == working_step())
    for (const auto site : status.sees_contribute)
      if (auto* other = peers_.find(site); other != nullptr && !other->link->up())
        other->last_progress = now;
  pass_on_saved(peer, before);
  if (!genesis_) {
    changed_.notify();
    return;
  }
  ask_for_records(peer);
  if (status.step == working_step() && peer.announced_step != status.step) announce_step(peer);
  if (exchange_ && state_) exchange_->consider_fetching();
  if (begun_) note_return(peer);
  changed_.notify();
}

// Of members nothing is held up: their contributions are waited for.
void Gateway::note_return(const PeerSite& peer) {
  returning_->works_on(peer.site, peer.status->step, working_step(), kept_from_, world_.loop.now());
  if (current_view().is_member(peer.site))
    returning_->is_member(peer.site);
  else
    consider_ballot_soon();
}

// --- Saved

void Gateway::announce_saved(Saved saved) {
  saved.revision = saved_.next_revision(saved.id.step);
  const auto message = sign(world_.signer, self_, MessageType::saved, encode(saved));
  peers_.send_to_all(message.encode());
  note_saved(message, saved, true);
}

// True: it is news.
bool Gateway::note_saved(const Signed& message, const Saved& saved, bool from_signer) {
  if (!saved_.note(message, saved, from_signer)) return false;
  for (const auto other : saved_.differing_spots(message.signer))
    if (const auto left_out = differing_spots_.due(world_.loop.now()))
      world_.log.alarm(
          "spot_root_differs", {.outer_step = static_cast<std::int64_t>(saved.id.step)},
          {{"signer", other}, {"root", saved.state_root.hex()}, {"left_out", *left_out}});
  prune();
  changed_.notify();
  return true;
}

// All voters, where the operator has said what the state is: those of its view may be lost.
std::size_t Gateway::vouch_for(std::uint64_t step, const security::Digest& root) const {
  const auto view = current_view();
  if (const auto* given = recovery_before(step + 1))
    return given->root == root ? view.voters.size() : 0;
  return saved_.vouching(view, step, root);
}

// What others have saved, for a peer whose session is new or that lost sight of them, and may not
// have heard them: it prunes by it, and the last state has no other proof. The same once in a
// session, however often it loses sight of them.
void Gateway::pass_on_saved(PeerSite& peer, const std::optional<Status>& before) {
  for (const auto& [site, known] : saved_.all()) {
    if (site == self_ || site == peer.site || (before && !sees(before, site)) ||
        sees(peer.status, site))
      continue;
    const auto digest = known.message.digest();
    if (std::exchange(peer.saved_told[site], digest) != digest)
      peer.link->send(known.message.encode());
  }
}

}  // namespace isthmus::inter
