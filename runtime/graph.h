#pragma once

#include <functional>

#include "absl/status/statusor.h"
#include "runtime/stream.h"

namespace lodestone {

// Work of a device's stream, captured once and queued again as a whole: one call in the place of
// thousands. Addresses, shapes and everything else that the host decided are those of the capture.
// Movable, not copyable.
class Graph {
 public:
  // Calls `queue`, which queues on `stream` and neither waits for it nor allocates; nothing of it
  // runs. INTERNAL, the stream as before, where CUDA cannot capture it; RESOURCE_EXHAUSTED where
  // the device has no memory for the graph. REQUIRES: the stream is a device's.
  static absl::StatusOr<Graph> Capture(Stream& stream, const std::function<void()>& queue);
  Graph(Graph&& other) noexcept;
  Graph& operator=(Graph&&) = delete;
  ~Graph();

  // Queues the work on the stream it was captured on.
  void Replay() const;

 private:
  Graph(Stream& stream, void* handle) : stream_(&stream), handle_(handle) {}

  Stream* stream_;
  void* handle_;  // a cudaGraphExec_t
};

}  // namespace lodestone
