#include "inter/link_test_frames.h"

#include <charconv>
#include <cmath>

namespace isthmus::inter {

namespace {

constexpr std::size_t kRefusalMax = 500;

std::string_view front_of(std::string_view text, std::size_t most) { return text.substr(0, most); }

// The third number of "4096 131072 6291456"; 0: there is none.
std::uint64_t largest(std::string_view setting) {
  const auto at = setting.find_last_of(" \t");
  if (at == setting.npos) return 0;
  std::uint64_t bytes = 0;
  const auto last = setting.substr(at + 1);
  const auto read = std::from_chars(last.data(), last.data() + last.size(), bytes);
  return read.ec == std::errc() && read.ptr == last.data() + last.size() ? bytes : 0;
}

// Numbers that get into a command for people to run.
bool is_setting(std::string_view text) {
  return text.find_first_not_of("0123456789 \t") == text.npos;
}

}  // namespace

ByteWriter link_test_frame(LinkTestFrame kind, LinkTestId test) {
  ByteWriter out;
  out.put(kLinkTestFrame).put(kind).put(test);
  return out;
}

void LinkTestAsk::write(ByteWriter& out) const { out.put(force); }

std::optional<LinkTestAsk> LinkTestAsk::read(ByteReader& in) {
  const LinkTestAsk ask{in.get<bool>()};
  return when(in.done(), ask);
}

void LinkTestPlan::write(ByteWriter& out) const { out.put(time).put(bytes_max); }

std::optional<LinkTestPlan> LinkTestPlan::read(ByteReader& in) {
  LinkTestPlan plan;
  plan.time = in.get<Nanoseconds>();
  plan.bytes_max = in.get<std::uint64_t>();
  return when(in.done() && plan.time > 0 && plan.time <= kLinkTestTimeMax && plan.bytes_max > 0 &&
                  plan.bytes_max <= kLinkTestBytesMax,
              plan);
}

std::uint64_t LinkTestSide::receive_bytes_max() const { return largest(tcp_rmem); }
std::uint64_t LinkTestSide::send_bytes_max() const { return largest(tcp_wmem); }

void LinkTestSide::write(ByteWriter& out) const {
  out.string(front_of(tcp_rmem, kLinkTestTextMax)).string(front_of(tcp_wmem, kLinkTestTextMax));
  out.put(rate_limit).put(polite).put(narrows_in_pauses);
}

std::optional<LinkTestSide> LinkTestSide::read(ByteReader& in) {
  LinkTestSide side;
  side.tcp_rmem = in.string(kLinkTestTextMax);
  side.tcp_wmem = in.string(kLinkTestTextMax);
  side.rate_limit = in.get<std::uint64_t>();
  side.polite = in.get<bool>();
  side.narrows_in_pauses = in.get<bool>();
  return when(in.ok() && is_setting(side.tcp_rmem) && is_setting(side.tcp_wmem), std::move(side));
}

void LinkTestAnswer::write(ByteWriter& out) const {
  out.string(front_of(refusal, kRefusalMax));
  side.write(out);
}

std::optional<LinkTestAnswer> LinkTestAnswer::read(ByteReader& in) {
  LinkTestAnswer answer;
  answer.refusal = in.string(kRefusalMax);
  auto side = LinkTestSide::read(in);
  if (!side || !in.done()) return std::nullopt;
  answer.side = std::move(*side);
  return answer;
}

void LinkTestSent::write(ByteWriter& out) const {
  out.put(bytes).put(arrived).put(warm).put(segments).put(segments_resent);
  out.put(busy).put(limited_by_window).put(limited_by_buffer);
  out.string(front_of(congestion_control, kLinkTestTextMax));
  out.string(front_of(congestion_control_why, kLinkTestTextMax)).put(dialed).put(connections);
}

std::optional<LinkTestSent> LinkTestSent::read(ByteReader& in) {
  LinkTestSent sent;
  sent.bytes = in.get<std::uint64_t>();
  sent.arrived = in.get<std::uint64_t>();
  sent.warm = in.get<Nanoseconds>();
  sent.segments = in.get<std::uint64_t>();
  sent.segments_resent = in.get<std::uint64_t>();
  sent.busy = in.get<Nanoseconds>();
  sent.limited_by_window = in.get<Nanoseconds>();
  sent.limited_by_buffer = in.get<Nanoseconds>();
  sent.congestion_control = in.string(kLinkTestTextMax);
  sent.congestion_control_why = in.string(kLinkTestTextMax);
  sent.dialed = in.get<bool>();
  sent.connections = in.get<std::uint32_t>();
  return when(in.done() && sent.connections > 0 && sent.warm >= 0 && sent.busy >= 0 &&
                  sent.limited_by_window >= 0 && sent.limited_by_buffer >= 0,
              std::move(sent));
}

void LinkTestGot::write(ByteWriter& out) const { out.put(bits_per_second).put(warm).put(bytes); }

std::optional<LinkTestGot> LinkTestGot::read(ByteReader& in) {
  LinkTestGot got;
  got.bits_per_second = in.get<double>();
  got.warm = in.get<Nanoseconds>();
  got.bytes = in.get<std::uint64_t>();
  return when(
      in.done() && std::isfinite(got.bits_per_second) && got.bits_per_second >= 0 && got.warm >= 0,
      got);
}

}  // namespace isthmus::inter
