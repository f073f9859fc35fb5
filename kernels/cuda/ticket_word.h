#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <mutex>

// Words of device memory that count what blocks of a kernel have drawn: kTicketWords of each kernel
// that draws, one a stream, each 0 between launches.
namespace lodestone::cuda {

inline constexpr int kTicketWords = 256;

// The word of a stream, of all such kernels; -1 if all belong to other streams, or the handle
// stands for a stream of each thread. Launches of one stream draw one after the other, and so do
// graphs that were captured on it: they run on it. Thread-safe.
inline int TicketWord(cudaStream_t stream) {
  static std::mutex mutex;
  static cudaStream_t streams[kTicketWords];
  static int num_streams = 0;
  if (stream == cudaStreamPerThread) return -1;
  const std::lock_guard lock(mutex);
  const int word = static_cast<int>(std::find(streams, streams + num_streams, stream) - streams);
  if (word == kTicketWords) return -1;
  if (word == num_streams) streams[num_streams++] = stream;
  return word;
}

}  // namespace lodestone::cuda
