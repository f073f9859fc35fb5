#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/thread_pool.h"
#include "runtime/device.h"

namespace lodestone {

class Event;

// The queue that ops run on. On the host an op runs in place, spread over the pool's threads; on a
// device the same calls queue kernels and copies, so the model does not know the difference.
// Not thread-safe: one owner, the worker loop.
class Stream {
 public:
  // On the host. `pool` is not owned and must outlive the stream.
  explicit Stream(ThreadPool* pool) : pool_(pool) {}
  // On any device. Errors of OpenDevice.
  static absl::StatusOr<Stream> Create(DeviceId device, ThreadPool* pool);
  Stream(Stream&& other) noexcept;
  Stream& operator=(Stream&&) = delete;
  ~Stream();

  ThreadPool& pool() const { return *pool_; }
  DeviceId device() const { return device_; }
  void* cuda_handle() const { return handle_; }  // the cudaStream_t; null on the host

  // Queues a copy between any two places; host memory is pinned where the stream is a device's.
  void Copy(void* to, const void* from, int64_t num_bytes);
  // Queues filling of memory that the ops work on.
  void FillBytes(void* to, int value, int64_t num_bytes);
  void FillFloats(void* to, float value, int64_t num_floats);

  // What is queued from now on runs after the place of `event`, a recorded one of the same device.
  void WaitFor(const Event& event);

  // Waits for everything queued so far; the first failure of any of it. A worker whose stream has
  // failed is unhealthy for good.
  absl::Status Synchronize();

 private:
  ThreadPool* pool_;
  DeviceId device_;
  void* handle_ = nullptr;
};

// A place on a stream. On the host, where ops run in place, it is always behind. Movable. Owner as
// of a stream.
class Event {
 public:
  Event() = default;
  static absl::StatusOr<Event> Create(DeviceId device);  // errors of OpenDevice
  Event(Event&& other) noexcept;
  Event& operator=(Event&& other) noexcept;
  ~Event();

  // The place is the end of what is queued on `stream`, of the same device, by now.
  void Record(const Stream& stream);
  // Whether the stream is past it. An error is of anything that the device did: as of Synchronize.
  absl::StatusOr<bool> Passed() const;

 private:
  friend class Stream;
  DeviceId device_;
  void* handle_ = nullptr;  // null on the host
};

}  // namespace lodestone
