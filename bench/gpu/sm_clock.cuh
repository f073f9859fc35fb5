#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "bench/gpu/device_array.h"
#include "bench/gpu/measure.h"
#include "kernels/cuda/cuda_check.h"

// The clock of the multiprocessors while something is measured: a card near its power limit lowers
// it, and a row of a table is then slower after rows that took much power than alone.
namespace lodestone::cuda::bench {

static __global__ void CountCyclesKernel(int64_t* counts) {
  constexpr uint64_t kNanoseconds = 20'000;
  uint64_t begin = 0;
  uint64_t now = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  const int64_t first = clock64();
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - begin < kNanoseconds);
  counts[0] = clock64() - first;
  counts[1] = static_cast<int64_t>(now - begin);
}

// Queue() counts for 20 us on one multiprocessor; Megahertz() is what it found, once its stream has
// been synchronised.
class SmClock {
 public:
  void Queue(cudaStream_t stream) const {
    CountCyclesKernel<<<1, 1, 0, stream>>>(counts_.data());
    CUDA_CHECK(cudaGetLastError());
  }
  double Megahertz() const {
    const std::vector<int64_t> counts = counts_.Read();
    return 1e3 * static_cast<double>(counts[0]) / static_cast<double>(counts[1]);
  }

 private:
  DeviceArray<int64_t> counts_{size_t{2}};
};

// GraphMicroseconds, and the clock right after the last replay.
struct TimedRow {
  double microseconds;
  double megahertz;
};
inline TimedRow TimeRow(int launches, const std::function<void(int, cudaStream_t)>& queue) {
  const SmClock clock;
  const double us =
      GraphMicroseconds(launches, queue, [&](cudaStream_t stream) { clock.Queue(stream); });
  return {us, clock.Megahertz()};
}

}  // namespace lodestone::cuda::bench
