#include "inter/link.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/assert.h"

namespace isthmus::inter {
namespace {

// Of messages without an answer. What overtakes others, where a wire reorders, does so in less.
constexpr Nanoseconds kAnswerPatienceMin = 200 * kMillisecond;
constexpr std::size_t kSentAgainAtOnce = 32;
constexpr std::size_t kProbeBytesMax = 1024;
constexpr std::size_t kSamplesMax = 6;
constexpr Nanoseconds kAcksApart = 5 * kMillisecond;  // each is a message to seal and to open
// After another one, of what answers nothing new: who says the same again and again causes little.
constexpr Nanoseconds kRepliesApart = 50 * kMillisecond;
constexpr Nanoseconds kStampsApart = 200 * kMillisecond;  // on a thin line 1 % of it

}  // namespace

Link::Link(Loop& loop, Wire& wire, RateLimit& limit, EventLog& log, Random random, LinkOwner& owner,
           GatewayId self, GatewayId peer, std::string peer_name, std::string peer_address,
           LinkOptions options)
    : loop_(loop),
      wire_(wire),
      limit_(limit),
      log_(log),
      random_(random),
      owner_(owner),
      self_(self),
      peer_(peer),
      peer_name_(std::move(peer_name)),
      peer_address_(std::move(peer_address)),
      options_(options),
      window_chunks_(options.window_chunks),
      window_bytes_(std::max(options.window_bytes, window_chunks_ * kBulkMessageBytesMax)),
      nonce_(random_.next()),
      tasks_(loop),
      bulk_(loop, wire, limit, peer, options.bulk_connections_max, options.bug),
      their_width_max_(options.bulk_connections_max) {
  arm_timer();
}

Link::~Link() {
  for (const auto& timer : {timer_, ack_timer_})
    if (timer) loop_.cancel(*timer);
}

// --- Timers

// Half as often each time, as long as nothing is acknowledged: the answer may wait in a queue.
Nanoseconds Link::probe_at() const {
  constexpr std::uint32_t kDoublings = 5;
  const auto patience =
      round_trip_.mean() == 0
          ? kSecond
          : std::max(kAnswerPatienceMin, 2 * round_trip_.mean() + 4 * round_trip_.deviation());
  return std::max(unacknowledged_.front().sent, probed_) +
         std::min(patience << std::min(probes_, kDoublings), std::max(patience, options_.silence));
}

void Link::arm_timer() {
  auto next = next_heartbeat_;
  if (session_ == 0 && control_.any() && started_) next = std::min(next, next_hello_);
  if (session_ != 0 && !unacknowledged_.empty()) next = std::min(next, probe_at());
  if (challenger_) next = std::min(next, challenger_->until);
  if (session_ != 0 && bulk_.asks_when_it_arrives()) next = std::min(next, stamped_ + kStampsApart);
  if (timer_) loop_.cancel(*timer_);
  timer_ = loop_.call_at(std::max(next, loop_.now()), [this] {
    timer_.reset();
    on_timer();
    arm_timer();
  });
}

void Link::on_timer() {
  const auto now = loop_.now();
  const bool heartbeat = now >= next_heartbeat_;
  if (heartbeat) {
    next_heartbeat_ = next_beat(now, options_.heartbeat);
    sample_rates();
  }
  if (session_ == 0) {
    if (!started_ || !control_.any() || now < next_hello_) return;
    send_hello(control_.current());
    asked_ = now;
    // Who was refused asks again now and then: somebody may have mended the configuration.
    next_hello_ = now + (refused_.empty() ? 1 : kRefusedAsksApart) * options_.heartbeat;
    return;
  }
  if (challenger_ && now >= challenger_->until) {
    yield_to_challenger();
    return;
  }
  if (now - last_heard_ > silence_limit()) {
    end_session("silence", true);
    return;
  }
  if (!unacknowledged_.empty() && now >= probe_at()) probe();
  if (!heartbeat) {
    if (bulk_.asks_when_it_arrives() && now - stamped_ >= kStampsApart) send_ack(Acks::unsent);
    return;
  }
  consider_window();
  send_ack(Acks::recent);
  bind_others();
  consider_width();
  BulkTotals totals;
  for (const auto& path : wire_.bulk_paths(peer_)) {
    totals.add(path.tcp);
    // On a slow line a chunk takes longer than the silence that ends a session, and what control
    // says is lost in a full queue: parts of a chunk are a word too.
    if (path.tcp.silence && bulk_connections_.proven(path.connection))
      last_heard_ = std::max(last_heard_, now - *path.tcp.silence);
  }
  bulk_.heartbeat(round_trip_.mean(), totals);
  bulk_.pump();
}

void Link::sample_rates() {
  const auto bulk = bulk_bytes_received();
  samples_.push_back({loop_.now(), wire_.bytes_sent(peer_), wire_.bytes_received(peer_), bulk});
  arrivals_.note_bytes(loop_.now(), chunk_bytes_received());
  if (samples_.size() > kSamplesMax) samples_.pop_front();
}

// Parts of chunks too. The wire counts what comes before it is handed over.
std::uint64_t Link::chunk_bytes_received() const {
  const auto all = bulk_bytes_received();
  return all - std::min(all, other_bulk_bytes_);
}

bool Link::brings_chunks() const {
  return up() && arrivals_.come(loop_.now(), static_cast<double>(chunk_bytes_max_),
                                chunks_at_once(), silence_limit());
}

Nanoseconds Link::chunk_patience(std::uint64_t chunk_bytes) const {
  constexpr auto kMost = 60 * kSecond;
  constexpr double kQuiet = 4096;  // bytes per second: less is what a session says without chunks
  const auto trips = 4 * (round_trip_.mean() + round_trip_.deviation());
  if (samples_.size() < 2) return std::min(kMost, trips);
  const auto seconds = seconds_of(samples_.back().when - samples_.front().when);
  const auto bytes = samples_.back().bulk_since(samples_.front());
  if (bytes <= kQuiet * seconds) return std::min(kMost, trips);
  const auto of_chunks = seconds * their_width_ * static_cast<double>(chunk_bytes) / bytes;
  return std::min(kMost, trips + static_cast<Nanoseconds>(2e9 * of_chunks));
}

// --- Control lane, sending

bool Link::send_control(Bytes message, ConnectionId connection) {
  const auto bytes = message.size() + kFramingBytes;
  if (!wire_.send(peer_, Lane::control, std::move(message), connection)) return false;
  limit_.pay(loop_.now(), bytes);
  return true;
}

void Link::send(Bytes message) {
  if (message.size() + kDataHeaderBytes > kControlMessageBytesMax) {
    log_.alarm("message_too_large", {.peer = peer_name_},
               {{"bytes", message.size()},
                {"type", message.empty() ? 0 : static_cast<unsigned>(message.front())}});
    return;
  }
  if (session_ == 0) return;
  if (unacknowledged_.size() >= options_.control_queue_max ||
      unacknowledged_bytes_ + message.size() > options_.control_queue_bytes_max) {
    tasks_.post([this, session = session_] {
      if (session_ == session) end_session("the peer does not acknowledge", true);
    });
    return;
  }
  unacknowledged_bytes_ += message.size();
  unacknowledged_.push_back({.message = std::move(message), .sent = loop_.now()});
  ++next_sequence_;
  pump_control();
  if (unacknowledged_.size() == 1) arm_timer();
}

bool Link::send_data(std::uint64_t sequence) {
  auto& entry = unacknowledged(sequence);
  entry.sent = loop_.now();
  const Data data{
      .session = session_, .sequence = sequence, .acknowledged = received_, .body = entry.message};
  if (!send_control(data.encode(), control_.current())) return false;
  if (std::exchange(entry.connection, control_.current()) != 0) ++counters_.retransmits;
  entry.lost = false;
  return true;
}

// What the connection in use has not taken, or what it has lost, until it takes no more: it is
// writable again, or ends. What an earlier one took may have ended with it.
void Link::pump_control() {
  if (session_ == 0) return;
  const auto first = next_sequence_ - unacknowledged_.size();
  const auto current = control_.current();
  if (std::exchange(pumped_, current) != current) unsent_ = first;
  if (current == 0) return;
  for (unsent_ = std::max(unsent_, first); unsent_ < next_sequence_; ++unsent_) {
    const auto& entry = unacknowledged(unsent_);
    if ((entry.connection != current || entry.lost) && !send_data(unsent_)) return;
  }
}

// A stamp, and a word that is answered: the first message, where it is short. On a slow line all
// others are on their way still, and each time again would be longer so.
void Link::probe() {
  ++probes_;
  probed_ = loop_.now();
  pump_control();
  send_ack(Acks::unsent);
  const auto first = next_sequence_ - unacknowledged_.size();
  if (unacknowledged_.front().message.size() <= kProbeBytesMax) {
    send_data(first);
  } else {
    const Data known{.session = session_, .sequence = 0, .acknowledged = received_, .body = {}};
    send_control(known.encode(), control_.current());
  }
}

// The peer has this stamp: what the same connection had taken before it has come as well, or is
// lost.
void Link::send_again(Nanoseconds stamp) {
  const auto first = next_sequence_ - unacknowledged_.size();
  const auto count = std::min(unacknowledged_.size(), kSentAgainAtOnce);
  for (auto sequence = first + count; sequence-- > first;) {
    auto& entry = unacknowledged(sequence);
    if (entry.connection != control_.current() || entry.sent + kAnswerPatienceMin > stamp) continue;
    entry.lost = true;
    unsent_ = std::min(unsent_, sequence);
  }
  pump_control();
}

// What no connection has taken goes first, oldest first: a chunk of which nothing is said while
// later ones are acknowledged seems lost.
void Link::send_ack(Acks acks) {
  if (session_ == 0) return;
  unsent_acks_ = std::min(unsent_acks_, recent_acks_.size());
  while (unsent_acks_ > kRecentAcksMax)
    if (!send_ack_of(recent_acks_.size() - unsent_acks_, kRecentAcksMax)) return;
  const auto last =
      acks == Acks::recent ? std::min(recent_acks_.size(), kRecentAcksMax) : unsent_acks_;
  if (send_ack_of(recent_acks_.size() - last, last) && acks == Acks::recent)
    came_since_all_acks_ = 0;
}

bool Link::send_ack_of(std::size_t first, std::size_t count) {
  const auto now = loop_.now();
  Ack ack;
  ack.session = session_;
  ack.acknowledged = received_;
  ack.stamp = now;
  ack.echo = their_stamp_;
  ack.held = their_stamp_at_ == 0 ? Nanoseconds{-1} : now - their_stamp_at_;
  // Credit counts from the newest chunk that came or that the peer has given up: lost ones do not
  // use it up.
  const std::uint64_t window = std::max<std::uint64_t>(window_chunks_, kCreditAtStart);
  const auto taken = stalled_.empty() ? std::min<std::uint64_t>(unsettled_, window) : window;
  ack.credit = std::max(highest_received_, their_floor_) + window - taken;
  ack.floor = bulk_.floor();
  ack.stalled = !stalled_.empty();
  ack.width = static_cast<std::uint16_t>(bulk_.width_wanted());
  ack.width_max = static_cast<std::uint16_t>(options_.bulk_connections_max);
  const auto begin = recent_acks_.begin() + static_cast<std::ptrdiff_t>(first);
  ack.chunks.assign(begin, begin + static_cast<std::ptrdiff_t>(count));
  round_trip_.stamp_sent(stamped_ = now);
  if (!send_control(ack.encode(), control_.current())) {
    came_since_all_acks_ = kCameForAllAcks;
    return false;
  }
  unsent_acks_ = recent_acks_.size() - first - count;
  return true;
}

void Link::ack_soon(Nanoseconds apart) {
  // Together with whatever else arrives now, and soon after the last one.
  const auto at = std::max(loop_.now(), stamped_ + apart);
  if (ack_timer_ && ack_at_ <= at) return;
  if (ack_timer_) loop_.cancel(*ack_timer_);
  ack_at_ = at;
  ack_timer_ = loop_.call_at(at, [this] {
    ack_timer_.reset();
    send_ack(came_since_all_acks_ >= kCameForAllAcks ? Acks::recent : Acks::unsent);
  });
}

void Link::handle_cumulative(std::uint64_t acknowledged) {
  if (acknowledged >= next_sequence_) return;  // of messages never sent: ignored
  const auto before = unacknowledged_.size();
  for (auto n = next_sequence_ - unacknowledged_.size();
       n <= acknowledged && !unacknowledged_.empty(); ++n) {
    unacknowledged_bytes_ -= unacknowledged_.front().message.size();
    unacknowledged_.pop_front();
  }
  if (unacknowledged_.size() < before) probes_ = 0;
  // Who waits for nothing more does not wake up for it: a gateway without work uses next to
  // nothing.
  if (before > 0 && unacknowledged_.empty()) arm_timer();
}

// --- Control lane, receiving

void Link::wire_message(Lane which, ConnectionId connection, const SharedBytes& message) {
  if (!started_) return;
  if (which == Lane::control)
    receive_control(connection, message);
  else
    receive_bulk(connection, message);
}

void Link::receive_control(ConnectionId connection, std::span<const std::byte> message) {
  ByteReader in(message);
  const auto frame = in.get<Frame>();
  const auto of_session = [&](std::uint64_t session) {
    if (session_ == 0 || session != session_) return false;
    last_heard_ = loop_.now();
    control_.prove(connection);
    pump_control();
    return true;
  };
  if (frame == Frame::hello) {
    if (const auto hello = decode_hello(in)) receive_hello(connection, *hello);
  } else if (frame == Frame::refuse) {
    if (const auto refuse = decode_refuse(in)) receive_refuse(connection, *refuse);
  } else if (frame == Frame::data) {
    if (const auto data = decode_data(in); data && of_session(data->session)) receive_data(*data);
  } else if (frame == Frame::ack) {
    if (const auto ack = decode_ack(in); ack && of_session(ack->session)) receive_ack(*ack);
  } else if (frame == Frame::bind) {
    if (const auto bind = decode_bind(in)) of_session(bind->session);
  }
}

void Link::receive_data(const Data& data) {
  handle_cumulative(data.acknowledged);
  ack_soon(data.sequence > received_ ? kAcksApart : kRepliesApart);
  if (data.sequence <= received_) return;  // twice
  if (data.sequence > received_ + 1) {
    if (data.sequence - received_ > options_.beyond_gap_max ||
        beyond_gap_.count(data.sequence) > 0 ||
        beyond_gap_bytes_ + data.body.size() > options_.beyond_gap_bytes_max)
      return;
    beyond_gap_.emplace(data.sequence, Bytes(data.body.begin(), data.body.end()));
    beyond_gap_bytes_ += data.body.size();
    return;
  }
  const auto session = session_;
  received_ = data.sequence;
  deliver(data.body);
  while (session_ == session && !beyond_gap_.empty() &&
         beyond_gap_.begin()->first <= received_ + 1) {
    const auto node = beyond_gap_.extract(beyond_gap_.begin());
    beyond_gap_bytes_ -= node.mapped().size();
    if (node.key() <= received_) continue;
    received_ = node.key();
    deliver(node.mapped());
  }
}

void Link::deliver(std::span<const std::byte> message) {
  ByteReader in(message);
  if (in.get<std::uint8_t>() != kHave)
    owner_.on_control(*this, message);
  else if (const auto have = decode_have(in))
    bulk_.peer_has(*have);
}

void Link::receive_ack(const Ack& ack) {
  handle_cumulative(ack.acknowledged);
  their_stamp_ = ack.stamp;
  their_stamp_at_ = loop_.now();
  if (ack.held >= 0) {
    const auto trip = round_trip_.echoed(loop_.now(), ack.echo, ack.held);
    if (trip) send_again(ack.echo);
    if (trip && ack.stamp >= 0) bulk_.note_way(ack.echo, ack.stamp - ack.held, *trip);
    // Not what was on its way before, from a process that is gone: an answer to the question.
    if (challenger_ && ack.echo >= challenger_->asked) refuse_challenger();
  }
  their_floor_ = std::max(their_floor_, ack.floor);
  hear_width(ack);
  bulk_.acknowledged(ack.chunks, ack.credit, ack.stalled, round_trip_.mean());
  if (width_for_both() > width_) consider_width();
}

// --- Bulk lane

void Link::wire_writable(Lane which, ConnectionId connection) {
  if (which == Lane::bulk)
    bulk_.writable(connection);
  else
    pump_control();
}

void Link::receive_bulk(ConnectionId connection, const SharedBytes& message) {
  // Until it turns out to be an accepted chunk.
  note_other_bulk(message.size());
  if (session_ == 0) return;
  ByteReader in(message);
  const auto frame = in.get<Frame>();
  std::optional<Chunk> chunk;
  std::optional<Bind> place;
  if (frame == Frame::bind) place = decode_bind(in);
  if (frame == Frame::chunk) chunk = decode_chunk(in);
  if (!(place && place->session == session_) && !(chunk && chunk->session == session_)) return;
  last_heard_ = loop_.now();
  if (place ? bulk_connections_.placed(connection, place->place)
            : bulk_connections_.prove(connection)) {
    use_bulk();
    // What was said of it before may have come before the peer's session.
    if (const auto ours = bulk_connections_.place(connection)) bind(Lane::bulk, connection, *ours);
  }
  if (!chunk) return;
  came_since_all_acks_ += message.size();
  // Beyond the credit that was ever granted, or longer chunks than were expected: no memory for
  // them. A state's leaves, which are longer, come again.
  if (unsettled_ >= 2 * window_chunks_ || unsettled_bytes_ + message.size() > 2 * window_bytes_)
    return;
  highest_received_ = std::max(highest_received_, chunk->sequence);
  ++unsettled_;
  unsettled_bytes_ += message.size();
  const ChunkArrival arrival{chunk->transfer, chunk->index, chunk->sequence, session_,
                             message.size()};
  if (options_.bug == PlantedBug::acknowledge_early) {
    recent_acks_.emplace_back(arrival.transfer, arrival.index);
    ++unsent_acks_;
    ack_soon(kAcksApart);
  }
  owner_.on_chunk(*this, arrival, message.part(chunk->payload));
}

void Link::have(TransferId transfer, const std::vector<bool>& chunks) {
  // What was acknowledged and forgotten since is not acknowledged any more.
  std::erase_if(recent_acks_, [&](const auto& ack) {
    return ack.first == transfer && (ack.second >= chunks.size() || !chunks[ack.second]);
  });
  send(Have{transfer, chunks}.encode());
}

void Link::settle(const ChunkArrival& arrival, bool accepted) {
  if (session_ == 0 || arrival.session != session_) return;
  ISTHMUS_ASSERT(unsettled_ > 0);
  --unsettled_;
  unsettled_bytes_ -= arrival.bytes;
  stalled_.erase(arrival.sequence);
  if (accepted) {
    other_bulk_bytes_ -= wire_.bytes_of(Lane::bulk, arrival.bytes);
    arrivals_.note_bytes(loop_.now(), chunk_bytes_received());
    await_chunks();
    recent_acks_.emplace_back(arrival.transfer, arrival.index);
    ++unsent_acks_;
  }
  // Without a control connection nothing is said, and no more than a window comes.
  const auto kept =
      std::max<std::size_t>(kRecentAcksMax, std::min<std::size_t>(unsent_acks_, window_chunks_));
  while (recent_acks_.size() > kept) recent_acks_.pop_front();
  // The next one would take the place of one that the peer has never seen. More than that come
  // between two timers of a loop that was held up.
  if (unsent_acks_ >= kRecentAcksMax)
    send_ack(Acks::unsent);
  else
    ack_soon(kAcksApart);
}

void Link::stall(const ChunkArrival& arrival) {
  if (session_ != 0 && arrival.session == session_) stalled_.insert(arrival.sequence);
}

// --- For people

LinkStatus Link::status() const {
  const auto& sent = bulk_.counters();
  LinkStatus s;
  s.peer = peer_name_;
  s.address = peer_address_;
  s.state = session_ != 0       ? "up"
            : !refused_.empty() ? "refused: " + refused_
            : !control_.any()   ? "connecting"
            : !started_         ? "no ranks"
                                : "silent";
  s.round_trip_ms = seconds_of(round_trip_.mean()) * 1e3;
  s.round_trip_longest_ms = seconds_of(round_trip_.longest(loop_.now())) * 1e3;
  if (samples_.size() > 1) {
    const auto seconds = std::max(1e-9, seconds_of(samples_.back().when - samples_.front().when));
    s.sent_mbit_s =
        static_cast<double>(samples_.back().sent - samples_.front().sent) * 8e-6 / seconds;
    s.received_mbit_s =
        static_cast<double>(samples_.back().received - samples_.front().received) * 8e-6 / seconds;
  }
  if (limit_.bytes_per_second() > 0) s.cap_mbit_s = limit_.bytes_per_second() * 8e-6;
  for (const auto& path : wire_.bulk_paths(peer_)) {
    ++s.bulk_connections;
    s.congestion_control = path.tcp.congestion_control;
    s.congestion_control_why = path.congestion_control_why;
    // A polite one measures it; of others it is what the round trip has grown by.
    const auto queued = path.polite ? path.polite->queueing_delay
                        : path.tcp.round_trip_min > 0
                            ? path.tcp.round_trip - path.tcp.round_trip_min
                            : 0;
    s.queue_ms = std::max(s.queue_ms, seconds_of(queued) * 1e3);
    if (path.polite) {
      const auto polite = path.polite->bytes_per_second * 8e-6;
      s.polite_mbit_s = s.cap_mbit_s ? std::min(polite, *s.cap_mbit_s) : polite;
      s.queue_target_ms = seconds_of(path.polite->target) * 1e3;
    }
  }
  if (s.bulk_connections > 0) s.bulk_connections_why = width_why();
  s.parameter_bytes = sent.parameter_bytes;
  s.codec_bytes = sent.codec_bytes;
  s.zstd_bytes = sent.zstd_bytes;
  s.wire_sent_bytes = wire_.bytes_sent(peer_);
  s.wire_received_bytes = wire_.bytes_received(peer_);
  s.sending_s = bulk_.seconds_sending();
  s.chunks_sent = sent.chunks_sent;
  s.chunks_resent = sent.chunks_resent;
  s.chunks_copied = sent.chunks_copied;
  s.reconnects = counters_.sessions > 0 ? counters_.sessions - 1 : 0;
  s.window_bytes = window_bytes_;
  s.window_used = brought_in_trip_ / static_cast<double>(window_bytes_max());
  s.chunk_patience_s = seconds_of(chunk_patience());
  s.waiting_for = session_ == 0 ? "session" : bulk_.waits_for();
  return s;
}

}  // namespace isthmus::inter
