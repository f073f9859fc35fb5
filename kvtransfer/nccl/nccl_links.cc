#include "kvtransfer/nccl_links.h"

#include <utility>

#include "base/status_macros.h"
#include "kvtransfer/nccl/transport.h"

namespace lodestone {
namespace {

nccl::EndpointOptions ToEndpointOptions(const NcclLinkOptions& options, nccl::Side side) {
  return {.device = options.device,
          .side = side,
          .ctas = options.ctas,
          .max_links = options.max_links,
          .times = options.times,
          .wake = options.wake};
}

}  // namespace

absl::Status CheckNccl() { return nccl::Api::Load("").status(); }

int64_t NcclDeviceBytes(const NcclLinkOptions& options, bool prefill) {
  return ToEndpointOptions(options, prefill ? nccl::Side::kPrefill : nccl::Side::kDecode)
      .DeviceBytes(options.max_links);
}

absl::StatusOr<std::unique_ptr<DataDialer>> MakeNcclDialer(const NcclLinkOptions& options) {
  ASSIGN_OR_RETURN(std::unique_ptr<nccl::Endpoint> endpoint,
                   nccl::Endpoint::Create(ToEndpointOptions(options, nccl::Side::kPrefill)));
  return std::make_unique<nccl::Dialer>(std::move(endpoint));
}

absl::StatusOr<std::unique_ptr<DataListener>> MakeNcclListener(const NcclLinkOptions& options) {
  ASSIGN_OR_RETURN(std::unique_ptr<nccl::Endpoint> endpoint,
                   nccl::Endpoint::Create(ToEndpointOptions(options, nccl::Side::kDecode)));
  return std::make_unique<nccl::Listener>(std::move(endpoint));
}

}  // namespace lodestone
