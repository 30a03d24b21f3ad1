#include "inter/bulk_sender.h"

#include <algorithm>
#include <limits>

#include "base/assert.h"

namespace isthmus::inter {
namespace {

// A chunk this far behind an acknowledged one of its connection is lost.
constexpr std::uint64_t kReorderMax = 32;
constexpr double kDrainMaxSeconds = 60;
// What the bulk lane carries in a heartbeat beside chunks is less: it is no sign of these.
constexpr std::uint64_t kNoChunkBytes = 1024;
constexpr std::uint64_t kFlowBytesMin = 1 << 20;  // less tells more of the round trip
// A copy costs as much of the line as the chunk, and TCP's windows tell only about how long the
// first one still takes.
constexpr double kLate = 1.5;
constexpr std::uint32_t kCopiedShare = 4;  // at most a quarter of a transfer
constexpr Nanoseconds kLookForLate = 10 * kMillisecond;

}  // namespace

BulkSender::BulkSender(Loop& loop, Wire& wire, RateLimit& limit, GatewayId peer,
                       std::uint32_t connections_max, PlantedBug bug)
    : loop_(loop),
      wire_(wire),
      limit_(limit),
      peer_(peer),
      bug_(bug),
      width_(connections_max),
      pace_(loop, wire, peer) {}

BulkSender::~BulkSender() {
  drop_reservation();
  if (copy_timer_) loop_.cancel(*copy_timer_);
}

void BulkSender::begin(std::uint64_t session) {
  end();
  session_ = session;
  width_.begin();
  pace_.new_session();
  next_sequence_ = 1;
  credit_ = kCreditAtStart;
  peer_stalled_ = false;
  last_progress_ = loop_.now();
}

void BulkSender::end() {
  session_ = 0;
  outgoing_.clear();
  in_flight_.clear();
  for (auto& [id, path] : paths_) path = {.blocked = path.blocked};
  drop_reservation();
  count_sending();
}

void BulkSender::use(std::span<const ConnectionId> connections) {
  std::erase_if(paths_, [&](const auto& entry) {
    return std::ranges::find(connections, entry.first) == connections.end();
  });
  for (const auto connection : connections) paths_.try_emplace(connection);
  pace_.use(connections);
  std::vector<std::uint64_t> lost;
  for (const auto& [sequence, chunk] : in_flight_)
    if (!paths_.contains(chunk.connection)) lost.push_back(sequence);
  // Each goes to the front of its queue: the oldest last.
  std::for_each(lost.rbegin(), lost.rend(),
                [this](std::uint64_t sequence) { requeue(in_flight_.find(sequence)); });
  pump();
}

void BulkSender::writable(ConnectionId connection) {
  const auto found = paths_.find(connection);
  if (found == paths_.end()) return;
  found->second.blocked = false;
  pump();
}

// Chunks leave on those before it: on the oldest ones, where not all are needed.
std::map<ConnectionId, BulkSender::Path>::const_iterator BulkSender::used_end() const {
  return paths_.size() <= width_.enough() ? paths_.end()
                                          : std::next(paths_.begin(), width_.enough());
}

bool BulkSender::any_writable() const {
  return std::any_of(paths_.begin(), used_end(),
                     [](const auto& entry) { return !entry.second.blocked; });
}

bool BulkSender::may_send() const {
  return next_sequence_ <= credit_ && in_flight_.size() < kInFlightMax;
}

void BulkSender::offer(TransferId transfer, std::uint64_t priority, std::uint32_t chunks,
                       std::shared_ptr<ChunkSource> source, bool resume) {
  ISTHMUS_ASSERT(chunks > 0 && chunks <= kTransferChunksMax);
  if (session_ == 0 || offers(transfer)) return;
  Outgoing out;
  out.priority = priority;
  out.chunks = chunks;
  out.source = std::move(source);
  out.acknowledged.resize(chunks);
  out.sequences.resize(chunks);
  for (std::uint32_t i = 0; i < chunks; ++i) out.queue.push_back(i);
  out.wait_for_have = resume;
  outgoing_.emplace(transfer, std::move(out));
  pump();
}

void BulkSender::withdraw(TransferId transfer) {
  outgoing_.erase(transfer);
  for (auto entry = in_flight_.begin(); entry != in_flight_.end();) {
    const auto at = entry++;
    if (at->second.transfer == transfer) forget(at);
  }
  count_sending();
  if (!reserved_ || reserved_->transfer != transfer) return;
  drop_reservation();
  pump();
}

std::vector<std::pair<TransferId, std::uint32_t>> BulkSender::acknowledged_chunks() const {
  std::vector<std::pair<TransferId, std::uint32_t>> chunks;
  for (const auto& [id, out] : outgoing_)
    for (std::uint32_t i = 0; i < out.chunks; ++i)
      if (out.acknowledged[i]) chunks.emplace_back(id, i);
  return chunks;
}

void BulkSender::Outgoing::acknowledge(std::uint32_t index) {
  if (acknowledged[index]) return;
  acknowledged[index] = true;
  ++acknowledged_count;
}

void BulkSender::Outgoing::lost(std::uint32_t index) {
  acknowledged[index] = false;
  --acknowledged_count;
  queue.push_back(index);
}

void BulkSender::acknowledged(std::span<const std::pair<TransferId, std::uint32_t>> chunks,
                              std::uint64_t credit, bool stalled, Nanoseconds round_trip) {
  credit_ = std::max(credit_, credit);
  peer_stalled_ = stalled;
  round_trip_ = round_trip;
  for (const auto& [transfer, index] : chunks) {
    const auto found = outgoing_.find(transfer);
    if (found == outgoing_.end() || index >= found->second.chunks) continue;
    arrived(found->second, index, round_trip);
    found->second.acknowledge(index);
  }
  if (!peer_stalled_) requeue_overtaken();
  pump();
}

void BulkSender::requeue_overtaken() {
  std::vector<std::uint64_t> lost;
  for (const auto& [sequence, chunk] : in_flight_) {
    const auto path = paths_.find(chunk.connection);
    if (path != paths_.end() && chunk.number + kReorderMax < path->second.highest_acknowledged)
      lost.push_back(sequence);
  }
  for (const auto sequence : lost) requeue(in_flight_.find(sequence));
}

void BulkSender::arrived(Outgoing& out, std::uint32_t index, Nanoseconds round_trip) {
  const auto sequence = std::exchange(out.sequences[index], 0);
  if (sequence == 0) return;
  last_arrival_ = last_progress_ = loop_.now();
  const auto entry = in_flight_.find(sequence);
  const auto& chunk = entry->second;
  // Which of two came first is not known.
  if (const auto path = paths_.find(chunk.connection); path != paths_.end() && chunk.twin == 0)
    path->second.highest_acknowledged = std::max(path->second.highest_acknowledged, chunk.number);
  arrived_bytes_ += chunk.bytes;
  width_.arrived(loop_.now(), chunk.bytes, static_cast<std::uint32_t>(paths_.size()), round_trip);
  forget_with_twin(entry);
}

void BulkSender::forget_with_twin(std::map<std::uint64_t, InFlight>::iterator entry) {
  const auto twin = in_flight_.find(entry->second.twin);
  forget(entry);
  if (twin != in_flight_.end()) forget(twin);
}

void BulkSender::forget(std::map<std::uint64_t, InFlight>::iterator entry) {
  if (const auto path = paths_.find(entry->second.connection); path != paths_.end())
    path->second.bytes_in_flight -= entry->second.bytes;
  in_flight_.erase(entry);
}

void BulkSender::peer_has(const Have& have) {
  const auto found = outgoing_.find(have.transfer);
  if (found == outgoing_.end() || have.chunks.size() != found->second.chunks) return;
  auto& out = found->second;
  // Whoever acknowledges what has not left yet, and then has it not, does not make the queue
  // longer.
  std::erase_if(out.queue, [&](std::uint32_t i) { return out.acknowledged[i]; });
  std::uint32_t end = 0;  // of what the peer has
  for (std::uint32_t i = 0; i < out.chunks; ++i)
    if (have.chunks[i]) end = i + 1;
  for (std::uint32_t i = 0; i < out.chunks; ++i)
    if (have.chunks[i] || (bug_ == PlantedBug::skip_gap && i < end))
      out.acknowledge(i);
    else if (out.acknowledged[i])
      out.lost(i);  // it has begun anew with this contribution
  if (end > 0) ++counters_.resumes;
  std::erase_if(out.queue, [&](std::uint32_t i) { return out.acknowledged[i]; });
  out.wait_for_have = false;
  pump();
}

void BulkSender::requeue(std::map<std::uint64_t, InFlight>::iterator entry) {
  const auto chunk = entry->second;
  forget(entry);
  const auto found = outgoing_.find(chunk.transfer);
  if (found == outgoing_.end()) return;
  // The other one may still arrive, and is all there is of the chunk now.
  if (const auto twin = in_flight_.find(chunk.twin); twin != in_flight_.end()) {
    twin->second.twin = 0;
    found->second.sequences[chunk.index] = twin->first;
    return;
  }
  found->second.sequences[chunk.index] = 0;
  if (found->second.acknowledged[chunk.index]) return;
  found->second.queue.push_front(chunk.index);
  ++counters_.chunks_resent;
}

void BulkSender::heartbeat(Nanoseconds round_trip, const BulkTotals& totals) {
  const auto now = loop_.now();
  const auto since = std::exchange(last_heartbeat_, now);
  const auto arrived = static_cast<double>(std::exchange(arrived_bytes_, 0));
  const auto before = std::exchange(acknowledged_bytes_, totals.acknowledged_bytes);
  // Less than before: a connection has ended.
  if (totals.acknowledged_bytes > before + kNoChunkBytes) last_arrival_ = last_progress_ = now;
  width_.carried(now, totals);
  pace_.suffice(width_.enough());
  if (arrived > 0 && now > since) {
    goodput_ = std::max(arrived / seconds_of(now - since), goodput_ / 2);
    pace_.note_goodput(goodput_);
  }
  if (in_flight_.empty() || peer_stalled_) return;
  std::size_t bytes = 0;
  for (const auto& [sequence, chunk] : in_flight_) bytes += chunk.bytes;
  const auto drain =
      goodput_ > 0 ? std::min(kDrainMaxSeconds, 2 * static_cast<double>(bytes) / goodput_) : 4;
  const auto patience =
      std::max(2 * kSecond, 4 * round_trip + static_cast<Nanoseconds>(drain * 1e9)) +
      limit_.cost(bytes);
  if (now - std::max(last_progress_, in_flight_.begin()->second.sent) <= patience) return;
  last_progress_ = now;
  std::vector<std::uint64_t> overdue;
  for (const auto& [sequence, chunk] : in_flight_)
    if (now - chunk.sent > patience) overdue.push_back(sequence);
  std::for_each(overdue.rbegin(), overdue.rend(),
                [this](std::uint64_t sequence) { requeue(in_flight_.find(sequence)); });
  pump();
}

// What it was for does not leave.
void BulkSender::drop_reservation() {
  if (release_timer_) loop_.cancel(*release_timer_);
  release_timer_.reset();
  if (reserved_ && reserved_->charged) limit_.give_back(reserved_->cost());
  reserved_.reset();
}

void BulkSender::pump() {
  count_sending();
  while (session_ != 0 && any_writable() && !release_timer_) {
    if (!reserved_ && !reserve_next()) break;
    if (release_timer_ || !send_reserved()) break;
  }
  if (all_is_sent()) copy_late_ones();
  count_starving();
}

bool BulkSender::all_is_sent() const {
  return session_ != 0 && !in_flight_.empty() && !reserved_ &&
         std::ranges::all_of(outgoing_, [](const auto& entry) {
           return entry.second.queue.empty() && !entry.second.wait_for_have;
         });
}

// The last chunks of a transfer wait where their connection has a small window or mends a loss,
// while others have nothing to do.
void BulkSender::copy_late_ones() {
  if (paths_.size() < 2 || peer_stalled_ || !may_send()) return;
  look_again_ = copy_timer_.has_value();
  if (look_again_) return;
  std::map<ConnectionId, BulkPath> paths;
  for (auto& path : wire_.bulk_paths(peer_)) paths.emplace(path.connection, std::move(path));
  for (const auto& late : late_ones(paths)) {
    look_again_ = true;  // they get later by a loss
    const auto& chunk = in_flight_.at(late.sequence);
    // Below a rate limit a late chunk is one that is not there when as long again has passed as it
    // takes at that.
    if (!may_send() || !limit_.idle(loop_.now() - limit_.cost(chunk.bytes + kFramingBytes))) break;
    const auto time_on = [&](const BulkPath& path) {
      return path.tcp.time_for(
          static_cast<double>(path.unwritten_bytes + path.tcp.waiting_bytes + chunk.bytes));
    };
    auto soonest = paths_.end();
    Nanoseconds time = 0;
    for (auto path = paths_.begin(); path != used_end(); ++path) {
      const auto facts = paths.find(path->first);
      if (path->second.blocked || path->first == chunk.connection || facts == paths.end()) continue;
      const auto there = time_on(facts->second);
      if (soonest != paths_.end() && there >= time) continue;
      soonest = path;
      time = there;
    }
    // They are looked at latest first: no other one gains more.
    if (soonest == paths_.end() ||
        static_cast<double>(late.time) <= kLate * static_cast<double>(time))
      break;
    const auto on = soonest->first;
    if (copy(late.sequence, on)) paths.at(on).unwritten_bytes += chunk.bytes;
  }
  copy_timer_ = loop_.call_at(loop_.now() + std::max(kLookForLate, round_trip_ / 4), [this] {
    copy_timer_.reset();
    if (look_again_) pump();
  });
}

// Those that may still be copied, latest first.
std::vector<BulkSender::Late> BulkSender::late_ones(
    const std::map<ConnectionId, BulkPath>& paths) const {
  std::vector<Late> late;
  std::map<ConnectionId, double> behind;  // bytes, of what left after it
  for (auto it = in_flight_.rbegin(); it != in_flight_.rend(); ++it) {
    const auto& [sequence, chunk] = *it;
    const auto after = behind[chunk.connection];
    behind[chunk.connection] += static_cast<double>(chunk.bytes);
    const auto path = paths.find(chunk.connection);
    const auto out = outgoing_.find(chunk.transfer);
    if (chunk.twin != 0 || path == paths.end() || out == outgoing_.end() ||
        (out->second.copies + 1) * kCopiedShare > out->second.chunks)
      continue;
    const auto bytes =
        static_cast<double>(path->second.unwritten_bytes + path->second.tcp.waiting_bytes) - after;
    if (bytes > 0) late.push_back({sequence, path->second.tcp.time_for(bytes)});
  }
  std::ranges::stable_sort(late, std::ranges::greater(), &Late::time);
  return late;
}

bool BulkSender::copy(std::uint64_t sequence, ConnectionId connection) {
  auto& first = in_flight_.at(sequence);
  auto& out = outgoing_.at(first.transfer);
  if ((out.copies + 1) * kCopiedShare > out.chunks) return false;
  const auto chunk = out.source->chunk(first.index);
  if (!chunk.bytes) return false;
  const auto message = message_of(first.transfer, first.index, chunk.bytes);
  if (!wire_.send(peer_, Lane::bulk, message, connection)) {
    paths_.at(connection).blocked = true;  // or about to go down
    return false;
  }
  limit_.reserve(loop_.now(), first.bytes + kFramingBytes);
  ++out.copies;
  ++counters_.chunks_copied;
  first.twin = next_sequence_;
  sent_on(paths_.at(connection), {.transfer = first.transfer,
                                  .index = first.index,
                                  .sent = loop_.now(),
                                  .bytes = first.bytes,
                                  .connection = connection,
                                  .number = 0,
                                  .twin = sequence});
  return true;
}

void BulkSender::sent_on(Path& path, const InFlight& chunk) {
  path.bytes_in_flight += chunk.bytes;
  in_flight_.emplace(next_sequence_++, chunk).first->second.number = ++path.last_number;
}

WireMessage BulkSender::message_of(TransferId transfer, std::uint32_t index,
                                   SharedBytes bytes) const {
  return {Chunk{.session = session_,
                .sequence = next_sequence_,
                .transfer = transfer,
                .index = index,
                .payload = {}}
              .encode_head(),
          std::move(bytes)};
}

void BulkSender::count_starving() {
  width_.full(loop_.now(), sending_since_ && !release_timer_ && !any_writable());
  const bool starving = sending_since_ && any_writable() && !release_timer_ && !reserved_ &&
                        next_sequence_ <= credit_ &&
                        std::ranges::any_of(outgoing_, [](const auto& entry) {
                          return !entry.second.wait_for_have && !entry.second.queue.empty();
                        });
  if (starving == starving_since_.has_value()) return;
  if (starving)
    starving_since_ = loop_.now();
  else
    starved_ += loop_.now() - *std::exchange(starving_since_, std::nullopt);
}

// The next chunk takes its place at the rate limit. False: nothing to send.
bool BulkSender::reserve_next() {
  if (!may_send()) return false;
  reserved_ = take_next(std::numeric_limits<std::uint64_t>::max());
  if (!reserved_) return false;
  take_turn();
  return true;
}

// Of the oldest transfer that has a coded chunk, and is older than `than` or as old.
std::optional<BulkSender::Reserved> BulkSender::take_next(std::uint64_t than) {
  for (;;) {
    Outgoing* best = nullptr;
    TransferId best_id = 0;
    ChunkBytes best_chunk;
    for (auto& [id, out] : outgoing_) {
      if (out.wait_for_have || out.queue.empty() || out.priority > than ||
          (best != nullptr && best->priority <= out.priority))
        continue;
      auto chunk = out.source->chunk(out.queue.front());
      if (!chunk.bytes) continue;
      best = &out;
      best_id = id;
      best_chunk = std::move(chunk);
    }
    if (best == nullptr) return std::nullopt;
    const auto index = best->queue.front();
    best->queue.pop_front();
    if (!best->acknowledged[index]) return Reserved{best_id, index, std::move(best_chunk)};
  }
}

// What came while it waited, of an older transfer, takes its place.
void BulkSender::prefer_older() {
  const auto found = outgoing_.find(reserved_->transfer);
  if (found == outgoing_.end() || found->second.priority == 0) return;
  auto older = take_next(found->second.priority - 1);
  if (!older) return;
  found->second.queue.push_front(reserved_->index);
  if (reserved_->charged) limit_.give_back(reserved_->cost(), older->cost());
  older->charged = reserved_->charged;
  reserved_ = std::move(older);
}

void BulkSender::take_turn() {
  const auto cost = reserved_->cost();
  const auto when = limit_.reserve(loop_.now(), cost);
  reserved_->charged = true;
  if (when > loop_.now())
    release_timer_ = loop_.call_at(when, [this] {
      release_timer_.reset();
      pump();
    });
}

void BulkSender::rate_changed() {
  if (reserved_) reserved_->charged = false;
  if (!release_timer_) return;
  loop_.cancel(*release_timer_);
  release_timer_.reset();
  take_turn();
  pump();
}

// False: the wire does not take it now.
bool BulkSender::send_reserved() {
  prefer_older();
  const auto found = outgoing_.find(reserved_->transfer);
  if (found == outgoing_.end() || found->second.acknowledged[reserved_->index]) {
    drop_reservation();
    return true;
  }
  const auto& chunk = reserved_->chunk;
  const auto message = message_of(reserved_->transfer, reserved_->index, chunk.bytes);
  const auto path = send_on_emptiest(message);
  if (path == paths_.end()) {
    // The reservation stands, unless all connections are about to go down.
    if (!paths_.empty()) return false;
    found->second.queue.push_front(reserved_->index);
    drop_reservation();
    return false;
  }
  // One that the peer had begun anew without may still be on its way from before.
  const auto before =
      in_flight_.find(std::exchange(found->second.sequences[reserved_->index], next_sequence_));
  if (before != in_flight_.end()) forget_with_twin(before);
  sent_on(path->second, {.transfer = reserved_->transfer,
                         .index = reserved_->index,
                         .sent = loop_.now(),
                         .bytes = message.size(),
                         .connection = path->first,
                         .number = 0,
                         .twin = 0});
  ++counters_.chunks_sent;
  counters_.parameter_bytes += chunk.parameter_bytes;
  counters_.codec_bytes += chunk.codec_bytes;
  counters_.zstd_bytes += chunk.bytes.size();
  reserved_.reset();
  return true;
}

// On the writable connection with the least on its way. The end: none takes it now.
std::map<ConnectionId, BulkSender::Path>::iterator BulkSender::send_on_emptiest(
    const WireMessage& message) {
  for (;;) {
    auto emptiest = paths_.end();
    const auto end = used_end();
    for (auto path = paths_.begin(); path != end; ++path)
      if (!path->second.blocked &&
          (emptiest == paths_.end() ||
           path->second.bytes_in_flight < emptiest->second.bytes_in_flight))
        emptiest = path;
    if (emptiest == paths_.end()) return emptiest;
    const auto sent = wire_.send(peer_, Lane::bulk, message, emptiest->first);
    if (sent) return emptiest;
    if (sent.error().code == ErrorCode::busy)
      emptiest->second.blocked = true;
    else
      paths_.erase(emptiest);  // it is about to go down; use() follows
  }
}

// Whatever begins or ends a transfer, or the connection, calls this.
void BulkSender::count_sending() {
  const bool sending = !paths_.empty() && std::ranges::any_of(outgoing_, [](const auto& entry) {
    return entry.second.acknowledged_count < entry.second.chunks;
  });
  if (sending == sending_since_.has_value()) return;
  if (sending) {
    sending_since_ = loop_.now();
    sent_before_ = counters_.zstd_bytes;
    starved_ = 0;
    pace_.suffice(width_.enough());
    pace_.sending_begins();
    return;
  }
  const auto took = loop_.now() - *sending_since_;
  const auto bytes = counters_.zstd_bytes - sent_before_;
  if (bytes >= kFlowBytesMin && took > 0)
    last_flow_ = Flow{static_cast<double>(bytes) / seconds_of(took),
                      seconds_of(starved_) / seconds_of(took)};
  sending_ += took;
  sending_since_.reset();
  pace_.sending_ends();
}

double BulkSender::seconds_sending() const {
  return seconds_of(sending_ + (sending_since_ ? loop_.now() - *sending_since_ : 0));
}

std::uint64_t BulkSender::floor() const {
  return in_flight_.empty() ? next_sequence_ - 1 : in_flight_.begin()->first - 1;
}

std::string BulkSender::waits_for() const {
  if (paths_.empty()) return "bulk connection";
  if (release_timer_) return "rate limit";
  if (!any_writable()) return "wire";
  bool queued = false, waiting = false;
  for (const auto& [id, out] : outgoing_) {
    queued |= !out.queue.empty();
    waiting |= out.wait_for_have || out.acknowledged_count < out.chunks;
  }
  if (queued && !may_send()) return "credit";
  if (queued) return "encoding";
  return waiting ? "acknowledgement" : "";
}

}  // namespace isthmus::inter
