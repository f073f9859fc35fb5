// What the links of a worker run over, from its flags.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kvtransfer/link.h"
#include "kvtransfer/transport.h"
#include "worker/worker_config.h"

namespace lodestone {

// The transports of a worker, the best first.
template <typename Transport>
struct Transports {
  std::vector<std::unique_ptr<Transport>> all = {};
  std::string left_out = {};  // a better one that it has not, and why: "nccl: --device is cpu"
};

// Those of --transport that this worker has: NCCL if its device is a GPU and NCCL can be loaded,
// then TCP. What is asked for by name and cannot be had is the error. `wake` is called from other
// threads when a link has news.
absl::StatusOr<Transports<DataDialer>> MakeDialers(const WorkerConfig& config,
                                                   std::function<void()> wake);
// The same for decode. TCP listens at `data_port` of --bind; errors of TcpListener::Start.
absl::StatusOr<Transports<DataListener>> MakeListeners(const WorkerConfig& config, int data_port,
                                                       std::function<void()> wake);

// The times of links over them.
template <typename Transport>
LinkTimes TimesOf(const Transports<Transport>& transports) {
  LinkTimes times;
  for (const std::unique_ptr<Transport>& transport : transports.all) {
    if (transport->slots_on_device()) times.spin = std::chrono::milliseconds(3);
  }
  return times;
}

// Pointers to them, in order.
template <typename Transport>
std::vector<Transport*> Raw(const Transports<Transport>& transports) {
  std::vector<Transport*> raw;
  for (const std::unique_ptr<Transport>& transport : transports.all) raw.push_back(transport.get());
  return raw;
}

}  // namespace lodestone
