#include "inter/bulk_width.h"

#include <algorithm>
#include <utility>

namespace isthmus::inter {
namespace {

constexpr std::string_view kLosses = "losses keep windows narrow";
constexpr std::string_view kKernelLimits = "the kernel's limits keep windows narrow";
constexpr std::string_view kFull = "these fill the line";
constexpr std::string_view kThin = "more would have windows of a few packets";
constexpr std::string_view kNoFaster = "more were no faster";
constexpr std::string_view kLimit = "the lower limit of both sites";

}  // namespace

BulkWidth::Most BulkWidth::best_for(std::span<const BulkPath> paths) {
  const auto any = [&](const auto& is) { return std::ranges::any_of(paths, is); };
  if (any([](const auto& path) { return path.polite.has_value(); })) return Most::one;
  const auto bbr = [](const auto& path) { return path.tcp.congestion_control.starts_with("bbr"); };
  return any(bbr) ? Most::some : Most::many;
}

std::uint32_t BulkWidth::at_first(Most most) {
  return most == Most::one ? 1 : most == Most::some ? kSome : kManyAtFirst;
}

std::string_view BulkWidth::why_best(Most most) {
  switch (most) {
    case Most::one:
      return "a polite gateway needs no more";
    case Most::some:
      return "bbr needs no more";
    case Most::many:
      return "each loss narrows a window without bbr";
  }
  return {};
}

void BulkWidth::want(std::uint32_t connections, std::string_view why) {
  wanted_ = enough_ = std::min(connections, limit_);
  why_ = connections > limit_ ? kLimit : why;
}

void BulkWidth::widen_to(Most most) {
  if (most == most_) return;
  most_ = most;
  want(at_first(most), why_best(most));
  settled_ = most != Most::many;
  goodput_before_ = 0;
  connections_ = 0;
}

void BulkWidth::limit_to(std::uint32_t limit) {
  if (limit == std::exchange(limit_, limit)) return;
  // At least as many as at the beginning again, where a lower limit had left fewer.
  want(std::max(wanted_, at_first(most_)), why_best(most_));
  settled_ = most_ != Most::many;
  goodput_before_ = 0;
  connections_ = 0;
}

void BulkWidth::full(Nanoseconds now, bool is) {
  if (is == is_full_) return;
  is_full_ = is;
  if (is)
    full_since_ = now;
  else
    full_ += now - full_since_;
}

Nanoseconds BulkWidth::full_time(Nanoseconds now) const {
  return full_ + (is_full_ ? now - full_since_ : 0);
}

void BulkWidth::begin_stretch(Nanoseconds now) {
  full_at_first_ = full_time(now);
  bytes_ = 0;
  arrivals_ = 0;
}

void BulkWidth::arrived(Nanoseconds now, std::uint64_t bytes, std::uint32_t connections,
                        Nanoseconds round_trip) {
  if (most_ != Most::many) return;
  if (settled_ && now - settled_at_ >= kAgain) {
    settled_ = false;
    enough_ = wanted_;
    goodput_before_ = 0;
    connections_ = 0;
  }
  if (connections < wanted_) return;
  const auto stretch = std::max(kStretchMin, kStretchRoundTrips * round_trip);
  if (connections_ != connections) {
    connections_ = connections;
    warm_until_ = now + stretch;  // the new ones begin slowly
    begin_stretch(now);
  }
  if (now < warm_until_) return begin_stretch(now);
  bytes_ += bytes;
  ++arrivals_;
  const auto time = full_time(now) - full_at_first_;
  if (time < stretch || arrivals_ < kArrivals) return;
  const auto goodput = static_cast<double>(bytes_) / seconds_of(time);
  begin_stretch(now);
  const bool known = totals_.round_trip_min > 0;
  const auto trip = known ? totals_.round_trip_min : round_trip;
  const bool may_grow =
      wanted_ < limit_ && goodput * seconds_of(trip) >= wanted_ * kGrowingWindowBytesMin;
  const bool queue = known && seconds_of(round_trip) > kQueued * seconds_of(totals_.round_trip_min);
  const bool narrow = !narrow_.empty() || !known;
  if (settled_) {
    goodput_settled_ = std::max(goodput_settled_, goodput);
    // In the first such stretch it may just have begun to fall.
    const bool fallen =
        known && narrow && may_grow && goodput < (queue ? kFallenFar : kFallen) * goodput_settled_;
    if (!std::exchange(fallen_, fallen) || !fallen) return;
  } else {
    // Windows may still widen, or an exchange begin and end before the line is full.
    if (!narrow && !queue) return;
    const bool grew = goodput > kGrowth * goodput_before_;
    // Without a queue the line carries more: that goodput did not grow may be of the moment, once.
    const bool once_more = !grew && known && !queue && !doubted_;
    doubted_ = once_more;
    if (!narrow || !may_grow || (!grew && !once_more)) {
      settled_ = true;
      settled_at_ = now;
      why_ = !narrow ? kFull : wanted_ >= limit_ ? kLimit : !may_grow ? kThin : kNoFaster;
      goodput_settled_ = goodput;
      fallen_ = false;
      return;
    }
  }
  settled_ = false;
  goodput_before_ = goodput;
  want(2 * wanted_, known ? narrow_ : why_best(most_));
}

void BulkTotals::add(const TcpFacts& tcp) {
  acknowledged_bytes += tcp.acknowledged_bytes;
  resent_bytes += tcp.segments_resent * tcp.segment_bytes;
  busy += tcp.busy;
  limited += tcp.limited_by_window + tcp.limited_by_buffer;
  const auto trip = tcp.round_trip_min;
  if (trip > 0 && (round_trip_min == 0 || trip < round_trip_min)) round_trip_min = trip;
}

void BulkWidth::carried(Nanoseconds now, const BulkTotals& totals) {
  const auto before = std::exchange(totals_, totals);
  const auto took = now - std::exchange(looked_, now);
  const auto full = full_time(now) - std::exchange(full_when_looked_, full_time(now));
  if (totals.resent_bytes < before.resent_bytes || totals.busy < before.busy ||
      totals.limited < before.limited)
    return;
  // Nothing at all: an outage tells nothing of what the line carries.
  if (most_ == Most::one || totals.round_trip_min == 0 || full == 0 ||
      totals.acknowledged_bytes <= before.acknowledged_bytes)
    return;
  const bool bbr = most_ == Most::some;
  const auto bytes = static_cast<double>(totals.acknowledged_bytes - before.acknowledged_bytes);
  const bool lossy =
      static_cast<double>(totals.resent_bytes - before.resent_bytes) > kLossy * bytes;
  const bool limited = static_cast<double>(totals.limited - before.limited) >
                       kLimited * static_cast<double>(totals.busy - before.busy);
  narrow_ = lossy ? kLosses : limited ? kKernelLimits : "";
  // A short time of sending tells at most that the line carries more than was thought. TCP still
  // sends what its buffers hold when there is no more.
  const bool long_enough =
      took >= kStretchMin && static_cast<double>(full) >= kFullShare * static_cast<double>(took);
  const auto sending = long_enough ? full : std::clamp(totals.busy - before.busy, full, took);
  const auto on_the_way = bytes / seconds_of(sending) * seconds_of(totals_.round_trip_min);
  if (bbr && on_the_way >= kSomeOfWide * kWideWindowBytesMin && wanted_ < kSomeOfWide)
    want(kSomeOfWide, "bbr needs no more, on a wide line");
  const auto windows = on_the_way / (bbr ? kBbrWindowBytesMin : kWindowBytesMin);
  // With windows kept small fewer connections would only be slower: not so under BBR.
  const auto least = bbr ? 1 : std::min(kLossyMin, wanted_);
  const auto enough =
      std::max(least, static_cast<std::uint32_t>(std::min<double>(windows, wanted_)));
  if (long_enough || enough > enough_) enough_ = enough;
}

}  // namespace isthmus::inter
