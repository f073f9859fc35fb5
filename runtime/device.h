#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// The processor that a worker's ops run on, and plain copies to and from its memory. No CUDA type
// leaves runtime/: files that call CUDA take the opaque handles of Stream.
namespace lodestone {

// A CUDA device by its number, or the host.
struct DeviceId {
  int cuda = -1;  // -1: the host
  constexpr bool is_host() const { return cuda < 0; }
  friend bool operator==(const DeviceId&, const DeviceId&) = default;
};
inline constexpr DeviceId kHostDevice{};

// "cpu" or "cuda:N".
std::string Name(DeviceId device);
// The inverse. INVALID_ARGUMENT naming the text.
absl::StatusOr<DeviceId> ParseDevice(std::string_view name);

// Whether the device can be used, and makes it the calling thread's. The host always can.
// UNIMPLEMENTED if the binary was built without CUDA; UNAVAILABLE, with what the driver says, if
// there is no such device or no driver.
absl::Status OpenDevice(DeviceId device);

struct DeviceInfo {
  std::string name;               // "NVIDIA H200"
  int major = 0, minor = 0;       // compute capability
  int64_t memory_bytes = 0;       // of the whole device
  int64_t free_bytes = 0;         // at the time of the call
};
// REQUIRES: a CUDA device that OpenDevice accepts.
absl::StatusOr<DeviceInfo> DescribeDevice(DeviceId device);

}  // namespace lodestone
