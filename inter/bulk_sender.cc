#include "inter/bulk_sender.h"

#include <algorithm>

#include "base/assert.h"

namespace isthmus::inter {
namespace {

constexpr std::uint64_t kReorderMax = 32;  // a chunk this far behind an acknowledged one is lost
constexpr double kDrainMaxSeconds = 60;
constexpr std::uint64_t kFlowBytesMin = 1 << 20;  // less tells more of the round trip

}  // namespace

BulkSender::BulkSender(Loop& loop, Wire& wire, RateLimit& limit, GatewayId peer, PlantedBug bug)
    : loop_(loop), wire_(wire), limit_(limit), peer_(peer), bug_(bug) {}

BulkSender::~BulkSender() { drop_reservation(); }

void BulkSender::begin(std::uint64_t session) {
  end();
  session_ = session;
  next_sequence_ = 1;
  credit_ = kCreditAtStart;
  peer_stalled_ = false;
  highest_acknowledged_ = 0;
  last_progress_ = loop_.now();
}

void BulkSender::end() {
  session_ = 0;
  outgoing_.clear();
  in_flight_.clear();
  drop_reservation();
  count_sending();
}

void BulkSender::use(ConnectionId connection) {
  if (connection == connection_) return;
  connection_ = connection;
  blocked_ = false;
  requeue_all();
  pump();
}

void BulkSender::writable() {
  blocked_ = false;
  pump();
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
  std::erase_if(in_flight_, [&](const auto& entry) { return entry.second.transfer == transfer; });
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
                              std::uint64_t credit, bool stalled) {
  credit_ = std::max(credit_, credit);
  peer_stalled_ = stalled;
  for (const auto& [transfer, index] : chunks) {
    const auto found = outgoing_.find(transfer);
    if (found == outgoing_.end() || index >= found->second.chunks) continue;
    arrived(found->second, index);
    found->second.acknowledge(index);
  }
  while (!in_flight_.empty() && in_flight_.begin()->first + kReorderMax < highest_acknowledged_)
    requeue(in_flight_.begin());
  pump();
}

void BulkSender::arrived(Outgoing& out, std::uint32_t index) {
  const auto sequence = std::exchange(out.sequences[index], 0);
  if (sequence == 0) return;
  highest_acknowledged_ = std::max(highest_acknowledged_, sequence);
  last_progress_ = loop_.now();
  in_flight_.erase(sequence);
}

void BulkSender::peer_has(const Have& have) {
  const auto found = outgoing_.find(have.transfer);
  if (found == outgoing_.end() || have.chunks.size() != found->second.chunks) return;
  auto& out = found->second;
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
  in_flight_.erase(entry);
  const auto found = outgoing_.find(chunk.transfer);
  if (found == outgoing_.end()) return;
  found->second.sequences[chunk.index] = 0;
  if (found->second.acknowledged[chunk.index]) return;
  found->second.queue.push_front(chunk.index);
  ++counters_.chunks_resent;
}

void BulkSender::requeue_all() {
  while (!in_flight_.empty()) requeue(std::prev(in_flight_.end()));
}

void BulkSender::resend_overdue(Nanoseconds round_trip, double bytes_per_second) {
  if (in_flight_.empty() || peer_stalled_) return;
  const auto now = loop_.now();
  double bytes = 0;
  for (const auto& [sequence, chunk] : in_flight_) bytes += static_cast<double>(chunk.bytes);
  const auto drain =
      bytes_per_second > 0
          ? static_cast<Nanoseconds>(std::min(kDrainMaxSeconds, 2 * bytes / bytes_per_second) * 1e9)
          : 4 * kSecond;
  const auto patience = std::max(2 * kSecond, 4 * round_trip + drain);
  if (now - std::max(last_progress_, in_flight_.begin()->second.sent) <= patience) return;
  last_progress_ = now;
  while (!in_flight_.empty() && now - in_flight_.begin()->second.sent > patience)
    requeue(in_flight_.begin());
  pump();
}

// What it was for does not leave.
void BulkSender::drop_reservation() {
  if (release_timer_) loop_.cancel(*release_timer_);
  release_timer_.reset();
  if (reserved_) limit_.give_back(reserved_->cost());
  reserved_.reset();
}

void BulkSender::pump() {
  count_sending();
  while (session_ != 0 && connection_ != 0 && !blocked_ && !release_timer_) {
    if (!reserved_ && !reserve_next()) break;
    if (release_timer_ || !send_reserved()) break;
  }
  count_starving();
}

void BulkSender::count_starving() {
  const bool starving = sending_since_ && !blocked_ && !release_timer_ && !reserved_ &&
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
  for (;;) {
    if (next_sequence_ > credit_ || in_flight_.size() >= kInFlightMax) return false;
    Outgoing* best = nullptr;
    TransferId best_id = 0;
    ChunkBytes best_chunk;
    for (auto& [id, out] : outgoing_) {
      if (out.wait_for_have || out.queue.empty() ||
          (best != nullptr && best->priority <= out.priority))
        continue;
      auto chunk = out.source->chunk(out.queue.front());
      if (!chunk.bytes) continue;
      best = &out;
      best_id = id;
      best_chunk = std::move(chunk);
    }
    if (best == nullptr) return false;
    const auto index = best->queue.front();
    best->queue.pop_front();
    if (best->acknowledged[index]) continue;
    reserved_ = Reserved{best_id, index, std::move(best_chunk)};
    take_turn();
    return true;
  }
}

void BulkSender::take_turn() {
  const auto when = limit_.reserve(loop_.now(), reserved_->cost());
  if (when > loop_.now())
    release_timer_ = loop_.call_at(when, [this] {
      release_timer_.reset();
      pump();
    });
}

void BulkSender::rate_changed() {
  if (!release_timer_) return;
  loop_.cancel(*release_timer_);
  release_timer_.reset();
  take_turn();
  pump();
}

// False: the wire does not take it now.
bool BulkSender::send_reserved() {
  const auto found = outgoing_.find(reserved_->transfer);
  if (found == outgoing_.end() || found->second.acknowledged[reserved_->index]) {
    drop_reservation();
    return true;
  }
  const auto& chunk = reserved_->chunk;
  WireMessage message(Chunk{.session = session_,
                            .sequence = next_sequence_,
                            .transfer = reserved_->transfer,
                            .index = reserved_->index,
                            .payload = {}}
                          .encode_head(),
                      chunk.bytes);
  const auto bytes = message.size();
  const auto sent = wire_.send(peer_, Lane::bulk, std::move(message), connection_);
  if (!sent) {
    if (sent.error().code == ErrorCode::busy) {
      blocked_ = true;  // the reservation stands
    } else {
      found->second.queue.push_front(reserved_->index);
      drop_reservation();
      connection_ = 0;  // it is about to go down
    }
    return false;
  }
  // One that the peer had begun anew without may still be on its way from before.
  in_flight_.erase(std::exchange(found->second.sequences[reserved_->index], next_sequence_));
  in_flight_.emplace(next_sequence_++,
                     InFlight{reserved_->transfer, reserved_->index, loop_.now(), bytes});
  ++counters_.chunks_sent;
  counters_.parameter_bytes += chunk.parameter_bytes;
  counters_.codec_bytes += chunk.codec_bytes;
  counters_.zstd_bytes += chunk.bytes.size();
  reserved_.reset();
  return true;
}

// Whatever begins or ends a transfer, or the connection, calls this.
void BulkSender::count_sending() {
  const bool sending = connection_ != 0 && std::ranges::any_of(outgoing_, [](const auto& entry) {
                         return entry.second.acknowledged_count < entry.second.chunks;
                       });
  if (sending == sending_since_.has_value()) return;
  if (sending) {
    sending_since_ = loop_.now();
    sent_before_ = counters_.zstd_bytes;
    starved_ = 0;
    return;
  }
  const auto took = loop_.now() - *sending_since_;
  const auto bytes = counters_.zstd_bytes - sent_before_;
  if (bytes >= kFlowBytesMin && took > 0)
    last_flow_ = Flow{static_cast<double>(bytes) / seconds_of(took),
                      seconds_of(starved_) / seconds_of(took)};
  sending_ += took;
  sending_since_.reset();
}

double BulkSender::seconds_sending() const {
  return seconds_of(sending_ + (sending_since_ ? loop_.now() - *sending_since_ : 0));
}

std::uint64_t BulkSender::floor() const {
  return in_flight_.empty() ? next_sequence_ - 1 : in_flight_.begin()->first - 1;
}

std::string BulkSender::waits_for() const {
  if (connection_ == 0) return "bulk connection";
  if (release_timer_) return "rate limit";
  if (blocked_) return "wire";
  bool queued = false, waiting = false;
  for (const auto& [id, out] : outgoing_) {
    queued |= !out.queue.empty();
    waiting |= out.wait_for_have || out.acknowledged_count < out.chunks;
  }
  if (queued && next_sequence_ > credit_) return "credit";
  if (queued) return "encoding";
  return waiting ? "acknowledgement" : "";
}

}  // namespace isthmus::inter
