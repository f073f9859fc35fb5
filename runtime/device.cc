#include "runtime/device.h"

#include <charconv>

#include "runtime/cuda_calls.h"

namespace lodestone {

std::string Name(DeviceId device) {
  return device.is_host() ? "cpu" : "cuda:" + std::to_string(device.cuda);
}

absl::StatusOr<DeviceId> ParseDevice(std::string_view name) {
  constexpr std::string_view kPrefix = "cuda:";
  if (name == "cpu") return kHostDevice;
  DeviceId device;
  if (name.starts_with(kPrefix)) {
    const char* const end = name.data() + name.size();
    const auto [stopped, error] = std::from_chars(name.data() + kPrefix.size(), end, device.cuda);
    if (error == std::errc() && stopped == end && device.cuda >= 0) return device;
  }
  return absl::InvalidArgumentError("device '" + std::string(name) +
                                    "' is neither cpu nor cuda:N");
}

absl::Status OpenDevice(DeviceId device) {
  return device.is_host() ? absl::OkStatus() : cuda_calls::Open(device.cuda);
}

absl::StatusOr<DeviceInfo> DescribeDevice(DeviceId device) {
  return cuda_calls::Describe(device.cuda);
}

}  // namespace lodestone
