// Router: what happens to each packet between the sites. It passes the sender's uplink, the path's
// queue, its losses and its delay, and the receiver's downlink; the survivors come out when their
// time has come. Time is handed in and devices are elsewhere, so a test can run it in virtual time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "tests/wan/network_settings.h"
#include "tests/wan/path.h"
#include "tests/wan/super_packet.h"

namespace isthmus::wan {

// Site i has the address 10.77.0.(i + 1).
inline constexpr std::uint32_t kNetworkAddress = 10u << 24 | 77u << 16;
inline constexpr std::size_t kSitesMax = 254;

// A packet that has been let through.
struct Delivery {
  std::size_t to;
  std::vector<std::uint8_t> packet;  // with its virtio header
};

class Router {
 public:
  explicit Router(const NetworkSettings& settings);

  // For the same number of sites. Queues keep what they hold, and the seed stays what it was.
  void change(const NetworkSettings& settings, Nanoseconds now);

  // What site `from` sends at `now`; times never go back. What is not for another site is dropped.
  void send(std::size_t from, std::span<const std::uint8_t> packet, Nanoseconds now);

  // The next packet that has arrived by `now`.
  std::optional<Delivery> receive(Nanoseconds now);

  // When it may be worth asking again; nothing while no packet is under way.
  std::optional<Nanoseconds> next_arrival() const;

  // A line for each path that saw packets, and each access line that dropped some; parted by tabs.
  std::string statistics() const;

  const PathCounts& path_counts(std::size_t from, std::size_t to) const {
    return paths_[from * sites_ + to].counts;
  }

 private:
  // Neighbouring segments that leave together.
  struct Run {
    std::size_t first = 0;
    std::size_t segments = 0;
    std::size_t wire_bytes = 0;
    Nanoseconds left = 0;
    std::vector<std::size_t> corrupted;
  };
  struct UnderWay {
    Nanoseconds due;
    std::uint64_t order;  // among those due at the same time
    bool past_downlink;
    std::size_t segments;
    std::size_t wire_bytes;
    Delivery delivery;
  };
  static bool later(const UnderWay& a, const UnderWay& b);

  std::optional<Nanoseconds> pass(Path& uplink, Path& path, std::size_t bytes, Nanoseconds now);
  double run_bytes_max(std::size_t from, std::size_t to) const;
  void depart(Path& path, const SuperPacket& packet, const Run& run, std::size_t to);
  bool pass_downlink(Path& downlink, UnderWay& packet);
  void schedule(UnderWay packet);
  UnderWay take_next();

  const std::size_t sites_;
  std::vector<Path> paths_;  // [from * sites_ + to]
  std::vector<Path> uplinks_;
  std::vector<Path> downlinks_;
  std::vector<UnderWay> under_way_;  // a heap: the next is in front
  std::uint64_t next_order_ = 0;
};

}  // namespace isthmus::wan
