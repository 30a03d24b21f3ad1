#include "inter/bulk_pace.h"

#include <algorithm>
#include <utility>

#include "inter/bulk_width.h"

namespace isthmus::inter {

namespace {

// Bytes per second. The kernel lets a packet wait for as long as it takes at the pace that there is
// when the one before leaves, whatever the pace is after that.
constexpr double kSlowestLane = 2000;

}  // namespace

BulkPace::BulkPace(Loop& loop, Wire& wire, GatewayId peer)
    : loop_(loop), wire_(wire), peer_(peer), tasks_(loop) {}

void BulkPace::use(std::span<const ConnectionId> connections) {
  std::erase_if(paths_, [&](const auto& entry) {
    return std::ranges::find(connections, entry.first) == connections.end();
  });
  bool more = false;
  for (const auto connection : connections) more |= paths_.try_emplace(connection).second;
  if (sending_ && more) look();
}

void BulkPace::new_session() {
  forward_.new_session();
  line_ = {};  // it may be on another line
}

void BulkPace::sending_begins() {
  sending_ = true;
  line_.begin(loop_.now());
  look();
}

void BulkPace::sending_ends() {
  sending_ = false;
  tasks_.stop_timer();
  // What is spread stays so: the kernel does not forget it.
  for (auto& [connection, path] : paths_)
    if (path.pace != kSpread) set(connection, path, std::nullopt);
}

void BulkPace::look() {
  tasks_.stop_timer();
  const auto facts = wire_.bulk_paths(peer_);
  if (facts.empty()) return;  // use() says when there are connections
  const auto most = BulkWidth::best_for(facts);
  shares_line_ = most == BulkWidth::Most::some;
  switch (most) {
    case BulkWidth::Most::one:
      return;
    case BulkWidth::Most::some:
      return share_line(facts);
    case BulkWidth::Most::many:
      return spread();
  }
}

void BulkPace::share_line(std::span<const BulkPath> facts) {
  LinePace::Sample sample{.now = loop_.now()};
  const auto note_shortest = [](Nanoseconds& shortest, Nanoseconds time) {
    if (time > 0 && (shortest == 0 || time < shortest)) shortest = time;
  };
  std::size_t sharing = 0;
  for (const auto& fact : facts) {
    const auto path = paths_.find(fact.connection);
    if (path == paths_.end()) continue;
    const auto& tcp = fact.tcp;
    const auto before = std::exchange(path->second.delivered_bytes, tcp.delivered_bytes);
    const bool delivers = before && tcp.delivered_bytes > *before;
    sample.full |= tcp.unsent_bytes > 0;
    sharing += delivers || tcp.unsent_bytes > 0;  // who delivers may have more at any time
    note_shortest(sample.round_trip_min, tcp.round_trip_min);
    if (!delivers) continue;
    delivered_bytes_ += tcp.delivered_bytes - *before;
    note_shortest(sample.round_trip, tcp.round_trip);
  }
  sample.delivered_bytes = delivered_bytes_;
  // Of stamps that wait where bulk does.
  if (const auto waits = forward_.waits(sample.now);
      waits && 2 * waits->both_ways >= sample.round_trip - sample.round_trip_min)
    sample.waits = waits->there;
  line_.look(sample);
  const auto line = line_.bytes_per_second();
  if (sharing == 0) sharing = std::clamp<std::size_t>(paths_.size(), 1, enough_);
  const auto share =
      line ? std::optional(std::max(*line / static_cast<double>(sharing), kSlowestLane))
           : std::nullopt;
  for (auto& [connection, path] : paths_) set(connection, path, share);
  tasks_.start_timer(line_.next_look(), [this] { look(); });
}

// The kernel sets a timer for each burst of each connection: on a fast line, where losses call for
// many connections, that costs more than it gains, and the small windows of so many are no bursts.
void BulkPace::spread() {
  constexpr double kTimersCostLittle = 15e6;  // bytes per second
  const bool all = goodput_ > 0 && goodput_ < kTimersCostLittle;
  auto left = all ? paths_.size() : BulkWidth::at_first(BulkWidth::Most::many);
  for (auto& [connection, path] : paths_) {
    if (left-- == 0) return;
    set(connection, path, kSpread);
  }
}

void BulkPace::set(ConnectionId connection, Path& path, std::optional<double> pace) {
  // One that holds is said at each look: a link test on the same connections sets paces of its own,
  // and none when it ends.
  if (std::exchange(path.pace, pace) != pace || pace) wire_.pace(peer_, connection, pace);
}

}  // namespace isthmus::inter
