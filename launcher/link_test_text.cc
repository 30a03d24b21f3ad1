#include "launcher/link_test_text.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/printable.h"
#include "launcher/units.h"

namespace isthmus::launcher {
namespace {

// A peer has written some of it.
nlohmann::json field(const nlohmann::json& object, const char* name) {
  return object.is_object() && object.contains(name) ? object[name] : nlohmann::json();
}
double number(const nlohmann::json& object, const char* name) {
  const auto value = field(object, name);
  return value.is_number() ? value.get<double>() : 0;
}
std::string text(const nlohmann::json& object, const char* name) {
  const auto value = field(object, name);
  return value.is_string() ? printable(value.get<std::string>()) : std::string();
}
bool flag(const nlohmann::json& object, const char* name) {
  const auto value = field(object, name);
  return value.is_boolean() && value.get<bool>();
}

std::string direction_text(const std::string& from, const std::string& to,
                           const nlohmann::json& d) {
  const bool polite = flag(d, "polite");  // the figure is what it took
  auto out = fmt::format("{} to {}\n", from, to);
  const auto fact = [&out](std::string_view name, const std::string& said) {
    out += fmt::format("  {:<20} {}\n", name, said);
  };
  const auto bytes = about_bytes(number(d, "bytes"));
  const bool measured = field(d, "mbit_s").is_number();
  // For so much of the time a buffer at either end was what bounded it.
  constexpr double kHeldBack = 0.2;
  const bool held_back = number(d, "window_limited") + number(d, "buffer_limited") >= kHeldBack;
  fact("capacity",
       measured
           ? fmt::format("{}{} over {:.2f} s ({} in all)", polite || held_back ? "at least " : "",
                         about_rate(1e6 * number(d, "mbit_s")), number(d, "warm_s"), bytes)
           : fmt::format("not measured: {} came", bytes));
  if (field(d, "loss").is_number())
    fact("sent again",
         fmt::format("{:.0f} of {:.0f} segments, {:.3f} %{}", number(d, "segments_resent"),
                     number(d, "segments"), 100 * number(d, "loss"),
                     number(d, "loss") > 0 ? ", those included that a full queue dropped" : ""));
  fact("congestion control",
       fmt::format("{} ({}), at the {} end", text(d, "congestion_control"),
                   text(d, "congestion_control_why"), flag(d, "dialed") ? "dialing" : "listening"));
  fact("connections", fmt::format("{:.0f}", number(d, "connections")));
  if (measured)
    fact("bandwidth x delay", fmt::format("{} are on their way at that rate",
                                          about_bytes(number(d, "bandwidth_delay_bytes"))));
  if (measured)
    fact("held back by",
         fmt::format("the receiver's window {:.0f} %, the send buffer {:.0f} %",
                     100 * number(d, "window_limited"), 100 * number(d, "buffer_limited")));
  if (field(d, "rate_limit_mbit_s").is_number())
    fact("rate_limit",
         fmt::format("{} at {}", about_rate(1e6 * number(d, "rate_limit_mbit_s")), from));
  if (flag(d, "beside_exchange"))
    fact("exchange",
         "an outer step was exchanged meanwhile: but for the bytes in all, figures are of its "
         "traffic too");
  if (polite) fact("polite", fmt::format("{} yields to others: the line may carry more", from));
  return out;
}

std::string kernel_text(const std::string& site, const nlohmann::json& kernel) {
  return fmt::format("  {:<20} tcp_rmem {}; tcp_wmem {}\n", site, text(kernel, "tcp_rmem"),
                     text(kernel, "tcp_wmem"));
}

}  // namespace

std::string link_test_text(const nlohmann::json& report) {
  const auto here = text(report, "here"), there = text(report, "peer");
  const auto round_trip = field(report, "round_trip_ms");
  auto out = fmt::format("round trip             {:.1f} ms at least, {:.1f} ms median\n",
                         number(round_trip, "min"), number(round_trip, "median"));
  out += direction_text(here, there, field(report, "to_peer"));
  out += direction_text(there, here, field(report, "from_peer"));
  out += "window limits of the kernels (net.ipv4: least, first, most bytes)\n";
  out += kernel_text(here, field(report, "kernel_here"));
  out += kernel_text(there, field(report, "kernel_there"));
  out += "what to do\n";
  const auto advice = field(report, "advice");
  if (!advice.is_array() || advice.empty()) return out + "  nothing: these limits are no limit\n";
  for (const auto& sentence : advice)
    if (sentence.is_string()) out += fmt::format("  {}\n", printable(sentence.get<std::string>()));
  return out;
}

}  // namespace isthmus::launcher
