#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "base/thread_pool.h"

// How ops spread over the pool. Splits are free: no result depends on them.
namespace lodestone::cpu {

inline int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline int64_t RoundUp(int64_t a, int64_t b) { return CeilDiv(a, b) * b; }

// Below this much work on one thread, handing it to others costs more than it saves.
inline constexpr int64_t kMinTaskNs = 5000;

// Calls body(first, count) over ranges that cover [0, n), in multiples of `step`, where one of the
// n costs about `item_ns`. Several ranges per thread, so that a slow thread does not hold up the
// op.
template <typename F>
void ForRanges(ThreadPool& pool, int64_t n, int64_t item_ns, int64_t step, const F& body) {
  if (n <= 0) return;
  const int64_t most = pool.num_threads() == 1 ? 1 : pool.num_threads() * int64_t{4};
  const int64_t wanted = std::clamp<int64_t>(n * item_ns / kMinTaskNs, 1, most);
  const int64_t size = RoundUp(CeilDiv(n, wanted), step);
  pool.ParallelFor(CeilDiv(n, size),
                   [&](int64_t task) { body(task * size, std::min(size, n - task * size)); });
}

// Calls body(lane, item) for items [0, n) on at most `num_lanes` lanes; a lane runs one item at a
// time, so it may own scratch.
template <typename F>
void ForLanes(ThreadPool& pool, int num_lanes, int64_t n, int64_t item_ns, const F& body) {
  const int64_t lanes = std::clamp<int64_t>(std::min<int64_t>(n, n * item_ns / kMinTaskNs), 1,
                                            std::min(num_lanes, pool.num_threads()));
  std::atomic<int64_t> next{0};
  pool.ParallelFor(lanes, [&](int64_t lane) {
    for (int64_t item = next.fetch_add(1, std::memory_order_relaxed); item < n;
         item = next.fetch_add(1, std::memory_order_relaxed)) {
      body(lane, item);
    }
  });
}

}  // namespace lodestone::cpu
