// Traffic: what a site's links carried and what its outer steps waited for, over the whole run: a
// gateway counts from its own start, so the sums of earlier ones are kept in a file. For the
// report.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/result.h"
#include "inter/status.h"

namespace isthmus::launcher {

struct LinkTraffic {
  std::uint64_t parameter_bytes = 0;      // f32 that contributions stand for
  std::uint64_t codec_bytes = 0;          // after the codec
  std::uint64_t zstd_bytes = 0;           // after zstd
  std::uint64_t wire_sent_bytes = 0;      // without those of link tests
  std::uint64_t wire_received_bytes = 0;  // the same
  std::uint64_t link_test_sent_bytes = 0;
  std::uint64_t link_test_received_bytes = 0;
  std::uint64_t reconnects = 0;
  double sending_seconds = 0;                    // in which chunks were on their way
  std::uint64_t sending_bytes = 0;               // of chunks, sent in them
  double cap_mbit_s = 0;                         // 0: none
  double observed_seconds = 0;                   // in which the link was sampled
  std::map<std::string, double> waited_seconds;  // of them, by what the link waited for

  // Of chunks, while it was sending; 0 when it never was.
  double achieved_mbit_s() const;
};

struct Traffic {
  std::map<std::string, LinkTraffic> links;  // by peer
  inter::WaitStatus waits;                   // seconds
  double uptime_seconds = 0;                 // of all gateways so far
};

std::string to_json(const Traffic& traffic);
Result<Traffic> parse_traffic(std::string_view json);  // corrupt

class TrafficMeter {
 public:
  explicit TrafficMeter(Traffic earlier) : earlier_(std::move(earlier)) {}

  // What links wait for counts from here to the next sample: to be called when that may have
  // changed, and several times a second while there is anything.
  void sample(const inter::GatewayStatus& status, Nanoseconds now);
  // Earlier gateways' and this one's.
  Traffic total() const;

 private:
  Traffic earlier_;
  Traffic current_;
  Nanoseconds last_ = 0;
  std::map<std::string, std::string> waiting_for_;  // by peer, since the last sample
};

}  // namespace isthmus::launcher
