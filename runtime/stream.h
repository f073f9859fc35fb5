#pragma once

#include "absl/status/status.h"
#include "base/thread_pool.h"

namespace lodestone {

// The queue that ops run on. On the host an op runs in place, spread over the pool's threads; the
// calls are the same ones that queue kernels on a device, so the model does not know the difference.
// Not thread-safe: one owner, the worker loop.
class Stream {
 public:
  // `pool` is not owned and must outlive the stream.
  explicit Stream(ThreadPool* pool) : pool_(pool) {}
  ThreadPool& pool() const { return *pool_; }

  // Waits for everything queued so far; the first failure of any of it. A worker whose stream has
  // failed is unhealthy for good.
  absl::Status Synchronize() { return absl::OkStatus(); }

 private:
  ThreadPool* const pool_;
};

}  // namespace lodestone
