#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "runtime/device.h"

namespace lodestone {

enum class MemoryKind : uint8_t {
  kHost,    // ordinary memory
  kPinned,  // host memory that a device may address and copies run fast from
  kDevice,  // a device's own; not for the host to touch
};

struct MemoryPlace {
  MemoryKind kind = MemoryKind::kHost;
  int cuda = -1;  // device of the last two kinds
};
// Where the ops of `device` keep what they work on: kDevice, or kHost for the host.
constexpr MemoryPlace WorkMemory(DeviceId device) {
  return device.is_host() ? MemoryPlace{} : MemoryPlace{MemoryKind::kDevice, device.cuda};
}
// Host memory that they can read and write: kPinned, or kHost for the host.
constexpr MemoryPlace SharedMemory(DeviceId device) {
  return device.is_host() ? MemoryPlace{} : MemoryPlace{MemoryKind::kPinned, device.cuda};
}

// Bytes, 64-byte aligned (256 on a device), zeroed, freed by the destructor. Movable, not copyable.
class Buffer {
 public:
  Buffer() = default;
  // RESOURCE_EXHAUSTED with the size asked for when there is no such memory; errors of OpenDevice.
  static absl::StatusOr<Buffer> Allocate(int64_t num_bytes, MemoryPlace place = {});
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer();

  std::byte* data() const { return data_; }
  int64_t size() const { return size_; }
  MemoryPlace place() const { return place_; }

 private:
  std::byte* data_ = nullptr;
  int64_t size_ = 0;
  MemoryPlace place_;
};

}  // namespace lodestone
