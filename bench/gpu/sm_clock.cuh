#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <thread>
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

// Rests until the clock is within 1 % of the highest, for 2 s at most: after the ceilings' product
// it is a fifth lower for a while, and so is the speed of what only waits.
inline void AwaitFullClock() {
  using std::chrono::steady_clock;
  int device = 0;
  int highest_khz = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  CUDA_CHECK(cudaDeviceGetAttribute(&highest_khz, cudaDevAttrClockRate, device));
  const SmClock clock;
  const auto deadline = steady_clock::now() + std::chrono::seconds(2);
  do {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    clock.Queue(nullptr);
    CUDA_CHECK(cudaStreamSynchronize(nullptr));
  } while (clock.Megahertz() < 0.99e-3 * highest_khz && steady_clock::now() < deadline);
}

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
