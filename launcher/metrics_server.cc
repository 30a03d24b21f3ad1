#include "launcher/metrics_server.h"

#include <fmt/format.h>
#include <prometheus/collectable.h>
#include <prometheus/exposer.h>
#include <prometheus/metric_family.h>

#include <exception>
#include <mutex>
#include <utility>
#include <vector>

namespace isthmus::launcher {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::vector<ClientMetric::Label>;

class Families {
 public:
  explicit Families(std::string site) : site_(std::move(site)) {}

  void gauge(std::string name, std::string help, double value, Labels labels = {}) {
    add(MetricType::Gauge, std::move(name), std::move(help), value, std::move(labels));
  }
  void counter(std::string name, std::string help, double value, Labels labels = {}) {
    add(MetricType::Counter, name + "_total", std::move(help), value, std::move(labels));
  }
  std::vector<MetricFamily> take() { return std::move(all_); }

 private:
  void add(MetricType type, std::string name, std::string help, double value, Labels labels) {
    name = "isthmus_" + name;
    if (all_.empty() || all_.back().name != name) {
      // Samples of one metric stand together, whatever order they come in.
      for (auto& family : all_)
        if (family.name == name) return add_to(family, type, value, std::move(labels));
      all_.push_back({name, std::move(help), type, {}});
    }
    add_to(all_.back(), type, value, std::move(labels));
  }

  void add_to(MetricFamily& family, MetricType type, double value, Labels labels) {
    ClientMetric metric;
    metric.label = std::move(labels);
    metric.label.insert(metric.label.begin(), {"site", site_});
    (type == MetricType::Gauge ? metric.gauge.value : metric.counter.value) = value;
    family.metric.push_back(std::move(metric));
  }

  std::string site_;
  std::vector<MetricFamily> all_;
};

double number(std::uint64_t count) { return static_cast<double>(count); }

std::vector<MetricFamily> families_of(const inter::GatewayStatus& status) {
  Families out(status.site);
  out.gauge("outer_step", "Last outer step decided and applied", number(status.outer_step));
  out.gauge("outer_steps_planned", "Outer steps of the whole run", number(status.outer_steps));
  out.gauge("saved_step", "Last outer step that is durable here", number(status.saved_step));
  out.gauge("uptime_seconds", "Since the gateway started", status.uptime_s);
  out.gauge("members", "Sites in the view", number(status.members.size()));
  out.counter("tokens_named", "Tokens of this site in decided outer steps",
              number(status.tokens_named));
  out.gauge("tokens_carried", "Tokens that ride in the next contribution",
            number(status.tokens_carried));
  for (const auto& [what, seconds] : {std::pair{"computing", status.waits.computing_s},
                                      {"transfer", status.waits.transfer_s},
                                      {"other sites", status.waits.straggler_s},
                                      {"agreement", status.waits.agreement_s},
                                      {"applying", status.waits.applying_s}})
    out.counter("step_seconds", "Seconds of outer steps, by what they waited for", seconds,
                {{"waiting_for", what}});
  // One for all links together: as many as there are peers would add up to a wrong sum.
  if (!status.links.empty() && status.links.front().cap_mbit_s)
    out.gauge("rate_limit_bits_per_second",
              "Of all links of the gateway together; absent when unlimited",
              *status.links.front().cap_mbit_s * 1e6);
  for (const auto& link : status.links) {
    const Labels peer = {{"peer", link.peer}};
    out.gauge("link_up", "1 when a session with the peer is up", link.state == "up" ? 1 : 0, peer);
    out.gauge("link_round_trip_seconds", "Smoothed", link.round_trip_ms / 1e3, peer);
    out.gauge("link_sent_bits_per_second", "Over the last few seconds", link.sent_mbit_s * 1e6,
              peer);
    out.gauge("link_received_bits_per_second", "Over the last few seconds",
              link.received_mbit_s * 1e6, peer);
    if (link.polite_mbit_s) {
      out.gauge("link_polite_bits_per_second", "What a polite gateway's bulk may use now",
                *link.polite_mbit_s * 1e6, peer);
    }
    out.gauge("link_queue_seconds", "Round trip of bulk beyond the least one", link.queue_ms / 1e3,
              peer);
    out.gauge("link_bulk_connections", "TCP connections for bulk that are up",
              number(link.bulk_connections), peer);
    out.counter("link_parameter_bytes", "f32 that contributions sent on this link stand for",
                number(link.parameter_bytes), peer);
    out.counter("link_codec_bytes", "The same after the codec", number(link.codec_bytes), peer);
    out.counter("link_zstd_bytes", "The same after zstd", number(link.zstd_bytes), peer);
    out.counter("link_wire_sent_bytes", "All bytes on the wire but those of link tests",
                number(link.wire_sent_bytes), peer);
    out.counter("link_wire_received_bytes", "All bytes on the wire but those of link tests",
                number(link.wire_received_bytes), peer);
    out.counter("link_test_sent_bytes", "Bytes of link tests on the wire",
                number(link.link_test_sent_bytes), peer);
    out.counter("link_test_received_bytes", "Bytes of link tests on the wire",
                number(link.link_test_received_bytes), peer);
    out.counter("link_sending_seconds", "In which chunks were on their way", link.sending_s, peer);
    out.counter("link_chunks_sent", "Chunks", number(link.chunks_sent), peer);
    out.counter("link_chunks_resent", "Chunks sent again", number(link.chunks_resent), peer);
    out.counter("link_chunks_copied", "Late chunks sent on a second connection too",
                number(link.chunks_copied), peer);
    out.counter("link_reconnects", "Sessions after the first", number(link.reconnects), peer);
  }
  for (const auto& rank : status.ranks) {
    const Labels which = {{"rank", fmt::format("{}", rank.rank)}};
    out.gauge("rank_inner_step", "Inner steps done", number(rank.inner_step), which);
    if (rank.loss > 0)  // none yet
      out.gauge("rank_loss", "Nats per predicted token, of the last inner step", rank.loss, which);
    out.gauge("rank_tokens_per_second", "Of all ranks of the site together", rank.tokens_per_second,
              which);
  }
  return out.take();
}

}  // namespace

class MetricsServer::Served final : public prometheus::Collectable {
 public:
  void update(inter::GatewayStatus status) {
    const std::lock_guard lock(mutex_);
    status_ = std::move(status);
  }
  std::vector<MetricFamily> Collect() const override {
    const std::lock_guard lock(mutex_);
    return families_of(status_);
  }

 private:
  mutable std::mutex mutex_;
  inter::GatewayStatus status_;
};

class MetricsServer::Server {
 public:
  explicit Server(const std::string& address) : exposer_(address, kThreads) {}
  void serve(const std::shared_ptr<Served>& served) { exposer_.RegisterCollectable(served); }

 private:
  static constexpr std::size_t kThreads = 1;
  prometheus::Exposer exposer_;
};

MetricsServer::MetricsServer(std::shared_ptr<Served> served, std::unique_ptr<Server> server)
    : served_(std::move(served)), server_(std::move(server)) {}

MetricsServer::~MetricsServer() = default;

Result<std::unique_ptr<MetricsServer>> MetricsServer::start(const std::string& address) {
  try {
    auto served = std::make_shared<Served>();
    auto server = std::make_unique<Server>(address);
    server->serve(served);
    return std::unique_ptr<MetricsServer>(new MetricsServer(std::move(served), std::move(server)));
  } catch (const std::exception& error) {
    return Error{ErrorCode::unavailable,
                 fmt::format("no metrics at {}: another process has the port, or it is no address "
                             "of this machine; the site runs on without ({})",
                             address, error.what())};
  }
}

void MetricsServer::update(inter::GatewayStatus status) { served_->update(std::move(status)); }

}  // namespace isthmus::launcher
