// GatewayStatus: what a gateway shows of itself, in plain values: for `isthmus status` and `top`
// (over the attach socket, as JSON), for Prometheus and for the report. Rates are over the last few
// seconds, counts since the gateway started.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "inter/ranks.h"

namespace isthmus::inter {

// Less than one, since what comes is acknowledged a little later.
inline constexpr double kWindowFull = 0.7;

struct LinkStatus {
  std::string peer;
  std::string address;  // "" when the peer dials us
  // "up"; "refused: …"; "connecting"; "no address" (neither gateway has one, so none dials);
  // connected, but "no ranks" (here yet, so nothing is said to the peer), or "silent" (its gateway
  // says nothing, which it does once it has ranks).
  std::string state;
  double round_trip_ms = 0;          // smoothed; 0 before the first sample
  double round_trip_longest_ms = 0;  // of single ones, in the last five to ten seconds
  double sent_mbit_s = 0;            // achieved, on the wire
  double received_mbit_s = 0;
  std::optional<double> cap_mbit_s;  // rate_limit; none: unlimited
  // What bulk sees of a queue on the way: by how much its round trips exceed the shortest one.
  double queue_ms = 0;
  // Of a polite gateway: how fast bulk may leave now, and how long that queue may be.
  std::optional<double> polite_mbit_s;
  double queue_target_ms = 0;
  // Of bulk: TCP connections that are up, and why so many are wanted; how ours react to loss, and
  // why so. "": none is up.
  std::uint32_t bulk_connections = 0;
  std::string bulk_connections_why;
  std::string congestion_control, congestion_control_why;
  std::uint64_t parameter_bytes = 0;  // f32 that contributions sent on this link stand for
  std::uint64_t codec_bytes = 0;      // the same after the codec
  std::uint64_t zstd_bytes = 0;       // after zstd
  // Bytes on the wire, control, framing and sealing included; not those of link tests, which are
  // counted below, and while one goes on at its end.
  std::uint64_t wire_sent_bytes = 0;
  std::uint64_t wire_received_bytes = 0;
  std::uint64_t link_test_sent_bytes = 0;
  std::uint64_t link_test_received_bytes = 0;
  double sending_s = 0;  // in which the peer had not acknowledged all chunks that were offered
  std::uint64_t chunks_sent = 0;
  std::uint64_t chunks_resent = 0;
  std::uint64_t chunks_copied = 0;  // went on a second connection, since the first one was slow
  std::uint64_t reconnects = 0;
  // Of chunks that the peer may send before they are acknowledged; and what came in a round trip,
  // lately, as a share of the largest that it may become: from kWindowFull on the window is what
  // keeps the peer from sending more.
  std::uint64_t window_bytes = 0;
  double window_used = 0;
  double chunk_patience_s =
      0;  // without any, the peer's chunks count as stuck; as it is learnt now
  std::string
      waiting_for;  // "", "rate limit", "credit", "acknowledgement", "contribution", "vote", …
};

// Seconds a site's outer steps spent, by what they waited for. Bytes come first where others are
// waited for as well.
struct WaitStatus {
  double computing_s = 0;  // its own ranks
  double transfer_s = 0;   // bytes on their way: announced by others, or not acknowledged by them
  double straggler_s = 0;  // members that have announced nothing yet, or cannot be reached
  double agreement_s = 0;  // votes: every contribution is here, and ours there
  double applying_s = 0;   // its gateway's own work: coding, the outer step, the disk
};

struct GatewayStatus {
  std::string site;
  std::string run;    // hex, "" before the run began
  std::string phase;  // "waiting for ranks", "starting", "training", "exchanging", "applying",
                      // "catching up", "waiting for the disk", "finished"
  std::uint64_t outer_step = 0;      // decided and applied
  std::uint64_t outer_steps = 0;     // planned
  std::uint64_t catching_up_to = 0;  // that the others have done without it; 0: it is not behind
  std::uint64_t saved_step = 0;
  std::string state_root;  // hex
  double uptime_s = 0;
  std::uint64_t tokens_named = 0;  // of this site, in decided records
  std::uint64_t tokens_carried = 0;
  std::string rate_limit;  // where it depends on the hour: what holds, until when; else ""
  std::vector<std::string> members;
  std::vector<std::string> voters;
  std::vector<std::string> attention;  // what holds it up and an operator should know, in sentences
  WaitStatus waits;
  std::string deadline;  // whom the step at hand waits for, how long, and why so long; "": nobody
  std::optional<double> deadline_s;  // so long it still waits
  std::vector<LinkStatus> links;
  std::vector<RankStatus> ranks;
};

// One object; the names of the fields are those above. A number that is not finite is null, and so
// is one that there is not.
std::string to_json(const GatewayStatus& status);
// What to_json made; unknown names are skipped, missing ones keep their default. bad_frame.
Result<GatewayStatus> parse_status(std::string_view json);

}  // namespace isthmus::inter
