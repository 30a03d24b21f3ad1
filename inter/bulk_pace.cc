#include "inter/bulk_pace.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "inter/bulk_width.h"

namespace isthmus::inter {

namespace {

// Bytes per second. The kernel lets a packet wait for as long as it takes at the pace that there is
// when the one before leaves, whatever the pace is after that.
constexpr double kSlowestLane = 2000;
constexpr double kNarrow = 0.5;  // of a share: a window for less is of the moment

// Bytes per second of the line for each of those that share it, of which each can carry so much at
// most. BBR lets each stand still for a moment every ten seconds, to see the shortest round trip:
// what such a one leaves is the others'.
double share_of(double line, std::vector<double> most) {
  std::ranges::sort(most);
  auto left = most.size();
  auto free = line;
  for (const auto can : most) {
    if (can >= kNarrow * free / static_cast<double>(left)) return free / static_cast<double>(left);
    free -= can;
    --left;
  }
  return line / static_cast<double>(most.size());
}

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
  std::vector<double> sharing;  // as much as each can carry
  for (const auto& fact : facts) {
    const auto path = paths_.find(fact.connection);
    if (path == paths_.end()) continue;
    const auto& tcp = fact.tcp;
    const auto before = std::exchange(path->second.delivered_bytes, tcp.delivered_bytes);
    const bool delivers = before && tcp.delivered_bytes > *before;
    sample.full |= tcp.unsent_bytes > 0;
    if (delivers || tcp.unsent_bytes > 0)  // who delivers may have more at any time
      sharing.push_back(tcp.window_bytes > 0 && tcp.round_trip_min > 0
                            ? static_cast<double>(tcp.window_bytes) / seconds_of(tcp.round_trip_min)
                            : std::numeric_limits<double>::infinity());
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
  if (sharing.empty())
    sharing.resize(std::clamp<std::size_t>(paths_.size(), 1, enough_),
                   std::numeric_limits<double>::infinity());
  const auto share =
      line ? std::optional(std::max(share_of(*line, sharing), kSlowestLane)) : std::nullopt;
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
