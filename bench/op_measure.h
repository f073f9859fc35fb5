#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/cpu/cpu_ops.h"

// Limits of this machine, measured in the same run as the ops that are compared with them.
namespace lodestone::bench {

using Clock = std::chrono::steady_clock;

// Best time of one call in seconds: repeats for at least `budget` after one warm-up call. The best
// and not the mean, because other processes share the machine.
template <typename F>
double BestSeconds(const F& call,
                   std::chrono::milliseconds budget = std::chrono::milliseconds(200)) {
  call();
  double best = 1e30;
  const auto end = Clock::now() + budget;
  for (int i = 0; i < 3 || Clock::now() < end; ++i) {
    const auto start = Clock::now();
    call();
    best = std::min(best, std::chrono::duration<double>(Clock::now() - start).count());
  }
  return best;
}

struct MachineLimits {
  double flops = 0;         // fp32 multiply-adds from registers, all threads, two per FMA
  double cache_bytes = 0;   // bytes/s read from a buffer of 4 MiB per thread
  double memory_bytes = 0;  // bytes/s read from a buffer of 128 MiB per thread
};

inline double ReadRate(const cpu::SimdTable& simd, ThreadPool& pool, int64_t floats_per_thread) {
  const int64_t threads = pool.num_threads();
  const std::vector<float> data(static_cast<size_t>(threads * floats_per_thread), 1.0f);
  std::vector<float> sums(static_cast<size_t>(threads * 16));
  const double seconds = BestSeconds([&] {
    pool.ParallelFor(threads, [&](int64_t t) {
      sums[static_cast<size_t>(t * 16)] =
          simd.read_loop(data.data() + t * floats_per_thread, floats_per_thread);
    });
  });
  return static_cast<double>(threads * floats_per_thread) * 4 / seconds;
}

inline MachineLimits MeasureLimits(const cpu::SimdTable& simd, ThreadPool& pool) {
  constexpr int64_t kIterations = 1 << 18;
  const int64_t threads = pool.num_threads();
  std::vector<float> sums(static_cast<size_t>(threads * 16));
  const double seconds = BestSeconds([&] {
    pool.ParallelFor(threads, [&](int64_t t) {
      sums[static_cast<size_t>(t * 16)] = simd.fma_loop(kIterations);
    });
  });
  MachineLimits limits;
  limits.flops = static_cast<double>(threads * kIterations) * 16 * 16 * 2 / seconds;
  limits.cache_bytes = ReadRate(simd, pool, 1 << 20);
  limits.memory_bytes = ReadRate(simd, pool, 1 << 25);
  return limits;
}

// What an op must at least do.
struct Work {
  double flops = 0;
  double cache_bytes = 0;  // bytes that do not fit a core's own cache, read or written
};

// One line of the table; returns the share of the bound that was reached.
inline double Report(const std::string& name, double seconds, const Work& work,
                     const MachineLimits& limits) {
  const double flop_seconds = work.flops / limits.flops;
  const double byte_seconds = work.cache_bytes / limits.cache_bytes;
  const double bound = std::max(flop_seconds, byte_seconds);
  std::printf("%-44s %10.1f us  bound %9.1f us (%s)  share %.2f\n", name.c_str(), seconds * 1e6,
              bound * 1e6, flop_seconds >= byte_seconds ? "fma" : "bytes", bound / seconds);
  return bound / seconds;
}

}  // namespace lodestone::bench
