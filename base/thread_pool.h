// Threads that share the tasks of one CPU kernel.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

namespace lodestone {

// Runs body(0..num_tasks-1) on `num_threads` threads, the caller being one of them. Made for decode
// steps, which call ParallelFor about 100 times per token: no allocation, no lock; an idle thread
// spins for 30 us, offers its core to others until 200 us, and then sleeps, so that two worker
// processes can share two cores.
//
// Which thread runs which task is not defined: results must not depend on it. Thread-safe; a call
// while another runs (from a task or from another thread) does all its tasks on its own thread.
class ThreadPool {
 public:
  // num_threads >= 1, the caller included; 1 starts no thread.
  explicit ThreadPool(int num_threads);
  // REQUIRES: no ParallelFor is running.
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return static_cast<int>(threads_.size()) + 1; }

  // Returns when every task has run. What the tasks wrote is visible to the caller. The body must
  // not throw. REQUIRES: num_tasks < 2^32; 0 or less does nothing.
  template <typename F>
  void ParallelFor(int64_t num_tasks, F&& body) {
    using Body = std::remove_reference_t<F>;
    Run(
        num_tasks, [](void* context, int64_t task) { (*static_cast<Body*>(context))(task); },
        const_cast<void*>(static_cast<const void*>(&body)));
  }

 private:
  using TaskFunction = void (*)(void* context, int64_t task);

  void Run(int64_t num_tasks, TaskFunction function, void* context);
  bool RunOneTask();
  void WaitForTasks(uint32_t num_tasks);
  void WorkerLoop();
  bool HasWork() const;

  // The job. Fields below are only written while no task is left to claim; a thread that reads
  // them and then claims a task of the same `claim_` value has read them consistently.
  std::atomic<TaskFunction> function_{nullptr};
  std::atomic<void*> context_{nullptr};
  std::atomic<uint32_t> num_tasks_{0};
  // High half: number of the job. Low half: tasks not claimed yet. One compare-and-swap claims.
  alignas(64) std::atomic<uint64_t> claim_{0};
  alignas(64) std::atomic<uint32_t> num_done_{0};  // of the current job; the caller sleeps on it
  std::atomic<uint32_t> caller_sleeps_{0};
  alignas(64) std::atomic<uint32_t> wake_{0};  // counts jobs; idle threads sleep on it
  std::atomic<uint32_t> num_sleeping_{0};
  std::atomic<bool> busy_{false};
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
};

}  // namespace lodestone
