#include "launcher/traffic.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "base/byte_stream.h"
#include "security/hash.h"

namespace isthmus::launcher {
namespace {

using Json = nlohmann::ordered_json;

template <class Visit, class Link>
void each_field(Link& link, const Visit& visit) {
  visit("parameter_bytes", link.parameter_bytes);
  visit("codec_bytes", link.codec_bytes);
  visit("zstd_bytes", link.zstd_bytes);
  visit("wire_sent_bytes", link.wire_sent_bytes);
  visit("wire_received_bytes", link.wire_received_bytes);
  visit("link_test_sent_bytes", link.link_test_sent_bytes);
  visit("link_test_received_bytes", link.link_test_received_bytes);
  visit("reconnects", link.reconnects);
  visit("sending_seconds", link.sending_seconds);
  visit("sending_bytes", link.sending_bytes);
  visit("cap_mbit_s", link.cap_mbit_s);
  visit("observed_seconds", link.observed_seconds);
  visit("waited_seconds", link.waited_seconds);
}

// Counts were written as such: a fraction, or what is too large, is somebody else's.
void read(const Json& json, std::uint64_t& count) {
  count = json.get_ref<const Json::number_unsigned_t&>();
}
template <class T>
void read(const Json& json, T& value) {
  json.get_to(value);
}

template <class Visit, class Waits>
void each_wait(Waits& waits, const Visit& visit) {
  visit("computing_s", waits.computing_s);
  visit("transfer_s", waits.transfer_s);
  visit("straggler_s", waits.straggler_s);
  visit("agreement_s", waits.agreement_s);
  visit("applying_s", waits.applying_s);
}

inter::WaitStatus sum(inter::WaitStatus a, const inter::WaitStatus& b) {
  a.computing_s += b.computing_s;
  a.transfer_s += b.transfer_s;
  a.straggler_s += b.straggler_s;
  a.agreement_s += b.agreement_s;
  a.applying_s += b.applying_s;
  return a;
}

constexpr const char* kChecksum = "checksum";

// Of all of it but the checksum.
std::string checksum_of(const Json& json) { return security::blake2b(bytes_of(json.dump())).hex(); }

}  // namespace

std::string to_json(const Traffic& traffic) {
  Json json;
  json["uptime_seconds"] = traffic.uptime_seconds;
  json["waits"] = Json::object();
  each_wait(traffic.waits, [&](const char* name, double value) { json["waits"][name] = value; });
  json["links"] = Json::object();
  for (const auto& [peer, link] : traffic.links)
    each_field(link, [&, &to = json["links"][peer]](const char* name, const auto& value) {
      to[name] = value;
    });
  auto checksum = checksum_of(json);
  json[kChecksum] = std::move(checksum);
  return json.dump();
}

double LinkTraffic::achieved_mbit_s() const {
  return sending_seconds > 0 ? static_cast<double>(sending_bytes) * 8e-6 / sending_seconds : 0;
}

Result<Traffic> parse_traffic(std::string_view text) {
  try {
    auto json = Json::parse(text);
    // Earlier versions wrote none. Without it another digit would be taken for what a link carried.
    if (const auto checksum = json.find(kChecksum); checksum != json.end()) {
      const auto said = checksum->get<std::string>();
      json.erase(checksum);
      if (said != checksum_of(json)) return Error{ErrorCode::corrupt, "it does not check"};
    }
    Traffic traffic;
    traffic.uptime_seconds = json.at("uptime_seconds").get<double>();
    each_wait(traffic.waits, [&](const char* name, double& value) {
      value = json.at("waits").at(name).get<double>();
    });
    for (const auto& [peer, link] : json.at("links").items())
      each_field(traffic.links[peer], [&, &from = link](std::string_view name, auto& value) {
        // Earlier versions did not count them.
        if (name.starts_with("link_test_") && !from.contains(name)) return;
        read(from.at(name), value);
      });
    return traffic;
  } catch (const std::exception& error) {
    return Error{ErrorCode::corrupt, std::string("not the traffic of a run: ") + error.what()};
  }
}

void TrafficMeter::sample(const inter::GatewayStatus& status, Nanoseconds now) {
  const double seconds = last_ == 0 ? 0 : seconds_of(now - last_);
  last_ = now;
  current_.uptime_seconds = status.uptime_s;
  current_.waits = status.waits;
  for (const auto& link : status.links) {
    auto& sum = current_.links[link.peer];
    sum.observed_seconds += seconds;
    auto& waiting_for = waiting_for_[link.peer];
    if (seconds > 0 && !waiting_for.empty()) sum.waited_seconds[waiting_for] += seconds;
    waiting_for = link.waiting_for;
    sum.sending_seconds = link.sending_s;
    sum.sending_bytes = link.zstd_bytes;
    sum.parameter_bytes = link.parameter_bytes;
    sum.codec_bytes = link.codec_bytes;
    sum.zstd_bytes = link.zstd_bytes;
    sum.wire_sent_bytes = link.wire_sent_bytes;
    sum.wire_received_bytes = link.wire_received_bytes;
    sum.link_test_sent_bytes = link.link_test_sent_bytes;
    sum.link_test_received_bytes = link.link_test_received_bytes;
    sum.reconnects = link.reconnects;
    sum.cap_mbit_s = link.cap_mbit_s.value_or(0);
  }
}

Traffic TrafficMeter::total() const {
  Traffic all = earlier_;
  all.uptime_seconds += current_.uptime_seconds;
  all.waits = sum(all.waits, current_.waits);
  for (const auto& [peer, link] : current_.links) {
    auto& to = all.links[peer];
    to.parameter_bytes += link.parameter_bytes;
    to.codec_bytes += link.codec_bytes;
    to.zstd_bytes += link.zstd_bytes;
    to.wire_sent_bytes += link.wire_sent_bytes;
    to.wire_received_bytes += link.wire_received_bytes;
    to.link_test_sent_bytes += link.link_test_sent_bytes;
    to.link_test_received_bytes += link.link_test_received_bytes;
    to.reconnects += link.reconnects;
    to.sending_seconds += link.sending_seconds;
    to.sending_bytes += link.sending_bytes;
    to.cap_mbit_s = link.cap_mbit_s;
    to.observed_seconds += link.observed_seconds;
    for (const auto& [what, seconds] : link.waited_seconds) to.waited_seconds[what] += seconds;
  }
  return all;
}

}  // namespace isthmus::launcher
