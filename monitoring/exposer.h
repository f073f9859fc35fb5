// Serves /metrics over HTTP on a port of its own.
#pragma once

#include <memory>
#include <string>

#include <absl/status/statusor.h>

#include "monitoring/metrics.h"

namespace prometheus {
class Exposer;
}

namespace lodestone {

// Serves from construction to destruction, on two threads of its own. A scrape that arrives after
// `metrics` has died gets an empty page.
class MetricsExposer {
 public:
  // `host` is an address to listen on, `port` 0 means any free one. INVALID_ARGUMENT for a port
  // outside 0..65535, UNAVAILABLE if it cannot be bound (both with host and port).
  static absl::StatusOr<std::unique_ptr<MetricsExposer>> Start(const std::string& host, int port,
                                                               const Metrics& metrics);
  ~MetricsExposer();

  int port() const { return port_; }  // the bound one

 private:
  MetricsExposer(std::unique_ptr<prometheus::Exposer> exposer, std::string host, int port);
  std::unique_ptr<prometheus::Exposer> exposer_;
  const std::string host_;
  const int port_;
};

}  // namespace lodestone
