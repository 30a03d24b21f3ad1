// The handshake of a Link, and whose a connection is.
#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "inter/link.h"

namespace isthmus::inter {
namespace {

// A hello that was on its way on a connection that ended is not older than this.
constexpr Nanoseconds kStaleHelloMax = 10 * kSecond;
// Of the bulk lane, in turn: an idle link's many connections cost next to nothing.
constexpr std::size_t kBindsPerHeartbeat = 8;

std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
  const auto mixed = Random(a).split(b).at(0);
  return mixed == 0 ? 1 : mixed;
}

// The same for both ends, of which each names itself first: "codec: int8 at alpha, bf16 at beta" is
// the other's "codec: bf16 at beta, int8 at alpha".
std::string fact_of(std::string_view why) {
  std::vector<std::string_view> words;
  while (!why.empty()) {
    const auto word = why.substr(0, why.find_first_of(" ,"));
    if (!word.empty()) words.push_back(word);
    why.remove_prefix(std::min(word.size() + 1, why.size()));
  }
  std::ranges::sort(words);
  return fmt::format("{}", fmt::join(words, " "));
}

}  // namespace

void Link::expect_chunks(std::uint64_t bytes_max) {
  chunk_bytes_max_ = bytes_max;
  set_window(options_.window_bytes);
}

void Link::set_window(std::uint64_t bytes) {
  const auto fitting = std::min<std::uint64_t>(bytes / chunk_bytes_max_, kInFlightMax);
  window_chunks_ = std::max(options_.window_chunks, static_cast<std::uint32_t>(fitting));
  window_bytes_ = std::max(bytes, window_chunks_ * chunk_bytes_max_);
}

std::uint64_t Link::window_bytes_max() const {
  return std::max(options_.window_bytes, options_.window_bytes_max);
}

// On every heartbeat. A window that is full in each round trip may be what keeps the peer from
// sending more: it is to be twice what came in one. It never shrinks, since what it may take is the
// operator's to say.
void Link::consider_window() {
  brought_in_trip_ = 0;
  if (samples_.size() < 2) return;
  const auto& now = samples_.back();
  const auto& before = samples_[samples_.size() - 2];
  // A loop that was held up is given at once what came meanwhile.
  if (now.when - before.when < options_.heartbeat / 2) return;
  const auto rate = now.bulk_since(before) / seconds_of(now.when - before.when);
  brought_in_trip_ = rate * seconds_of(round_trip_.mean());
  const auto most = window_bytes_max();
  const auto wanted = std::min(2 * brought_in_trip_, static_cast<double>(most));
  if (wanted > static_cast<double>(window_bytes_)) set_window(static_cast<std::uint64_t>(wanted));
  if (brought_in_trip_ < kWindowFull * static_cast<double>(most)) return;
  if (const auto left_out = window_logged_.due(loop_.now()))
    log_.warning("window_full", {.peer = peer_name_},
                 {{"window_bytes", most},
                  {"received_mbit_s", rate * 8e-6},
                  {"round_trip_ms", seconds_of(round_trip_.mean()) * 1e3},
                  {"left_out", *left_out}});
}

void Link::start() {
  started_ = true;
  next_hello_ = loop_.now();
  arm_timer();
}

void Link::wire_up(Lane which, ConnectionId connection) {
  if (which == Lane::control) {
    control_.up(connection);
    if (session_ != 0) {
      bind(which, connection, 0);
      pump_control();
      if (unsent_acks_ > 0) send_ack(Acks::unsent);
    } else {
      next_hello_ = loop_.now();
    }
    arm_timer();
    return;
  }
  bulk_connections_.up(connection);
  if (session_ != 0) bind(which, connection, bulk_connections_.live().back().place);
  use_bulk();
  consider_width();
}

// The session outlives its connections: unacknowledged messages go again, on the next one.
void Link::wire_down(Lane which, ConnectionId connection) {
  if (which == Lane::bulk) {
    bulk_connections_.down(connection);
    use_bulk();
    return;
  }
  control_.down(connection);
  came_since_all_acks_ = kCameForAllAcks;  // what it took may be lost
  if (challenger_ && challenger_->connection == connection) challenger_.reset();
  pump_control();
}

// --- Handshake

void Link::send_hello(ConnectionId connection) {
  Hello hello;
  hello.nonce = nonce_;
  hello.echo = their_nonce_;
  hello.up = session_ != 0;
  hello.introduction = owner_.introduce();
  send_control(hello.encode(), connection);
}

void Link::receive_hello(ConnectionId connection, const Hello& hello) {
  if (hello.version != kProtocolVersion) {
    refuse(connection,
           fmt::format("protocol version: {} here, {} there", kProtocolVersion, hello.version));
    return;
  }
  const bool new_process = session_ != 0 && hello.nonce != their_nonce_;
  if (new_process && hello.nonce == their_nonce_before_ &&
      loop_.now() - their_nonce_since_ < kStaleHelloMax)
    return;
  if (new_process && control_.current() != 0 && connection != control_.current()) {
    // A restart whose old connection nobody has missed yet, or a second process with this identity?
    // The other end of the session answers or not: three heartbeats leave room for one that is
    // lost.
    if (!challenger_) {
      const auto now = loop_.now();
      challenger_ = Challenger{connection, hello.nonce, hello.introduction.boot, now,
                               now + 3 * options_.heartbeat + 4 * round_trip_.mean()};
      send_ack(Acks::unsent);
      arm_timer();
    }
    return;
  }
  // What is said again in a session was looked at when it began, and the session goes on.
  const bool may_begin = session_ == 0 || new_process;
  if (may_begin) owner_.on_introduction(peer_, hello.introduction);
  const auto objection = may_begin ? owner_.objection(peer_, hello.introduction) : "";
  if (!objection.empty()) {
    refuse(connection, objection);
    return;
  }
  if (new_process) end_session("the peer began anew", false);
  const bool was_up = session_ != 0;
  note_nonce(hello.nonce);
  if (was_up)
    control_.prove(connection);
  else
    control_.choose(connection);
  // Whoever begins anew all the time waits: each session is told to all the gateway, and logged.
  const bool begins = hello.echo == nonce_ && !was_up && sessions_begun_.take(loop_.now());
  if (begins) begin_session(hello.nonce, hello.introduction.boot);
  // Before anything else: the peer's session may begin with it, and it drops what comes earlier.
  if (!(hello.up && session_ != 0) && hellos_answered_.take(loop_.now())) send_hello(connection);
  if (begins) owner_.on_session(*this, true);
}

void Link::note_nonce(std::uint64_t theirs) {
  if (theirs == their_nonce_) return;
  if (their_nonce_ != 0) their_nonce_before_ = their_nonce_;
  their_nonce_ = theirs;
  their_nonce_since_ = loop_.now();
}

void Link::begin_session(std::uint64_t their_nonce, std::uint64_t their_boot) {
  session_ = self_ < peer_ ? mix(nonce_, their_nonce) : mix(their_nonce, nonce_);
  their_boot_ = their_boot;
  refused_.clear();
  refusals_said_ = {};
  next_sequence_ = 1;
  unacknowledged_.clear();
  unacknowledged_bytes_ = 0;
  unsent_ = 1;
  probed_ = 0;
  probes_ = 0;
  received_ = 0;
  beyond_gap_.clear();
  beyond_gap_bytes_ = 0;
  last_heard_ = loop_.now();
  their_stamp_at_ = 0;
  round_trip_.new_session();
  highest_received_ = 0;
  their_floor_ = 0;
  unsettled_ = 0;
  unsettled_bytes_ = 0;
  stalled_.clear();
  recent_acks_.clear();
  unsent_acks_ = 0;
  came_since_all_acks_ = 0;
  ++counters_.sessions;
  bulk_.begin(session_);
  if (const auto left_out = begins_logged_.due(loop_.now()))
    log_.info("session_began", {.peer = peer_name_},
              {{"their_boot", their_boot}, {"left_out", *left_out}});
  their_width_ = 1;
  their_width_max_said_ = false;
  for (const auto& connection : bulk_connections_.live())
    bind(Lane::bulk, connection.id, connection.place);
  consider_width();
  arm_timer();
}

void Link::end_session(const std::string& why, bool reset_wire) {
  if (session_ == 0) return;
  session_ = 0;
  nonce_ = random_.next();
  their_nonce_before_ = std::exchange(their_nonce_, 0);
  challenger_.reset();
  unacknowledged_.clear();
  unacknowledged_bytes_ = 0;
  beyond_gap_.clear();
  beyond_gap_bytes_ = 0;
  bulk_.end();
  next_hello_ = loop_.now();
  if (const auto left_out = ends_logged_.due(loop_.now()))
    log_.warning("session_ended", {.peer = peer_name_}, {{"why", why}, {"left_out", *left_out}});
  if (const auto used = control_.current(); reset_wire && used != 0) {
    wire_.reset(peer_, Lane::control, used);
    control_.down(used);
  }
  control_.forget_session();
  if (reset_wire) {
    for (const auto& connection : bulk_connections_.live())
      wire_.reset(peer_, Lane::bulk, connection.id);
    bulk_connections_.clear();
  } else {
    bulk_connections_.forget_session();
  }
  use_bulk();
  arm_timer();
  owner_.on_session(*this, false);
}

Nanoseconds Link::silence_limit() const {
  return std::max(options_.silence, 8 * round_trip_.mean() + 4 * round_trip_.deviation());
}

// --- Refusals

// Both ends go on asking, and both refuse for as long as nobody mends it: it is said once a minute.
// A peer that thinks of another reason each time gains nothing by it.
std::optional<std::uint64_t> Link::refusal_due(RefusalSaid& said, std::string_view why) {
  const auto now = loop_.now();
  auto fact = fact_of(why);
  for (const auto& other : refusals_said_)
    if (other.fact == fact && now - other.when < kRefusedKeysApart) {
      refusals_logged_.leave_out();
      return std::nullopt;
    }
  const auto left_out = refusals_logged_.due(now);
  if (left_out) said = {std::move(fact), now};
  return left_out;
}

void Link::refuse(ConnectionId connection, const std::string& why) {
  if (const auto left_out = refusal_due(refusals_said_[0], why))
    log_.alarm("session_refused", {.peer = peer_name_}, {{"why", why}, {"left_out", *left_out}});
  if (session_ == 0) refused_ = why;
  send_control(Refuse{.why = why}.encode(), connection);
}

void Link::receive_refuse(ConnectionId connection, const Refuse& refuse) {
  const auto session_connection = control_.current();
  if (session_ != 0 && session_connection != 0 && connection != session_connection) return;
  if (const auto left_out = refusal_due(refusals_said_[1], refuse.why))
    log_.alarm("session_refused_by_peer", {.peer = peer_name_},
               {{"why", refuse.why}, {"left_out", *left_out}});
  if (refuse.kind == Refuse::Kind::duplicate) count_duplicate_refusal();
  end_session("refused by the peer: " + refuse.why, false);
  refused_ = refuse.why;
}

// What comes unasked, or sooner than who was refused asks again, is no further refusal.
void Link::count_duplicate_refusal() {
  if (!asked_ || (refused_ask_ && *asked_ - *refused_ask_ < kRefusedAsksApart * options_.heartbeat))
    return;
  refused_ask_ = asked_;
  ++counters_.refused_as_duplicate;
}

// The session's other end lives: the challenger is a second process. Or a start before that one, of
// which a hello was on its way for long; who lives says it again.
void Link::refuse_challenger() {
  const auto challenger = *std::exchange(challenger_, std::nullopt);
  const bool earlier = challenger.boot < their_boot_;
  if (!earlier || std::exchange(earlier_refused_, challenger.nonce) == challenger.nonce)
    log_.alarm("duplicate_identity", {.peer = peer_name_},
               {{"boot", challenger.boot}, {"boot_in_session", their_boot_}});
  const Refuse refuse{Refuse::Kind::duplicate,
                      "another live process uses this identity: stop one of them"};
  send_control(refuse.encode(), challenger.connection);
}

void Link::yield_to_challenger() {
  const auto challenger = *challenger_;
  end_session("the peer began anew", false);
  control_.choose(challenger.connection);
  send_hello(challenger.connection);
}

// --- Whose connection

void Link::bind(Lane which, ConnectionId connection, std::uint32_t place) {
  auto message = Bind{session_, place}.encode();
  limit_.pay(loop_.now(), message.size() + kFramingBytes);
  // Lost, or refused by a full queue: the next heartbeat says it again.
  (void)wire_.send(peer_, which, std::move(message), connection);
}

// On every heartbeat: what the peer cannot know from the session's other frames.
void Link::bind_others() {
  const auto used = control_.current();
  for (const auto connection : control_.live())
    if (connection != used && (!challenger_ || challenger_->connection != connection))
      bind(Lane::control, connection, 0);
  const auto& live = bulk_connections_.live();
  for (std::size_t i = 0; i < std::min(kBindsPerHeartbeat, live.size()); ++i) {
    const auto& connection = live[next_bind_++ % live.size()];
    bind(Lane::bulk, connection.id, connection.place);
  }
}

void Link::use_bulk() { bulk_.use(bulk_connections_.usable()); }

// More connections than the end that listens takes would end each other there.
std::uint32_t Link::width_max() const {
  return std::min(options_.bulk_connections_max, their_width_max_);
}

// How many connections both directions together are best served by.
std::uint32_t Link::width_for_both() const { return std::max(bulk_.width_wanted(), their_width_); }

std::string_view Link::width_why() const {
  return their_width_ > bulk_.width_wanted() ? "as the peer wants" : bulk_.width_why();
}

// Whatever the peer says, it is between one and the lower limit of both.
void Link::hear_width(const Ack& ack) {
  if (!std::exchange(their_width_max_said_, true)) {
    their_width_max_ = std::max<std::uint32_t>(1, ack.width_max);
    bulk_.limit_width(width_max());
    wire_.limit_width(peer_, width_max());
  }
  their_width_ = std::clamp<std::uint32_t>(ack.width, 1, width_max());
}

void Link::consider_width() {
  if (const auto paths = wire_.bulk_paths(peer_); !paths.empty())
    bulk_.widen_to(BulkWidth::best_for(paths));
  if (session_ == 0) return;
  const auto width = width_for_both();
  if (width > std::exchange(width_, width))
    log_.info("bulk_width", {.peer = peer_name_},
              {{"connections", width},
               {"why", width_why()},
               {"for_us", bulk_.width_wanted()},
               {"for_the_peer", their_width_},
               {"limit", options_.bulk_connections_max},
               {"limit_of_the_peer", their_width_max_said_ ? their_width_max_ : 0}});
  wire_.widen(peer_, width);
}

}  // namespace isthmus::inter
