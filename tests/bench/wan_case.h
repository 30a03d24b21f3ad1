// WanCase: one case of wan_bench: the lines between the sites, and what an outer step over them
// takes at best.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"
#include "tests/wan/path.h"

namespace isthmus::bench {

// What gateways can be measured over: what carries less is waited for in vain, as their time-outs
// are over before a handshake is.
inline constexpr std::string_view kWanBounds =
    "delay= above 0, with jitter= up to 500ms, rate= 16kbit to 100gbit, queue= from 4kb, loss= up "
    "to 30%, burst= up to 1000, corrupt= up to 5%";

struct WanCase {
  // As on the command line; access "": the sites' own lines are no limit.
  std::string path, access, cc;
  std::uint64_t parameters = 0, sites = 2;
  wan::PathSettings line, own_line;  // what they say

  double ideal() const;  // seconds
  std::string name() const;
};

// Fills what the lines say. invalid_argument: they do not say it, or cannot carry it.
Result<WanCase> checked(WanCase one);

}  // namespace isthmus::bench
