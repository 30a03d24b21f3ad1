#include "inter/link.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/assert.h"

namespace isthmus::inter {
namespace {

enum class Frame : std::uint8_t { hello = 1, refuse = 2, data = 3, ack = 4, chunk = 5 };
// Types of control messages that the link keeps to itself; MessageType stays below.
constexpr std::uint8_t kHave = 0xF0;

constexpr std::uint64_t kMagic = 0x31736d6874736900;  // "\0isthms1"
constexpr std::uint64_t kCreditAtStart =
    4;  // granted in advance, so that a transfer begins without a round trip
constexpr std::uint64_t kReorderMax =
    8;  // a chunk this far behind an acknowledged one is taken for lost
constexpr std::size_t kEarlyMax = 1024;
constexpr std::size_t kRecentAcksMax = 64;
constexpr std::size_t kRefusalBytesMax = 512;
constexpr std::size_t kDataHeaderBytes = 25;
constexpr std::size_t kChunksMax = 1 << 18;  // of a transfer, so that have() fits one message
constexpr std::size_t kFramingBytes = 64;    // of wire and seal, for the rate limit
constexpr std::size_t kSamplesMax = 6;

std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
  const auto mixed = Random(a).split(b).at(0);
  return mixed == 0 ? 1 : mixed;
}

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
      nonce_(random_.next()) {
  arm_timer();
}

Link::~Link() {
  if (timer_) loop_.cancel(*timer_);
  if (release_timer_) loop_.cancel(*release_timer_);
}

// --- Session
// ---------------------------------------------------------------------------------------------------------------------

void Link::start() {
  started_ = true;
  next_hello_ = loop_.now();
  arm_timer();
}

void Link::wire_up(Lane lane, ConnectionId connection) {
  if (lane == Lane::bulk) {
    bulk_up_ = true;
    bulk_blocked_ = false;
    requeue_all();  // what was on its way on the old connection may be lost
    pump();
    return;
  }
  control_up_ = true;
  if (session_ == 0) {
    next_hello_ = loop_.now();
    control_connection_ = connection;
  }
  arm_timer();
}

void Link::wire_down(Lane lane, ConnectionId connection) {
  if (lane == Lane::bulk) {
    requeue_all();
    bulk_up_ = false;
    return;
  }
  if (connection == control_connection_) control_connection_ = 0;
  if (challenger_ && challenger_->connection == connection) challenger_.reset();
  // The session outlives its connection: unacknowledged messages go again on the next one.
}

void Link::wire_writable(Lane lane) {
  if (lane != Lane::bulk) return;
  bulk_blocked_ = false;
  pump();
}

void Link::send_hello() {
  const auto mine = owner_.introduce();
  ByteWriter out;
  out.put(Frame::hello)
      .put(kMagic)
      .put(kProtocolVersion)
      .put(nonce_)
      .put(their_nonce_)
      .put(static_cast<std::uint8_t>(session_ != 0));
  out.put(mine.boot).raw(mine.run.bytes).put(mine.roster_epoch);
  mine.fingerprint.encode(out);
  send_control(out.take());
}

void Link::receive_hello(ConnectionId connection, ByteReader& in) {
  const auto magic = in.get<std::uint64_t>();
  const auto version = in.get<std::uint16_t>();
  if (!in.ok() || magic != kMagic) return;
  if (version != kProtocolVersion) {
    refuse(connection,
           fmt::format("protocol version: {} here, {} there", kProtocolVersion, version));
    return;
  }
  const auto nonce = in.get<std::uint64_t>();
  const auto echo = in.get<std::uint64_t>();
  const bool they_are_up = in.get<std::uint8_t>() != 0;
  Introduction theirs;
  theirs.boot = in.get<std::uint64_t>();
  const auto run = in.raw(theirs.run.bytes.size());
  std::copy(run.begin(), run.end(), theirs.run.bytes.begin());
  theirs.roster_epoch = in.get<std::uint64_t>();
  theirs.fingerprint = Fingerprint::decode(in);
  if (!in.done() || nonce == 0) return;

  if (session_ != 0 && nonce != their_nonce_ && control_connection_ != 0 &&
      connection != control_connection_) {
    // A restart whose old connection nobody has missed yet, or a second process with this identity?
    // The old connection answers or not.
    if (!challenger_) {
      challenger_ = Challenger{connection, nonce, theirs.boot,
                               loop_.now() + options_.heartbeat + 2 * round_trip_, last_heard_};
      send_ack();
      arm_timer();
    }
    return;
  }
  const auto objection = owner_.objection(peer_, theirs);
  if (!objection.empty()) {
    refuse(connection, objection);
    return;
  }
  const bool new_process = session_ != 0 && nonce != their_nonce_;
  if (new_process) end_session("the peer began anew", false);
  their_nonce_ = nonce;
  control_connection_ = connection;
  const bool was_up = session_ != 0;
  if (echo == nonce_ && !was_up) begin_session(nonce, theirs.boot);
  if (!(they_are_up && session_ != 0)) send_hello();
}

void Link::begin_session(std::uint64_t their_nonce, std::uint64_t their_boot) {
  session_ = self_ < peer_ ? mix(nonce_, their_nonce) : mix(their_nonce, nonce_);
  their_boot_ = their_boot;
  refused_.clear();
  next_sequence_ = 1;
  unacknowledged_.clear();
  received_ = 0;
  early_.clear();
  recent_acks_.clear();
  last_heard_ = loop_.now();
  their_stamp_at_ = 0;
  in_flight_.clear();
  reserved_.reset();
  if (release_timer_) loop_.cancel(*release_timer_);
  release_timer_.reset();
  next_bulk_ = 1;
  credit_ = kCreditAtStart;
  highest_acknowledged_ = 0;
  highest_received_ = 0;
  their_floor_ = 0;
  unsettled_ = 0;
  last_progress_ = loop_.now();
  ++counters_.sessions;
  ++ever_sessions_;
  // Offers of an earlier session end with it; the owner makes them again where they still stand.
  outgoing_.clear();
  log_.info("session_began", {.peer = peer_name_}, {{"their_boot", their_boot}});
  arm_timer();
  owner_.on_session(*this, true);
}

void Link::end_session(const std::string& why, bool reset_wire) {
  if (session_ == 0) return;
  session_ = 0;
  nonce_ = random_.next();
  their_nonce_ = 0;
  challenger_.reset();
  unacknowledged_.clear();
  in_flight_.clear();
  reserved_.reset();
  if (release_timer_) loop_.cancel(*release_timer_);
  release_timer_.reset();
  next_hello_ = loop_.now();
  log_.warning("session_ended", {.peer = peer_name_}, {{"why", why}});
  if (reset_wire) {
    wire_.reset(peer_, Lane::control, control_connection_);
    wire_.reset(peer_, Lane::bulk, 0);
  }
  control_connection_ = 0;
  arm_timer();
  owner_.on_session(*this, false);
}

void Link::refuse(ConnectionId connection, const std::string& why) {
  if (refused_ != why) log_.alarm("session_refused", {.peer = peer_name_}, {{"why", why}});
  if (session_ == 0) refused_ = why;
  send_control(ByteWriter().put(Frame::refuse).string(why).take(), connection);
}

void Link::close(const std::string& why) {
  if (!why.empty()) send_control(ByteWriter().put(Frame::refuse).string(why).take());
  end_session(why.empty() ? "closed" : why, false);
}

Nanoseconds Link::silence_limit() const {
  return std::max(options_.silence, 8 * round_trip_ + 4 * round_trip_deviation_);
}

Nanoseconds Link::retransmit_after() const {
  if (round_trip_ == 0) return kSecond;
  return std::max(200 * kMillisecond, 2 * round_trip_ + 4 * round_trip_deviation_);
}

void Link::arm_timer() {
  Nanoseconds next = loop_.now() + options_.heartbeat;
  if (session_ == 0 && control_up_ && started_) next = std::min(next, next_hello_);
  if (session_ != 0 && !unacknowledged_.empty())
    next = std::min(next, unacknowledged_.front().sent + retransmit_after());
  if (challenger_) next = std::min(next, challenger_->until);
  if (timer_) loop_.cancel(*timer_);
  timer_ = loop_.call_at(std::max(next, loop_.now()), [this] {
    timer_.reset();
    on_timer();
    arm_timer();
  });
}

void Link::on_timer() {
  const auto now = loop_.now();
  samples_.push_back({now, wire_.bytes_sent(peer_), wire_.bytes_received(peer_)});
  if (samples_.size() > kSamplesMax) samples_.pop_front();
  if (samples_.size() > 1)
    peak_rate_ = std::max(
        peak_rate_, static_cast<double>(samples_.back().sent - samples_.front().sent) /
                        std::max(0.1, seconds_of(samples_.back().when - samples_.front().when)));
  if (session_ == 0) {
    if (started_ && control_up_ && now >= next_hello_) {
      send_hello();
      // Who was refused asks again now and then: somebody may have mended the configuration.
      next_hello_ = now + (refused_.empty() ? options_.heartbeat : 10 * options_.heartbeat);
    }
    return;
  }
  if (challenger_ && now >= challenger_->until) {
    const auto challenger = *std::exchange(challenger_, std::nullopt);
    if (last_heard_ > challenger.heard_before) {
      log_.alarm("duplicate_identity", {.peer = peer_name_},
                 {{"boot", challenger.boot}, {"boot_in_session", their_boot_}});
      send_control(ByteWriter()
                       .put(Frame::refuse)
                       .string("another live process uses this identity: stop one of them")
                       .take(),
                   challenger.connection);
    } else {
      end_session("the peer began anew", false);
      control_connection_ = challenger.connection;
      send_hello();
    }
    return;
  }
  if (now - last_heard_ > silence_limit()) {
    end_session("silence", true);
    return;
  }
  send_ack();
  if (!unacknowledged_.empty() && now - unacknowledged_.front().sent >= retransmit_after()) {
    const auto first = next_sequence_ - unacknowledged_.size();
    const auto count = std::min<std::uint64_t>(unacknowledged_.size(), 32);
    for (std::uint64_t i = 0; i < count; ++i) send_data(first + i);
    counters_.retransmits += count;
  }
  if (!in_flight_.empty()) {
    // No news of the oldest chunk for far longer than the line needs for all that is on its way: it
    // goes again.
    std::size_t bytes = 0;
    for (const auto& [sequence, chunk] : in_flight_) bytes += chunk.bytes;
    const auto drain = peak_rate_ > 0
                           ? static_cast<Nanoseconds>(
                                 std::min(60.0, 2 * static_cast<double>(bytes) / peak_rate_) * 1e9)
                           : 4 * kSecond;
    const auto patience = std::max(2 * kSecond, 4 * round_trip_ + drain);
    if (now - std::max(last_progress_, in_flight_.begin()->second.sent) > patience) {
      last_progress_ = now;
      while (!in_flight_.empty() && now - in_flight_.begin()->second.sent > patience)
        requeue(in_flight_.begin());
    }
  }
  pump();
}

// --- Control lane
// ----------------------------------------------------------------------------------------------------------------

bool Link::send_control(Bytes message, ConnectionId connection) {
  limit_.charge(loop_.now(), message.size() + kFramingBytes);
  return wire_.send(peer_, Lane::control, std::move(message), connection).has_value();
}

void Link::send(Bytes message) {
  ISTHMUS_ASSERT(message.size() + kDataHeaderBytes <= kControlMessageBytesMax);
  if (session_ == 0) return;
  if (unacknowledged_.size() >= options_.control_queue_max) {
    loop_.post([this, session = session_] {
      if (session_ == session) end_session("the peer does not acknowledge", true);
    });
    return;
  }
  unacknowledged_.push_back({std::move(message), 0});
  send_data(next_sequence_++);
  if (unacknowledged_.size() == 1) arm_timer();
}

void Link::send_data(std::uint64_t sequence) {
  auto& entry = unacknowledged_[sequence - (next_sequence_ - unacknowledged_.size())];
  entry.sent = loop_.now();
  ByteWriter out;
  out.put(Frame::data).put(session_).put(sequence).put(received_).raw(entry.frame_body);
  send_control(out.take());  // lost or refused by a full queue: it goes again
}

void Link::send_ack() {
  if (session_ == 0) return;
  const auto now = loop_.now();
  ByteWriter out;
  out.put(Frame::ack).put(session_).put(received_).put(now);
  out.put(their_stamp_).put(their_stamp_at_ == 0 ? Nanoseconds{-1} : now - their_stamp_at_);
  // Credit counts from the newest chunk that came or that the peer has given up: lost ones do not
  // use it up.
  const std::uint64_t window = std::max<std::uint64_t>(options_.window_chunks, kCreditAtStart);
  out.put(std::max(highest_received_, their_floor_) + window -
          std::min<std::uint64_t>(unsettled_, window));
  out.put(in_flight_.empty() ? next_bulk_ - 1 : in_flight_.begin()->first - 1);
  out.put(static_cast<std::uint32_t>(recent_acks_.size()));
  for (const auto& [transfer, index] : recent_acks_) out.put(transfer).put(index);
  send_control(out.take());
}

void Link::ack_soon() {
  if (ack_posted_) return;
  ack_posted_ = true;
  // At the next instant, together with whatever else arrives now.
  loop_.call_after(0, [this] {
    ack_posted_ = false;
    send_ack();
  });
}

void Link::wire_message(Lane lane, ConnectionId connection, std::span<const std::byte> message) {
  if (lane == Lane::bulk) {
    receive_bulk(message);
    return;
  }
  ByteReader in(message);
  const auto frame = in.get<Frame>();
  if (!started_) return;
  if (frame == Frame::hello) {
    receive_hello(connection, in);
    return;
  }
  if (frame == Frame::refuse) {
    const auto why = in.string(kRefusalBytesMax);
    if (!in.done()) return;
    if (session_ != 0 && connection != control_connection_ && control_connection_ != 0) return;
    if (refused_ != why)
      log_.alarm("session_refused_by_peer", {.peer = peer_name_}, {{"why", why}});
    end_session("refused by the peer: " + why, false);
    refused_ = why;
    return;
  }
  const auto session = in.get<std::uint64_t>();
  if (!in.ok() || session_ == 0 || session != session_) return;
  last_heard_ = loop_.now();
  if (!challenger_) control_connection_ = connection;
  if (frame == Frame::data) receive_data(in);
  if (frame == Frame::ack) receive_ack(in);
}

void Link::handle_cumulative(std::uint64_t acknowledged) {
  const auto first = next_sequence_ - unacknowledged_.size();
  if (acknowledged >= next_sequence_) return;  // of messages never sent: ignored
  for (auto n = first; n <= acknowledged && !unacknowledged_.empty(); ++n)
    unacknowledged_.pop_front();
}

void Link::receive_data(ByteReader& in) {
  const auto sequence = in.get<std::uint64_t>();
  handle_cumulative(in.get<std::uint64_t>());
  if (!in.ok()) return;
  ack_soon();
  if (sequence <= received_) {
    ++counters_.duplicates;
    return;
  }
  if (sequence > received_ + 1) {
    if (early_.size() < kEarlyMax && sequence <= received_ + kEarlyMax)
      early_.emplace(sequence, Bytes(in.rest().begin(), in.rest().end()));
    return;
  }
  const auto session = session_;
  received_ = sequence;
  deliver(in.rest());
  while (session_ == session && !early_.empty() && early_.begin()->first <= received_ + 1) {
    auto node = early_.extract(early_.begin());
    if (node.key() <= received_) continue;
    received_ = node.key();
    deliver(node.mapped());
  }
}

void Link::deliver(std::span<const std::byte> message) {
  ByteReader in(message);
  if (in.get<std::uint8_t>() != kHave) {
    owner_.on_control(*this, message);
    return;
  }
  const auto transfer = in.get<TransferId>();
  const auto count = in.get<std::uint32_t>();
  const auto bits = in.raw((std::size_t{count} + 7) / 8);
  const auto found = outgoing_.find(transfer);
  if (!in.done() || found == outgoing_.end() || count != found->second.chunks) return;
  auto& out = found->second;
  std::uint32_t highest = 0;
  for (std::uint32_t i = 0; i < count; ++i)
    if ((static_cast<unsigned>(bits[i / 8]) >> (i % 8) & 1) != 0) highest = i + 1;
  for (std::uint32_t i = 0; i < count; ++i) {
    const bool there = (static_cast<unsigned>(bits[i / 8]) >> (i % 8) & 1) != 0 ||
                       (options_.bug == PlantedBug::skip_gap && i < highest);
    if (there && !out.acknowledged[i]) {
      out.acknowledged[i] = true;
      ++out.acknowledged_count;
    }
  }
  if (highest > 0) ++counters_.resumes;
  std::erase_if(out.queue, [&](std::uint32_t i) { return out.acknowledged[i]; });
  out.wait_for_have = false;
  pump();
}

void Link::receive_ack(ByteReader& in) {
  const auto cumulative = in.get<std::uint64_t>();
  const auto stamp = in.get<Nanoseconds>();
  const auto echo = in.get<Nanoseconds>();
  const auto held = in.get<Nanoseconds>();
  const auto credit = in.get<std::uint64_t>();
  const auto floor = in.get<std::uint64_t>();
  const auto count = in.count(kRecentAcksMax, 12);
  if (!in.ok()) return;
  handle_cumulative(cumulative);
  their_stamp_ = stamp;
  their_stamp_at_ = loop_.now();
  if (held >= 0) {
    const auto sample = loop_.now() - echo - held;
    if (sample >= 0 && sample < 600 * kSecond) {
      // RFC 6298.
      if (round_trip_ == 0) {
        round_trip_ = std::max<Nanoseconds>(sample, 1);
        round_trip_deviation_ = sample / 2;
      } else {
        round_trip_deviation_ += (std::abs(sample - round_trip_) - round_trip_deviation_) / 4;
        round_trip_ = std::max<Nanoseconds>(round_trip_ + (sample - round_trip_) / 8, 1);
      }
    }
  }
  credit_ = std::max(credit_, credit);
  their_floor_ = std::max(their_floor_, floor);
  for (std::size_t i = 0; i < count; ++i) {
    const auto transfer = in.get<TransferId>();
    const auto index = in.get<std::uint32_t>();
    const auto found = outgoing_.find(transfer);
    if (found == outgoing_.end() || index >= found->second.chunks) continue;
    for (auto it = in_flight_.begin(); it != in_flight_.end();) {
      if (it->second.transfer != transfer || it->second.index != index) {
        ++it;
        continue;
      }
      highest_acknowledged_ = std::max(highest_acknowledged_, it->first);
      last_progress_ = loop_.now();
      it = in_flight_.erase(it);
    }
    auto& out = found->second;
    if (!out.acknowledged[index]) {
      out.acknowledged[index] = true;
      ++out.acknowledged_count;
    }
  }
  while (!in_flight_.empty() && in_flight_.begin()->first + kReorderMax < highest_acknowledged_)
    requeue(in_flight_.begin());
  pump();
}

// --- Bulk lane, sending
// ----------------------------------------------------------------------------------------------------------

void Link::offer(TransferId transfer, std::uint64_t priority, std::uint32_t chunks,
                 std::shared_ptr<ChunkSource> source, bool resume) {
  ISTHMUS_ASSERT(chunks > 0 && chunks <= kChunksMax);
  if (session_ == 0 || outgoing_.count(transfer) > 0) return;
  Outgoing out;
  out.priority = priority;
  out.chunks = chunks;
  out.source = std::move(source);
  out.acknowledged.resize(chunks);
  for (std::uint32_t i = 0; i < chunks; ++i) out.queue.push_back(i);
  out.wait_for_have = resume;
  outgoing_.emplace(transfer, std::move(out));
  pump();
}

void Link::withdraw(TransferId transfer) {
  outgoing_.erase(transfer);
  std::erase_if(in_flight_, [&](const auto& entry) { return entry.second.transfer == transfer; });
  if (reserved_ && reserved_->transfer == transfer) reserved_.reset();
}

bool Link::delivered(TransferId transfer) const {
  const auto found = outgoing_.find(transfer);
  return found != outgoing_.end() && found->second.acknowledged_count == found->second.chunks;
}

std::vector<std::pair<TransferId, std::uint32_t>> Link::acknowledged_chunks() const {
  std::vector<std::pair<TransferId, std::uint32_t>> chunks;
  if (session_ == 0) return chunks;
  for (const auto& [id, out] : outgoing_)
    for (std::uint32_t i = 0; i < out.chunks; ++i)
      if (out.acknowledged[i]) chunks.emplace_back(id, i);
  return chunks;
}

void Link::poke() { pump(); }

void Link::requeue(std::map<std::uint64_t, InFlight>::iterator entry) {
  const auto chunk = entry->second;
  in_flight_.erase(entry);
  const auto found = outgoing_.find(chunk.transfer);
  if (found == outgoing_.end() || found->second.acknowledged[chunk.index]) return;
  found->second.queue.push_front(chunk.index);
  ++counters_.chunks_resent;
}

void Link::requeue_all() {
  while (!in_flight_.empty()) requeue(std::prev(in_flight_.end()));
}

void Link::pump() {
  while (session_ != 0 && bulk_up_ && !bulk_blocked_) {
    if (release_timer_) return;
    if (!reserved_) {
      if (next_bulk_ > credit_) return;
      Outgoing* best = nullptr;
      TransferId best_id = 0;
      for (auto& [id, out] : outgoing_) {
        if (out.wait_for_have || out.queue.empty() ||
            (best != nullptr && best->priority <= out.priority))
          continue;
        if (!out.source->chunk(out.queue.front()).bytes) continue;
        best = &out;
        best_id = id;
      }
      if (best == nullptr) return;
      const auto index = best->queue.front();
      best->queue.pop_front();
      if (best->acknowledged[index]) continue;
      reserved_ = Reserved{best_id, index};
      const auto bytes = best->source->chunk(index).bytes->size() + kFramingBytes;
      const auto when = limit_.reserve(loop_.now(), bytes);
      if (when > loop_.now()) {
        release_timer_ = loop_.call_at(when, [this] {
          release_timer_.reset();
          pump();
        });
        return;
      }
    }
    const auto found = outgoing_.find(reserved_->transfer);
    if (found == outgoing_.end() || found->second.acknowledged[reserved_->index]) {
      reserved_.reset();
      continue;
    }
    const auto chunk = found->second.source->chunk(reserved_->index);
    ByteWriter out;
    out.put(Frame::chunk)
        .put(session_)
        .put(next_bulk_)
        .put(reserved_->transfer)
        .put(reserved_->index)
        .raw(*chunk.bytes);
    const auto bytes = out.size();
    const auto sent = wire_.send(peer_, Lane::bulk, out.take());
    if (!sent) {
      if (sent.error().code == ErrorCode::busy) {
        bulk_blocked_ = true;  // the reservation stands
      } else {
        found->second.queue.push_front(reserved_->index);
        reserved_.reset();
        bulk_up_ = false;  // until the wire says up
      }
      return;
    }
    in_flight_.emplace(next_bulk_++,
                       InFlight{reserved_->transfer, reserved_->index, loop_.now(), bytes});
    reserved_.reset();
    ++chunks_sent_;
    parameter_bytes_ += chunk.parameter_bytes;
    codec_bytes_ += chunk.codec_bytes;
    zstd_bytes_ += chunk.bytes->size();
  }
}

// --- Bulk lane, receiving
// --------------------------------------------------------------------------------------------------------

void Link::have(TransferId transfer, const std::vector<bool>& chunks) {
  ISTHMUS_ASSERT(chunks.size() <= kChunksMax);
  ByteWriter out;
  out.put(kHave).put(transfer).put(static_cast<std::uint32_t>(chunks.size()));
  for (std::size_t i = 0; i < chunks.size(); i += 8) {
    std::uint8_t byte = 0;
    for (std::size_t j = 0; j < 8 && i + j < chunks.size(); ++j)
      byte |= static_cast<std::uint8_t>(chunks[i + j] << j);
    out.put(byte);
  }
  send(out.take());
}

void Link::receive_bulk(std::span<const std::byte> message) {
  ByteReader in(message);
  const auto frame = in.get<Frame>();
  ChunkArrival arrival;
  arrival.session = in.get<std::uint64_t>();
  arrival.sequence = in.get<std::uint64_t>();
  arrival.transfer = in.get<TransferId>();
  arrival.index = in.get<std::uint32_t>();
  if (!in.ok() || frame != Frame::chunk || session_ == 0 || arrival.session != session_) return;
  last_heard_ = loop_.now();
  // Beyond the credit that was ever granted: a peer that does not keep to it gets no memory.
  if (unsettled_ >= 2 * options_.window_chunks) return;
  highest_received_ = std::max(highest_received_, arrival.sequence);
  ++unsettled_;
  if (options_.bug == PlantedBug::acknowledge_early) {
    recent_acks_.emplace_back(arrival.transfer, arrival.index);
    ack_soon();
  }
  owner_.on_chunk(*this, arrival, in.rest());
}

void Link::settle(const ChunkArrival& arrival, bool accepted) {
  if (session_ == 0 || arrival.session != session_) return;
  ISTHMUS_ASSERT(unsettled_ > 0);
  --unsettled_;
  if (accepted) recent_acks_.emplace_back(arrival.transfer, arrival.index);
  while (recent_acks_.size() > kRecentAcksMax) recent_acks_.pop_front();
  ack_soon();
}

// --- For people
// ------------------------------------------------------------------------------------------------------------------

std::string Link::blocked_by() const {
  if (session_ == 0) return "session";
  if (!bulk_up_) return "bulk connection";
  if (release_timer_) return "rate limit";
  if (bulk_blocked_) return "wire";
  bool queued = false, waiting = false;
  for (const auto& [id, out] : outgoing_) {
    queued |= !out.queue.empty();
    waiting |= out.wait_for_have || out.acknowledged_count < out.chunks;
  }
  if (queued && next_bulk_ > credit_) return "credit";
  if (queued) return "encoding";
  return waiting ? "acknowledgement" : "";
}

LinkStatus Link::status() const {
  LinkStatus s;
  s.peer = peer_name_;
  s.address = peer_address_;
  s.state = session_ != 0 ? "up" : !refused_.empty() ? "refused: " + refused_ : "connecting";
  s.round_trip_ms = seconds_of(round_trip_) * 1e3;
  if (samples_.size() > 1) {
    const auto seconds = std::max(1e-9, seconds_of(samples_.back().when - samples_.front().when));
    s.sent_mbit_s =
        static_cast<double>(samples_.back().sent - samples_.front().sent) * 8e-6 / seconds;
    s.received_mbit_s =
        static_cast<double>(samples_.back().received - samples_.front().received) * 8e-6 / seconds;
  }
  s.cap_mbit_s = limit_.bytes_per_second() * 8e-6;
  s.parameter_bytes = parameter_bytes_;
  s.codec_bytes = codec_bytes_;
  s.zstd_bytes = zstd_bytes_;
  s.wire_sent_bytes = wire_.bytes_sent(peer_);
  s.wire_received_bytes = wire_.bytes_received(peer_);
  s.chunks_sent = chunks_sent_;
  s.chunks_resent = counters_.chunks_resent;
  s.reconnects = ever_sessions_ > 0 ? ever_sessions_ - 1 : 0;
  s.waiting_for = blocked_by();
  return s;
}

}  // namespace isthmus::inter
