// Metrics of a gateway for Prometheus, over HTTP at /metrics. The only user of prometheus-cpp.
//
// Unauthenticated: whoever reaches the address reads it, which is why the site's file should keep
// it on loopback. It serves the last status it was given, on threads of its own, so that a scrape
// never waits for the gateway nor the gateway for a scrape.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "inter/status.h"

namespace isthmus::launcher {

class MetricsServer {
 public:
  // `address`: "host:port". Errors: unavailable (the port is taken, or no such address).
  static Result<std::unique_ptr<MetricsServer>> start(const std::string& address);
  ~MetricsServer();
  MetricsServer(const MetricsServer&) = delete;
  MetricsServer& operator=(const MetricsServer&) = delete;

  // From any thread.
  void update(inter::GatewayStatus status);

 private:
  class Served;
  class Server;
  MetricsServer(std::shared_ptr<Served> served, std::unique_ptr<Server> server);

  std::shared_ptr<Served> served_;  // shared with the server's threads
  std::unique_ptr<Server> server_;
};

}  // namespace isthmus::launcher
