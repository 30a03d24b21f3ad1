#include "inter/sending_watch.h"

#include <algorithm>

namespace isthmus::inter {

SendingWatch::Counts SendingWatch::counts_of(const TcpFacts& tcp) {
  return {.arrived = tcp.arrived_bytes,
          .segments = tcp.segments_sent,
          .segments_resent = tcp.segments_resent,
          .busy = tcp.busy,
          .limited_by_window = tcp.limited_by_window,
          .limited_by_buffer = tcp.limited_by_buffer};
}

void SendingWatch::add(Counts& sum, const Counts& last, const Counts& first) {
  // What the kernel estimates may fall behind what it said before.
  const auto more = [&](auto field) {
    if (last.*field > first.*field) sum.*field += last.*field - first.*field;
  };
  more(&Counts::arrived);
  more(&Counts::segments);
  more(&Counts::segments_resent);
  more(&Counts::busy);
  more(&Counts::limited_by_window);
  more(&Counts::limited_by_buffer);
}

SendingWatch::SendingWatch(std::span<const BulkPath> paths) {
  for (const auto& path : paths) {
    const auto counts = counts_of(path.tcp);
    paths_.emplace(path.connection, Path{counts, counts});
  }
  facts_.connections = std::max(1u, static_cast<std::uint32_t>(paths.size()));
}

void SendingWatch::look(Nanoseconds now, std::span<const BulkPath> paths) {
  waiting_bytes_ = 0;
  for (const auto& path : paths) {
    const auto found = paths_.find(path.connection);
    if (found == paths_.end()) continue;
    found->second.last = counts_of(path.tcp);
    waiting_bytes_ += path.unwritten_bytes + path.tcp.waiting_bytes;
    facts_.congestion_control = path.tcp.congestion_control;
    facts_.congestion_control_why = path.congestion_control_why;
    facts_.dialed = path.dialed;
  }
  Counts sum;
  for (const auto& [connection, path] : paths_) add(sum, path.last, path.first);
  arrived_.push_back({now, sum.arrived});
  counts_.push_back(sum);
}

LinkTestSent SendingWatch::warm() const {
  auto sent = facts_;
  const auto found = warm_phase(arrived_);
  const auto* phase = std::get_if<WarmPhase>(&found);
  if (phase == nullptr) {
    sent.unmeasured = std::get<Unmeasured>(found);
    return sent;
  }
  Counts counts;
  add(counts, counts_[phase->last], counts_[phase->first]);
  sent.warm = arrived_[phase->last].when - arrived_[phase->first].when;
  sent.arrived = counts.arrived;
  sent.segments = counts.segments;
  sent.segments_resent = counts.segments_resent;
  sent.busy = counts.busy;
  sent.limited_by_window = counts.limited_by_window;
  sent.limited_by_buffer = counts.limited_by_buffer;
  return sent;
}

}  // namespace isthmus::inter
