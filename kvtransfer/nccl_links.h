// Links over NCCL between the GPUs of two workers, for who does not know CUDA: kvtransfer/nccl in
// binaries built with CUDA; else every call is UNIMPLEMENTED.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvtransfer/link.h"
#include "kvtransfer/transport.h"

namespace lodestone {

struct NcclLinkOptions {
  int device = 0;     // number of the CUDA device
  int ctas = 8;       // SMs per link: nccl/endpoint.h
  int max_links = 8;  // open at once
  LinkTimes times = {};
  std::function<void()> wake = {};  // called from other threads when a Poll has something new
};

// Whether NCCL can be loaded; else why not.
absl::Status CheckNccl();
// Device memory that NCCL takes for all links of a prefill or of a decode worker.
int64_t NcclDeviceBytes(const NcclLinkOptions& options, bool prefill);

// With a thread that makes all calls of NCCL for this device. NOT_FOUND, FAILED_PRECONDITION: no
// usable NCCL. UNAVAILABLE: the device.
absl::StatusOr<std::unique_ptr<DataDialer>> MakeNcclDialer(const NcclLinkOptions& options);
absl::StatusOr<std::unique_ptr<DataListener>> MakeNcclListener(const NcclLinkOptions& options);

}  // namespace lodestone
