#include "runtime/memory.h"

#include <sys/mman.h>

#include <string>
#include <utility>

#include "base/status_macros.h"
#include "runtime/cuda_calls.h"

namespace lodestone {
namespace {

// Anonymous pages: zeroed by the system, and not resident before their first use, so a large cache
// costs only what it holds.
absl::StatusOr<std::byte*> AllocateHost(int64_t num_bytes) {
  void* pages = num_bytes < 0
                    ? MAP_FAILED
                    : mmap(nullptr, static_cast<size_t>(num_bytes), PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (pages == MAP_FAILED) {
    return absl::ResourceExhaustedError("cannot allocate " + std::to_string(num_bytes) + " bytes");
  }
  return static_cast<std::byte*>(pages);
}

absl::StatusOr<std::byte*> AllocateAt(int64_t num_bytes, MemoryPlace place) {
  switch (place.kind) {
    case MemoryKind::kHost: return AllocateHost(num_bytes);
    case MemoryKind::kPinned: return cuda_calls::AllocatePinned(place.cuda, num_bytes);
    case MemoryKind::kDevice: return cuda_calls::AllocateDevice(place.cuda, num_bytes);
  }
  return absl::InternalError("memory of an unknown kind");
}

}  // namespace

absl::StatusOr<Buffer> Buffer::Allocate(int64_t num_bytes, MemoryPlace place) {
  Buffer buffer;
  buffer.place_ = place;
  if (num_bytes == 0) return buffer;
  ASSIGN_OR_RETURN(buffer.data_, AllocateAt(num_bytes, place));
  buffer.size_ = num_bytes;
  return buffer;
}

Buffer::Buffer(Buffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      place_(other.place_) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(place_, other.place_);
  return *this;
}

Buffer::~Buffer() {
  if (data_ == nullptr) return;
  switch (place_.kind) {
    case MemoryKind::kHost: munmap(data_, static_cast<size_t>(size_)); break;
    case MemoryKind::kPinned: cuda_calls::FreePinned(data_); break;
    case MemoryKind::kDevice: cuda_calls::FreeDevice(place_.cuda, data_); break;
  }
}

}  // namespace lodestone
