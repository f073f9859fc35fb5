#include "runtime/stream.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "base/status_macros.h"
#include "runtime/cuda_calls.h"

namespace lodestone {

absl::StatusOr<Stream> Stream::Create(DeviceId device, ThreadPool* pool) {
  Stream stream(pool);
  if (device.is_host()) return stream;
  ASSIGN_OR_RETURN(stream.handle_, cuda_calls::CreateStream(device.cuda));
  stream.device_ = device;
  return stream;
}

Stream::Stream(Stream&& other) noexcept
    : pool_(other.pool_), device_(other.device_), handle_(std::exchange(other.handle_, nullptr)) {}

Stream::~Stream() {
  if (handle_ != nullptr) cuda_calls::DestroyStream(device_.cuda, handle_);
}

void Stream::Copy(void* to, const void* from, int64_t num_bytes) {
  if (num_bytes == 0) return;
  if (device_.is_host()) {
    std::memcpy(to, from, static_cast<size_t>(num_bytes));
  } else {
    cuda_calls::Copy(device_.cuda, handle_, to, from, num_bytes);
  }
}

void Stream::FillBytes(void* to, int value, int64_t num_bytes) {
  if (num_bytes == 0) return;
  if (device_.is_host()) {
    std::memset(to, value, static_cast<size_t>(num_bytes));
  } else {
    cuda_calls::FillBytes(device_.cuda, handle_, to, value, num_bytes);
  }
}

void Stream::FillFloats(void* to, float value, int64_t num_floats) {
  if (num_floats == 0) return;
  if (device_.is_host()) {
    std::fill_n(static_cast<float*>(to), num_floats, value);
  } else {
    cuda_calls::FillWords(device_.cuda, handle_, to, std::bit_cast<uint32_t>(value), num_floats);
  }
}

absl::Status Stream::Synchronize() {
  return device_.is_host() ? absl::OkStatus() : cuda_calls::Synchronize(device_.cuda, handle_);
}

}  // namespace lodestone
