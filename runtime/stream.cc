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

void Stream::WaitFor(const Event& event) {
  if (!device_.is_host()) cuda_calls::WaitEvent(device_.cuda, handle_, event.handle_);
}

absl::Status Stream::Synchronize() {
  return device_.is_host() ? absl::OkStatus() : cuda_calls::Synchronize(device_.cuda, handle_);
}

absl::StatusOr<Event> Event::Create(DeviceId device) {
  Event event;
  if (device.is_host()) return event;
  ASSIGN_OR_RETURN(event.handle_, cuda_calls::CreateEvent(device.cuda));
  event.device_ = device;
  return event;
}

Event::Event(Event&& other) noexcept
    : device_(other.device_), handle_(std::exchange(other.handle_, nullptr)) {}

Event& Event::operator=(Event&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(handle_, other.handle_);
  return *this;
}

Event::~Event() {
  if (handle_ != nullptr) cuda_calls::DestroyEvent(device_.cuda, handle_);
}

void Event::Record(const Stream& stream) {
  if (handle_ != nullptr) cuda_calls::RecordEvent(device_.cuda, handle_, stream.cuda_handle());
}

absl::StatusOr<bool> Event::Passed() const {
  if (handle_ == nullptr) return true;
  return cuda_calls::EventPassed(device_.cuda, handle_);
}

}  // namespace lodestone
