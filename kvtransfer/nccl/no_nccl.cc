// For binaries built without CUDA: no worker has a GPU, so nothing but CheckNccl is ever called.
#include "kvtransfer/nccl_links.h"

namespace lodestone {
namespace {

absl::Status NotBuilt() {
  return absl::UnimplementedError("this binary was built without CUDA (LODESTONE_CUDA)");
}

}  // namespace

absl::Status CheckNccl() { return NotBuilt(); }
int64_t NcclDeviceBytes(const NcclLinkOptions&, bool) { return 0; }
absl::StatusOr<std::unique_ptr<DataDialer>> MakeNcclDialer(const NcclLinkOptions&) {
  return NotBuilt();
}
absl::StatusOr<std::unique_ptr<DataListener>> MakeNcclListener(const NcclLinkOptions&) {
  return NotBuilt();
}

}  // namespace lodestone
