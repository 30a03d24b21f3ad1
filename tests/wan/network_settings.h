// NetworkSettings: all paths and access lines between the sites, read from configuration lines.
// Later lines override earlier ones, and no line says a thing twice; '#' begins a comment:
//
//   seed 42                                     of losses, jitter and corruption
//   default delay=50ms rate=1gbit loss=0.1%     every path
//   link 0 1 delay=20ms                         both directions between sites 0 and 1
//   path 0 1 rate=100mbit                       from site 0 to site 1
//   uplink 0 rate=500mbit queue=4mb             site 0's access line, shared by all that it sends
//   downlink 0 rate=500mbit                     the same for all that it receives
//
// Settings:
//   delay= jitter=          one way, in s, ms, us
//   rate=                   in bit, kbit, mbit, gbit a second; 0: no limit
//   queue=                  in b, kb, mb, kib, mib; 0: 100 ms of the rate, at least 64 KiB
//   loss= dup= corrupt=     share of packets (0.01) or percent (1%)
//   burst=                  mean number of packets of a run of losses; 1: independent losses
//   reorder, in_order       whether jitter lets packets overtake each other
//   down, up                drop everything, or not
// An access line has rate, queue, down and up.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "tests/wan/path.h"

namespace isthmus::wan {

struct NetworkSettings {
  explicit NetworkSettings(std::size_t site_count)
      : sites(site_count), paths(sites * sites), uplinks(sites), downlinks(sites) {}

  PathSettings& path(std::size_t from, std::size_t to) { return paths[from * sites + to]; }
  const PathSettings& path(std::size_t from, std::size_t to) const {
    return paths[from * sites + to];
  }

  std::size_t sites;
  std::uint64_t seed = 1;
  std::vector<PathSettings> paths;  // [from * sites + to]; a site's path to itself is never used
  std::vector<PathSettings> uplinks;
  std::vector<PathSettings> downlinks;
};

// invalid_argument: names the first bad line, what is wrong in it, and what to write instead.
Result<NetworkSettings> parse_network_settings(std::string_view text, std::size_t sites);

}  // namespace isthmus::wan
