#include "worker/transports.h"

#include <string>
#include <utility>

#include "base/bytes.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "kvtransfer/nccl_links.h"
#include "kvtransfer/tcp_transport.h"

namespace lodestone {
namespace {

// Adds what `make` makes of the options, or says why not.
template <typename Transport>
absl::Status AddNccl(const WorkerConfig& config, bool prefill, const std::function<void()>& wake,
                     absl::StatusOr<std::unique_ptr<Transport>> (*make)(const NcclLinkOptions&),
                     Transports<Transport>* transports) {
  if (config.transport == "tcp") {
    transports->left_out = "nccl: --transport is tcp";
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const DeviceId device, ParseDevice(config.device));
  const NcclLinkOptions options{.device = device.cuda,
                                .ctas = static_cast<int>(config.nccl_ctas),
                                .max_links = static_cast<int>(config.nccl_links),
                                .times = {},
                                .wake = wake};
  absl::StatusOr<std::unique_ptr<Transport>> made =
      device.is_host() ? absl::FailedPreconditionError("--device is cpu") : make(options);
  if (made.ok()) {
    transports->all.push_back(*std::move(made));
    LOG(INFO) << "caches go over nccl between two GPUs; its links take up to "
              << FormatBytes(static_cast<uint64_t>(NcclDeviceBytes(options, prefill)))
              << " of the GPU beside --memory";
    return absl::OkStatus();
  }
  if (config.transport == "nccl") {
    return absl::Status(made.status().code(),
                        "--transport nccl: " + std::string(made.status().message()));
  }
  if (!device.is_host()) LOG(WARNING) << "caches go over tcp: " << made.status().ToString();
  transports->left_out = "nccl: " + std::string(made.status().message());
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Transports<DataDialer>> MakeDialers(const WorkerConfig& config,
                                                   std::function<void()> wake) {
  Transports<DataDialer> dialers;
  RETURN_IF_ERROR(AddNccl(config, true, wake, MakeNcclDialer, &dialers));
  if (config.transport != "nccl") {
    dialers.all.push_back(std::make_unique<TcpDialer>(LinkTimes{}, std::move(wake)));
  }
  return dialers;
}

absl::StatusOr<Transports<DataListener>> MakeListeners(const WorkerConfig& config, int data_port,
                                                       std::function<void()> wake) {
  Transports<DataListener> listeners;
  RETURN_IF_ERROR(AddNccl(config, false, wake, MakeNcclListener, &listeners));
  if (config.transport != "nccl") {
    ASSIGN_OR_RETURN(std::unique_ptr<TcpListener> tcp,
                     TcpListener::Start(config.bind, data_port, LinkTimes{}, std::move(wake)));
    listeners.all.push_back(std::move(tcp));
  }
  return listeners;
}

}  // namespace lodestone
