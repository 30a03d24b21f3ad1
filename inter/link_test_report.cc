#include "inter/link_test_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/assert.h"
#include "base/event_log.h"
#include "inter/congestion_control.h"

namespace isthmus::inter {

namespace {

constexpr std::string_view kRefused = "the system refused ";  // CongestionControl::why
constexpr double kRampUp = 0.4;                               // of the time
constexpr int kArrivalsWarm = 5;  // looks that found more bytes, at least
constexpr double kRises = 2;      // by more than that, from half to half: not warm yet
constexpr int kRoundTripsWarm = 5;
constexpr double kSentAgainMuch = 0.05;  // few lines lose so much by themselves
// A connection's smallest window is four packets, and BBR has two of them on their way.
constexpr double kLeastOnItsWay = 2 * 4 * 1448;
constexpr double kWindowAtFirst = 10 * 1448;  // of a connection, and after a pause
constexpr double kLimited = 0.1;              // of the time in which data were there to be sent
constexpr double kShared = 0.5;  // of a rate limit: something else bounds the direction
// A kernel's buffer holds its own bookkeeping too, half of it or more, and a queue on the way wants
// as much again as the line itself.
constexpr double kBufferPerDelay = 2, kBufferWanted = 4;
constexpr double kBufferMax = 1ULL << 40;  // that is advised
constexpr double kBufferMuchLarger = 8;    // than what was on its way: it was not the limit

double share(Nanoseconds part, Nanoseconds whole) {
  return whole > 0 ? std::clamp(seconds_of(part) / seconds_of(whole), 0.0, 1.0) : 0;
}

double loss(const LinkTestSent& sent) {
  if (sent.segments == 0) return 0;
  return std::min(1.0,
                  static_cast<double>(sent.segments_resent) / static_cast<double>(sent.segments));
}

// Both ends' words become part of commands: nothing else than a name, or numbers, may.
bool is_name(std::string_view text) {
  constexpr std::string_view kOfNames = "abcdefghijklmnopqrstuvwxyz0123456789_";
  return !text.empty() && text.find_first_not_of(kOfNames) == text.npos;
}
bool is_numbers(std::string_view text) {
  return text.find_first_not_of("0123456789 \t") == text.npos;
}

// "4096 131072 6291456" with a last number that is large enough.
std::string raised(std::string_view setting, std::uint64_t bytes) {
  std::string text(setting.substr(0, setting.find_last_of(" \t")));
  for (auto& c : text)
    if (c == '\t') c = ' ';
  return fmt::format("{} {}", text, bytes);
}

// "" when the buffer is large enough.
std::string buffer_advice(std::string_view site, std::string_view name, std::string_view setting,
                          std::uint64_t most, double bandwidth_delay, double limited,
                          std::string_view why) {
  if (most == 0 || !is_numbers(setting)) return {};
  const bool small = static_cast<double>(most) < kBufferPerDelay * bandwidth_delay;
  // A reader that is too slow closes its window as well: no larger buffer helps then.
  const bool held_back =
      limited >= kLimited && kBufferMuchLarger * bandwidth_delay >= static_cast<double>(most);
  if (!small && !held_back) return {};
  // Where the buffer was the limit, the line's own product of rate and delay is not known yet.
  // The figures are of the other end, which may say what it likes.
  const auto wanted = std::min(
      std::max(kBufferWanted * bandwidth_delay, held_back ? 2 * static_cast<double>(most) : 0.0),
      kBufferMax);
  const auto bytes = std::bit_ceil(std::max<std::uint64_t>(static_cast<std::uint64_t>(wanted), 1));
  auto advice = fmt::format(
      "at {}: sysctl -w net.ipv4.{}=\"{}\" ({})", site, name, raised(setting, bytes),
      held_back ? fmt::format("{} held the sender back {:.0f} % of the time", why, 100 * limited)
                : fmt::format("{} bytes are less than twice the {:.0f} on their way", most,
                              bandwidth_delay));
  if (held_back) advice += "; then test again: what the line carries shows only then";
  return advice;
}

// Nothing, where too little came to tell.
std::string figure(bool measured, double value, int digits) {
  return measured ? fmt::format("{:.{}f}", value, digits) : "null";
}

std::string direction_json(const LinkTestReport::Direction& d, const LinkTestSide& sender,
                           double bandwidth_delay) {
  const bool measured = d.bits_per_second() > 0;
  return fmt::format(
      "{{\"mbit_s\":{},\"warm_s\":{:.3f},\"bytes\":{},\"segments\":{},\"segments_resent\":{},"
      "\"loss\":{},\"congestion_control\":{},\"congestion_control_why\":{},\"dialed\":{},"
      "\"connections\":{},\"window_limited\":{:.3f},\"buffer_limited\":{:.3f},\"bandwidth_delay_"
      "bytes\":{},"
      "\"rate_limit_mbit_s\":{},\"polite\":{},\"beside_exchange\":{}}}",
      figure(measured, d.bits_per_second() * 1e-6, 6), seconds_of(d.warm()), d.got.bytes,
      d.sent.segments, d.sent.segments_resent, figure(d.sent.segments > 0, loss(d.sent), 6),
      json_string(d.sent.congestion_control), json_string(d.sent.congestion_control_why),
      d.sent.dialed, d.sent.connections, share(d.sent.limited_by_window, d.sent.busy),
      share(d.sent.limited_by_buffer, d.sent.busy), figure(measured, bandwidth_delay, 0),
      sender.rate_limit > 0 ? fmt::format("{}", static_cast<double>(sender.rate_limit) * 1e-6)
                            : "null",
      sender.polite, d.beside_exchange);
}

std::string_view said(Unmeasured why) {
  switch (why) {
    case Unmeasured::rising:
      return "the rate still rose at the end";
    case Unmeasured::too_short:
      return "all was over within a few round trips";
    case Unmeasured::too_little:
    case Unmeasured::no:
      break;
  }
  return "too little came to tell";
}

double rate_between(const LinkTestSample& a, const LinkTestSample& b) {
  return b.when > a.when ? 8 * static_cast<double>(b.bytes - a.bytes) / seconds_of(b.when - a.when)
                         : 0;
}

std::string side_json(const LinkTestSide& side) {
  return fmt::format("{{\"tcp_rmem\":{},\"tcp_wmem\":{}}}", json_string(side.tcp_rmem),
                     json_string(side.tcp_wmem));
}

}  // namespace

Nanoseconds LinkTestReport::round_trip_min() const {
  return *std::ranges::min_element(round_trips);
}

Nanoseconds LinkTestReport::round_trip_median() const {
  ISTHMUS_ASSERT(!round_trips.empty());
  auto sorted = round_trips;
  std::ranges::sort(sorted);
  return sorted[sorted.size() / 2];
}

double LinkTestReport::Direction::bits_per_second() const {
  if (sent.warm > 0) return 8 * static_cast<double>(sent.arrived) / seconds_of(sent.warm);
  // Where the sender's kernel tells, and was never warm, what could be read is too little.
  const bool never_warm = !sent.congestion_control.empty() && sent.segments == 0;
  return never_warm ? 0 : got.bits_per_second;
}

Unmeasured LinkTestReport::Direction::unmeasured() const {
  if (bits_per_second() > 0) return Unmeasured::no;
  if (sent.unmeasured != Unmeasured::no) return sent.unmeasured;
  if (got.unmeasured != Unmeasured::no) return got.unmeasured;
  return got.bits_per_second > 0 ? Unmeasured::rising : Unmeasured::too_little;
}

void LinkTestReport::Direction::forget_if_short(Nanoseconds round_trip) {
  if (warm() >= kRoundTripsWarm * round_trip) return;
  const auto why = bits_per_second() > 0 ? Unmeasured::too_short : unmeasured();
  got = {.bits_per_second = 0, .warm = 0, .bytes = got.bytes, .unmeasured = why};
  sent.unmeasured = why;
  sent.warm = sent.busy = sent.limited_by_window = sent.limited_by_buffer = 0;
  sent.arrived = sent.segments = sent.segments_resent = 0;
}

double LinkTestReport::bandwidth_delay(const Direction& direction) const {
  return direction.bits_per_second() / 8 * seconds_of(round_trip_min());
}

std::vector<std::string> LinkTestReport::advice() const {
  std::vector<std::string> all;
  const auto add = [&](std::string text) {
    if (!text.empty()) all.push_back(std::move(text));
  };
  const auto look_at = [&](const Direction& d, const std::string& from, const LinkTestSide& sender,
                           const std::string& to, const LinkTestSide& receiver) {
    const double product = bandwidth_delay(d) / d.sent.connections;  // of each
    add(buffer_advice(from, "tcp_wmem", sender.tcp_wmem, sender.send_bytes_max(), product,
                      share(d.sent.limited_by_buffer, d.sent.busy), "its send buffer"));
    add(buffer_advice(to, "tcp_rmem", receiver.tcp_rmem, receiver.receive_bytes_max(), product,
                      share(d.sent.limited_by_window, d.sent.busy), "the receiver's window"));
    const auto limit = static_cast<double>(sender.rate_limit);
    const bool all_crossed = plan.bytes_max > 0 && d.sent.bytes >= plan.bytes_max;
    if (const auto none = d.unmeasured(); none != Unmeasured::no)
      add(fmt::format("from {} {}: test {}{}", from, said(none),
                      all_crossed ? "with more bytes (--bytes)" : "for longer (--time)",
                      limit > 0 && !all_crossed && none == Unmeasured::too_little
                          ? ", and while no other traffic, an exchange for one, takes its "
                            "rate_limit"
                          : ""));
    else if (limit > 0 && d.bits_per_second() > 0.85 * limit)
      add(fmt::format("at {}: its rate_limit is what bounds this direction", from));
    else if (limit > 0 && !sender.polite && d.bits_per_second() < kShared * limit)
      add(
          fmt::format("at {}: less than half of its rate_limit came through: the line carries no "
                      "more, or other traffic, an exchange for one, took the rest: test again "
                      "while there is none, or for longer (--time)",
                      from));
    if (const auto again = loss(d.sent); again >= kSentAgainMuch)
      add(fmt::format(
          "from {} {:.0f} % of the segments were sent again: {}", from, 100 * again,
          bandwidth_delay(d) < kLeastOnItsWay * d.sent.connections
              ? fmt::format("so thin a line has {:.0f} bytes on their way, which is less than its "
                            "connections send at once, and a queue drops the rest: this says "
                            "nothing of what the line loses by itself",
                            bandwidth_delay(d))
              : "either the line loses so many, or it carries less than it did a moment ago, and a "
                "queue on the way dropped what was sent at the old rate: test again, what remains "
                "is the line's"));
    if (sender.polite)
      add(fmt::format(
          "at {}: it is polite, so this direction shows what it took, not what the line "
          "carries: with gateway.polite = false it shows that",
          from));
    // BBR keeps its own. Where the line takes what a pause leaves of the others, nothing is lost.
    const auto left = kWindowAtFirst * d.sent.connections;
    if (const auto trips = std::log2(bandwidth_delay(d) / left);
        sender.narrows_in_pauses && trips >= 1 && !d.sent.congestion_control.empty() &&
        !d.sent.congestion_control.starts_with("bbr"))
      add(fmt::format(
          "at {}: sysctl -w net.ipv4.tcp_slow_start_after_idle=0 (in each pause between outer "
          "steps {} narrows its windows, and takes {:.0f} round trips to widen them; bbr keeps "
          "them)",
          from, d.sent.congestion_control, trips));
    const auto& why = d.sent.congestion_control_why;
    if (const auto wanted = why.substr(std::min(kRefused.size(), why.size()));
        why.starts_with(kRefused) && is_name(wanted))
      add(fmt::format("at {}: {}, {} is in force: {}", from, why, d.sent.congestion_control,
                      command_to_allow(wanted)));
  };
  look_at(to_peer, here, side_here, there, side_there);
  look_at(from_peer, there, side_there, here, side_here);
  return all;
}

std::string LinkTestReport::to_json() const {
  std::string said;
  for (const auto& sentence : advice())
    said += fmt::format("{}{}", said.empty() ? "" : ",", json_string(sentence));
  return fmt::format(
      "{{\"state\":\"done\",\"here\":{},\"peer\":{},\"round_trip_ms\":{{\"min\":{:.3f},\"median\":"
      "{:.3f}}},\"to_peer\":{},\"from_peer\":{},\"kernel_here\":{},\"kernel_there\":{},"
      "\"advice\":[{}]}}",
      json_string(here), json_string(there), seconds_of(round_trip_min()) * 1e3,
      seconds_of(round_trip_median()) * 1e3,
      direction_json(to_peer, side_here, bandwidth_delay(to_peer)),
      direction_json(from_peer, side_there, bandwidth_delay(from_peer)), side_json(side_here),
      side_json(side_there), said);
}

std::variant<WarmPhase, Unmeasured> warm_phase(std::span<const LinkTestSample> samples) {
  if (samples.empty()) return Unmeasured::too_little;
  const auto some = std::ranges::find_if(
      samples, [&](const auto& sample) { return sample.bytes > samples.front().bytes; });
  if (some == samples.end()) return Unmeasured::too_little;
  const auto first = std::prev(some);
  const auto last = std::ranges::find(samples, samples.back().bytes, &LinkTestSample::bytes);
  const auto ramp =
      static_cast<Nanoseconds>(kRampUp * static_cast<double>(last->when - first->when));
  const auto warm =
      std::ranges::lower_bound(samples, first->when + ramp, {}, &LinkTestSample::when);
  int arrivals = 0;
  for (auto sample = warm; sample < last; ++sample)
    arrivals += std::next(sample)->bytes > sample->bytes;
  if (arrivals < kArrivalsWarm) return Unmeasured::too_little;
  const auto middle = std::ranges::lower_bound(samples, warm->when + (last->when - warm->when) / 2,
                                               {}, &LinkTestSample::when);
  if (rate_between(*middle, *last) > kRises * rate_between(*warm, *middle))
    return Unmeasured::rising;
  return WarmPhase{static_cast<std::size_t>(warm - samples.begin()),
                   static_cast<std::size_t>(last - samples.begin())};
}

LinkTestGot warm_rate(std::span<const LinkTestSample> samples) {
  LinkTestGot got;
  if (!samples.empty()) got.bytes = samples.back().bytes - samples.front().bytes;
  const auto found = warm_phase(samples);
  const auto* phase = std::get_if<WarmPhase>(&found);
  if (phase == nullptr) {
    got.unmeasured = std::get<Unmeasured>(found);
    return got;
  }
  const auto &first = samples[phase->first], &last = samples[phase->last];
  got.warm = last.when - first.when;
  got.bits_per_second = rate_between(first, last);
  return got;
}

}  // namespace isthmus::inter
