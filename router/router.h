#pragma once

#include <memory>
#include <string>

#include <absl/status/statusor.h>

#include "base/clock.h"
#include "router/config.h"
#include "router/model_info.h"

namespace lodestone {

// The whole router: its parts, its ports, its threads. `main` and the tests start it the same way.
class Router {
 public:
  struct Ports {
    int http = 0;
    int grpc = 0;
    int metrics = 0;
  };

  // Listens and serves from here on. The config is checked first. INVALID_ARGUMENT, NOT_FOUND
  // (model files), UNAVAILABLE (a port that cannot be bound).
  static absl::StatusOr<std::unique_ptr<Router>> Start(const RouterConfig& config);
  // With `model` instead of the files that the config names.
  static absl::StatusOr<std::unique_ptr<Router>> Start(const RouterConfig& config,
                                                       std::unique_ptr<const ModelInfo> model);
  // Stops as Stop() does, without waiting for running requests.
  virtual ~Router() = default;

  virtual Ports ports() const = 0;
  // Takes no new request, lets the running ones end for at most `drain`, ends everything.
  // Idempotent.
  virtual void Stop(std::chrono::milliseconds drain) = 0;
};

}  // namespace lodestone
