#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"

namespace lodestone {

// Host bytes, 64-byte aligned, zeroed, freed by the destructor. Movable, not copyable.
class Buffer {
 public:
  Buffer() = default;
  // RESOURCE_EXHAUSTED with the size asked for when the system has no such memory.
  static absl::StatusOr<Buffer> Allocate(int64_t num_bytes);
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer();

  std::byte* data() const { return data_; }
  int64_t size() const { return size_; }

 private:
  std::byte* data_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace lodestone
