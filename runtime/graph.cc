#include "runtime/graph.h"

#include <utility>

#include "base/logging.h"
#include "base/status_macros.h"
#include "runtime/cuda_calls.h"

namespace lodestone {

absl::StatusOr<Graph> Graph::Capture(Stream& stream, const std::function<void()>& queue) {
  CHECK(!stream.device().is_host()) << "a graph of the device cpu";
  const int device = stream.device().cuda;
  RETURN_IF_ERROR(cuda_calls::BeginCapture(device, stream.cuda_handle()));
  queue();
  ASSIGN_OR_RETURN(void* const handle, cuda_calls::EndCapture(device, stream.cuda_handle()));
  return Graph(stream, handle);
}

Graph::Graph(Graph&& other) noexcept
    : stream_(other.stream_), handle_(std::exchange(other.handle_, nullptr)) {}

Graph::~Graph() {
  if (handle_ != nullptr) cuda_calls::DestroyGraph(stream_->device().cuda, handle_);
}

void Graph::Replay() const {
  cuda_calls::LaunchGraph(stream_->device().cuda, stream_->cuda_handle(), handle_);
}

}  // namespace lodestone
