#include "tests/bench/wan_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "tests/bench/bench_site.h"
#include "tests/wan/network_settings.h"

namespace isthmus::bench {

namespace {

Error bad(std::string sentence) { return Error{ErrorCode::invalid_argument, std::move(sentence)}; }

Result<wan::NetworkSettings> parsed(std::string_view option, std::string_view begin,
                                    std::string_view line, std::uint64_t sites) {
  if (line.find_first_of("#\r\n") != line.npos)
    return bad(fmt::format("{} is one line, without comments", option));
  auto network = wan::parse_network_settings(fmt::format("{} {}", begin, line), sites);
  if (!network) return bad(fmt::format("{}: {}", option, network.error().text()));
  return network;
}

Result<void> check_carries(std::string_view option, const wan::PathSettings& line) {
  const auto rate = line.bits_per_second;
  const std::pair<bool, std::string_view> faults[] = {
      {line.down, "it is down"},
      {line.delay + line.jitter > 500 * kMillisecond,
       "delay= and jitter= are above 500ms together"},
      {rate > 0 && rate < 16e3, "rate= is below 16kbit"},
      {rate > 100e9, "rate= is above 100gbit"},
      {line.queue_bytes > 0 && line.queue_bytes < 4000, "queue= is below 4kb"},
      {line.loss > 0.3, "loss= is above 30%"},
      {line.burst > 1000, "burst= is above 1000"},
      {line.corrupt > 0.05, "corrupt= is above 5%"}};
  for (const auto& [is_there, what] : faults)
    if (is_there)
      return bad(
          fmt::format("{}: {}: no outer step can be waited for over such a line; there may be {}",
                      option, what, kWanBounds));
  return {};
}

}  // namespace

Result<WanCase> checked(WanCase one) {
  ISTHMUS_TRY(const auto network, parsed("--path", "default", one.path, one.sites));
  one.line = network.path(0, 1);
  ISTHMUS_CHECK(check_carries("--path", one.line));
  if (!one.access.empty()) {
    ISTHMUS_TRY(const auto own, parsed("--access", "uplink 0", one.access, one.sites));
    one.own_line = own.uplinks[0];
    ISTHMUS_CHECK(check_carries("--access", one.own_line));
    if (one.own_line.bits_per_second == 0)
      return bad("--access must say rate=, above 0, as rate=100mbit");
  } else if (one.line.bits_per_second == 0) {
    return bad("--path must say rate=, above 0, as rate=1gbit, where there is no --access");
  }
  if (one.line.delay == 0)
    return bad(one.path.find("delay=") == one.path.npos
                   ? "--path must say delay=, one way, as delay=50ms"
                   : "--path: delay= must be above 0, one way, as delay=50ms");
  ISTHMUS_CHECK(check_memory(one.parameters, one.sites));
  return one;
}

double WanCase::ideal() const {
  const auto seconds = [&](double bytes, const wan::PathSettings& of) {
    return of.bits_per_second > 0 ? 8 * bytes / of.bits_per_second : 0;
  };
  const auto bytes = static_cast<double>(parameters);
  const auto to_others = bytes * static_cast<double>(sites - 1);
  return std::max(seconds(bytes, line), seconds(to_others, own_line)) + 2 * seconds_of(line.delay);
}

std::string WanCase::name() const {
  return fmt::format("{}{}{}, {}, {} parameters", path, access.empty() ? "" : ", access ", access,
                     cc, parameters);
}

}  // namespace isthmus::bench
