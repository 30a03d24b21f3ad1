// The keys of [gateway].
#include <vector>

#include "launcher/site_keys.h"

namespace isthmus::launcher {

std::vector<SiteKey> gateway_keys() {
  using enum ValueKind;
  constexpr auto gateway = &SiteFile::gateway;

  return {
      {.section = "gateway",
       .name = "listen",
       .kind = address,
       .field = field(gateway, &GatewayOptions::listen),
       .meaning =
           "Where this site's gateway waits for other sites: an address of its machine, in "
           "numbers, or "
           "0.0.0.0 for all of them (\"*\": of IPv6 too). Bulk data use the next port as well.",
       .absent = "this site only dials",
       .example = "\"0.0.0.0:7700\""},
      {.section = "gateway",
       .name = "rate_limit",
       .kind = rate,
       .field = field(gateway, &GatewayOptions::rate_limit),
       .min = 64'000,
       .max = 1e13,
       .meaning = "Over all bytes this gateway sends to other sites, without bursts. Headers of "
                  "TCP and IP, and what acknowledges what comes in, are beside it."},
      {.section = "gateway",
       .name = "windows",
       .kind = rate_windows,
       .field = field(gateway, &GatewayOptions::windows),
       .min = 64'000,
       .max = 1e13,
       .meaning =
           "Hours of the day with another rate_limit, each below a line `[[gateway.windows]]`: "
           "`from = \"08:00\"`, `to = \"18:00\"`, `rate_limit = \"20 Mbit/s\"` (or "
           "\"unlimited\"). One from \"22:00\" to \"06:00\" goes past midnight. They must not "
           "overlap; between them rate_limit holds.",
       .absent = "rate_limit holds all day"},
      {.section = "gateway",
       .name = "zone",
       .kind = text,
       .field = field(gateway, &GatewayOptions::zone),
       .meaning = "Time zone of the windows, and of what the gateway prints: \"UTC\", or as the "
                  "system names it (\"Europe/Berlin\"); summer time is followed.",
       .absent = "this machine's"},
      {.section = "gateway",
       .name = "polite",
       .kind = flag,
       .field = field(gateway, &GatewayOptions::polite),
       .meaning = "Bulk data yield to whoever else uses the line: they slow down as soon as the "
                  "round trip grows (LEDBAT, RFC 6817), and take what is left. Below rate_limit, "
                  "where there is one."},
      {.section = "gateway",
       .name = "congestion_control",
       .kind = text,
       .field = field(gateway, &GatewayOptions::congestion_control),
       .meaning = "How TCP reacts to loss: as in net.ipv4.tcp_available_congestion_control, or "
                  "\"system\" for the machine's own choice. Where the machine does not allow it, "
                  "the log says so, and several connections make up for it."},
      {.section = "gateway",
       .name = "bulk_connections",
       .kind = whole_number,
       .field = field(gateway, &GatewayOptions::bulk_connections),
       .min = 1,
       .max = 256,
       .unit = "connections",
       .meaning =
           "TCP connections for bulk data to one other site, at most. With BBR there are four, "
           "eight once the line has proved wide, between polite gateways one; else eight, and "
           "twice as many where losses or the kernel's limits keep windows narrow, as long as that "
           "makes it faster by more than a tenth. Both ends use as many as the one that wants "
           "more, and no more than the lower limit of both; `isthmus status` says why so many. Of "
           "each a listed site that breaks the protocol can make this one hold 5 MiB."},
      {.section = "gateway",
       .name = "receive_window",
       .kind = size,
       .field = field(gateway, &GatewayOptions::receive_window),
       .min = 64.0 * (1 << 20),
       .max = 1.0 * (1 << 30),
       .meaning =
           "What may be on its way from each other site, or wait to be checked, at most. It begins "
           "with 64 MiB and grows to twice what comes in a round trip: 10 Gbit/s at 200 ms need "
           "the default, and the log says when it is too small. Twice as much may take memory; "
           "`isthmus check` counts it."},
      {.section = "gateway",
       .name = "metrics",
       .kind = address,
       .field = field(gateway, &GatewayOptions::metrics),
       .meaning = "Where Prometheus reads metrics over HTTP. Unauthenticated: keep it on loopback.",
       .absent = "no endpoint",
       .example = "\"127.0.0.1:9464\""},
      {.section = "gateway",
       .name = "workers",
       .kind = whole_number,
       .field = field(gateway, &GatewayOptions::workers),
       .min = 1,
       .max = 1024,
       .unit = "threads",
       .meaning = "Threads that encode, seal and reduce."},
      {.section = "gateway",
       .name = "cpus",
       .kind = ValueKind::ranges,
       .field = field(gateway, &GatewayOptions::cpus),
       .meaning =
           "CPUs that all threads of the gateway run on; each worker is pinned to one of them.",
       .absent = "all that the system gives"},
      {.section = "gateway",
       .name = "memory",
       .kind = size,
       .field = field(gateway, &GatewayOptions::memory),
       .min = 64.0 * (1 << 20),
       .max = 1e15,
       .meaning =
           "Memory that the gateway shares with its ranks, at most: 8 bytes per parameter. A "
           "model that needs more is refused. The outer state (28 bytes per parameter, 44 with "
           "nesterov) and the coded contributions of all sites come on top; the model and the "
           "number of sites bound them; so do the records of all outer steps (0.3 kB per site and "
           "step). `isthmus check` says how much that is."},
  };
}

}  // namespace isthmus::launcher
