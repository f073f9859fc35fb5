#include "monitoring/exposer.h"

#include <exception>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <prometheus/exposer.h>

namespace lodestone {

MetricsExposer::MetricsExposer(std::unique_ptr<prometheus::Exposer> exposer, int port)
    : exposer_(std::move(exposer)), port_(port) {}

MetricsExposer::~MetricsExposer() = default;

absl::StatusOr<std::unique_ptr<MetricsExposer>> MetricsExposer::Start(const std::string& host,
                                                                      int port,
                                                                      const Metrics& metrics) {
  if (port < 0 || port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("metrics port is ", port, ", must be 0 to 65535"));
  }
  const std::string address = absl::StrCat(host, ":", port);
  try {
    auto exposer = std::make_unique<prometheus::Exposer>(address);
    exposer->RegisterCollectable(metrics.collectable());
    const std::vector<int> ports = exposer->GetListeningPorts();
    if (ports.empty()) {
      return absl::UnavailableError(absl::StrCat("cannot serve metrics on ", address));
    }
    return std::unique_ptr<MetricsExposer>(new MetricsExposer(std::move(exposer), ports.front()));
  } catch (const std::exception& error) {
    return absl::UnavailableError(
        absl::StrCat("cannot serve metrics on ", address, ": ", error.what()));
  }
}

}  // namespace lodestone
