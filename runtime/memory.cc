#include "runtime/memory.h"

#include <sys/mman.h>

#include <string>
#include <utility>

namespace lodestone {

absl::StatusOr<Buffer> Buffer::Allocate(int64_t num_bytes) {
  Buffer buffer;
  if (num_bytes == 0) return buffer;
  // Anonymous pages: zeroed by the system, and not resident before their first use, so a large
  // cache costs only what it holds.
  void* pages = num_bytes < 0 ? MAP_FAILED
                              : mmap(nullptr, static_cast<size_t>(num_bytes), PROT_READ | PROT_WRITE,
                                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (pages == MAP_FAILED) {
    return absl::ResourceExhaustedError("cannot allocate " + std::to_string(num_bytes) + " bytes");
  }
  buffer.data_ = static_cast<std::byte*>(pages);
  buffer.size_ = num_bytes;
  return buffer;
}

Buffer::Buffer(Buffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

Buffer::~Buffer() {
  if (data_ != nullptr) munmap(data_, static_cast<size_t>(size_));
}

}  // namespace lodestone
