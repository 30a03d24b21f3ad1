#include "tests/wan/router.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <limits>
#include <utility>

#include "base/assert.h"
#include "base/random.h"

namespace isthmus::wan {

namespace {

// What leaves together arrives together: at most a millisecond of the slowest line on the way, so
// that the receiver sees the rate, and not a burst for each super packet.
constexpr double kRunNanoseconds = 1e6;

std::vector<Path> make_paths(const std::vector<PathSettings>& settings, const Random& random) {
  std::vector<Path> paths;
  for (std::size_t i = 0; i < settings.size(); ++i)
    paths.emplace_back(settings[i], random.split(std::uint64_t{i}));
  return paths;
}

void change_all(std::vector<Path>& paths, const std::vector<PathSettings>& settings,
                Nanoseconds now) {
  ISTHMUS_ASSERT(paths.size() == settings.size());
  for (std::size_t i = 0; i < paths.size(); ++i) paths[i].change(settings[i], now);
}

std::optional<std::size_t> site_of(std::uint32_t address, std::size_t sites) {
  const std::uint32_t number = address - kNetworkAddress - 1;
  return number < sites ? std::optional<std::size_t>(number) : std::nullopt;
}

// The checksum that TCP or UDP will carry is made from the damaged bytes: this is the damage that
// they miss, and that only a check of the application can find. One that is in the packet already
// would give the damage away, so such a packet stays as it is.
bool flip_one_bit(std::span<std::uint8_t> payload, Random& random) {
  if (payload.empty()) return false;
  const auto bit = random.below(payload.size() * 8);
  payload[bit / 8] ^= static_cast<std::uint8_t>(1u << bit % 8);
  return true;
}

}  // namespace

Router::Router(const NetworkSettings& settings)
    : sites_(settings.sites),
      paths_(make_paths(settings.paths, Random(settings.seed).split("path"))),
      uplinks_(make_paths(settings.uplinks, Random(settings.seed).split("uplink"))),
      downlinks_(make_paths(settings.downlinks, Random(settings.seed).split("downlink"))) {
  ISTHMUS_ASSERT(sites_ <= kSitesMax);
}

void Router::change(const NetworkSettings& settings, Nanoseconds now) {
  change_all(paths_, settings.paths, now);
  change_all(uplinks_, settings.uplinks, now);
  change_all(downlinks_, settings.downlinks, now);
}

void Router::send(std::size_t from, std::span<const std::uint8_t> packet, Nanoseconds now) {
  const auto layout = layout_of(packet);
  const auto to = layout ? site_of(layout->destination, sites_) : std::nullopt;
  if (!to || *to == from) return;
  auto& path = paths_[from * sites_ + *to];
  const SuperPacket super_packet(packet, *layout);
  const double bytes_max = run_bytes_max(from, *to);
  Run run;
  const auto end_run = [&] {
    if (run.segments > 0) depart(path, super_packet, run, *to);
    run = {};
  };
  for (std::size_t i = 0; i < super_packet.segments(); ++i) {
    const auto bytes = super_packet.wire_bytes(i);
    const auto left = pass(uplinks_[from], path, bytes, now);
    if (!left || static_cast<double>(run.wire_bytes + bytes) > bytes_max) end_run();
    if (!left) continue;
    if (run.segments == 0) run.first = i;
    ++run.segments;
    run.wire_bytes += bytes;
    run.left = *left;
    if (path.corrupts()) run.corrupted.push_back(i);
  }
  end_run();
}

// When a segment has left the path's queue; nothing if it is lost.
std::optional<Nanoseconds> Router::pass(Path& uplink, Path& path, std::size_t bytes,
                                        Nanoseconds now) {
  if (uplink.settings().down || path.settings().down) {
    ++path.counts.lost;
    return std::nullopt;
  }
  const auto left_uplink = uplink.enqueue(now, bytes);
  if (!left_uplink) return std::nullopt;
  const auto left = path.enqueue(*left_uplink, bytes);
  // Random losses lie behind the queue: what is lost has used the line.
  if (!left || path.loses()) return std::nullopt;
  return left;
}

double Router::run_bytes_max(std::size_t from, std::size_t to) const {
  double bytes = std::numeric_limits<double>::infinity();
  for (const auto* line : {&uplinks_[from], &paths_[from * sites_ + to], &downlinks_[to]})
    if (line->limited()) bytes = std::min(bytes, line->bytes_per_nanosecond() * kRunNanoseconds);
  return bytes;
}

void Router::depart(Path& path, const SuperPacket& packet, const Run& run, std::size_t to) {
  auto bytes = packet.cut(run.first, run.first + run.segments);
  if ((virtio_header_of(bytes).flags & kChecksumUnfinished) != 0)
    for (const auto segment : run.corrupted)
      if (flip_one_bit(packet.payload(bytes, run.first, segment), path.random()))
        ++path.counts.corrupted;
  path.counts.packets += run.segments;
  path.counts.bytes += run.wire_bytes;
  const auto due = path.arrival(run.left);
  UnderWay under_way{due, 0, false, run.segments, run.wire_bytes, {to, std::move(bytes)}};
  if (path.duplicates()) {  // a run at a time: the share of packets is the same
    path.counts.duplicated += run.segments;
    schedule(under_way);
  }
  schedule(std::move(under_way));
}

bool Router::later(const UnderWay& a, const UnderWay& b) {
  return std::pair(a.due, a.order) > std::pair(b.due, b.order);
}

void Router::schedule(UnderWay packet) {
  packet.order = next_order_++;
  under_way_.push_back(std::move(packet));
  std::push_heap(under_way_.begin(), under_way_.end(), later);
}

Router::UnderWay Router::take_next() {
  std::pop_heap(under_way_.begin(), under_way_.end(), later);
  auto next = std::move(under_way_.back());
  under_way_.pop_back();
  return next;
}

std::optional<Nanoseconds> Router::next_arrival() const {
  if (under_way_.empty()) return std::nullopt;
  return under_way_.front().due;
}

std::optional<Delivery> Router::receive(Nanoseconds now) {
  while (!under_way_.empty() && under_way_.front().due <= now) {
    auto next = take_next();
    if (next.past_downlink) return std::move(next.delivery);
    auto& downlink = downlinks_[next.delivery.to];
    if (!pass_downlink(downlink, next)) continue;
    if (!downlink.limited()) return std::move(next.delivery);
    // Even if it is due at once: others may have left the line before it.
    schedule(std::move(next));
  }
  return std::nullopt;
}

// False if the packet is lost there; else it is due when it has left the line.
bool Router::pass_downlink(Path& downlink, UnderWay& packet) {
  if (downlink.settings().down) {
    downlink.counts.lost += packet.segments;
    return false;
  }
  const auto left = downlink.enqueue(packet.due, packet.wire_bytes, packet.segments);
  if (!left) return false;
  packet.due = *left;
  packet.past_downlink = true;
  return true;
}

std::string Router::statistics() const {
  std::string text = "path\tpackets\tbytes\tlost\toverflow\tduplicated\tcorrupted\n";
  for (std::size_t from = 0; from < sites_; ++from)
    for (std::size_t to = 0; to < sites_; ++to)
      if (const auto& counts = path_counts(from, to);
          counts.packets + counts.lost + counts.overflow > 0)
        fmt::format_to(std::back_inserter(text), "{}->{}\t{}\t{}\t{}\t{}\t{}\t{}\n", from, to,
                       counts.packets, counts.bytes, counts.lost, counts.overflow,
                       counts.duplicated, counts.corrupted);
  for (std::size_t site = 0; site < sites_; ++site)
    for (const auto& [name, line] :
         {std::pair("uplink", &uplinks_[site]), std::pair("downlink", &downlinks_[site])})
      if (line->counts.lost + line->counts.overflow > 0)
        fmt::format_to(std::back_inserter(text), "{} {}\t-\t-\t{}\t{}\t-\t-\n", name, site,
                       line->counts.lost, line->counts.overflow);
  return text;
}

}  // namespace isthmus::wan
