// Caches of V4-Flash shape on a GPU, and what tests of hand-offs do with their rows.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/ops.h"
#include "kvcache/cache_pool.h"
#include "kvtransfer/link.h"
#include "monitoring/metrics.h"
#include "runtime/stream.h"

namespace lodestone::nccl {

// What a worker has on its GPU.
struct GpuSide {
  GpuSide(DeviceId device, const CacheShape& shape, int64_t tokens);
  ThreadPool threads{1};
  Stream stream;
  std::unique_ptr<Ops> ops;
  std::unique_ptr<CachePool> pool;
};

// One end of a measured hand-off.
struct EndOptions {
  DeviceId gpu;
  int64_t slot_bytes;
  int num_slots;
  int64_t tokens;  // of the longest sequence
};

// As workers with links over NCCL have them.
LinkTimes TimesOfWorkers();

// The same rows, in runs of one page at most.
std::vector<RowRun> PiecesOf(const std::vector<RowRun>& runs);
// Bytes that differ from one such piece to the next.
void FillRuns(const std::vector<RowRun>& runs, DeviceId device);
// Those of about 40 of such pieces, the first and others throughout, one after the other.
std::vector<std::byte> SampleOf(const std::vector<RowRun>& runs);

// " pack 0.05 wait 0.1" and so on: means in ms of the phases so far.
std::string MeanPhases(Metrics& metrics);

}  // namespace lodestone::nccl
