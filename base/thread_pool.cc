#include "base/thread_pool.h"

#include <algorithm>
#include <chrono>
#include <ctime>

#include <immintrin.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/logging.h"

namespace lodestone {
namespace {

// A waiting thread first spins, then lets others run between looks, and only then sleeps. Waking a
// sleeper costs the waker 2 to 5 us on bare metal but 145 us measured in a two-core virtual
// machine, so sleeping pays only after about that long. The gap between two kernels of a decode
// step is a few microseconds.
constexpr std::chrono::microseconds kSpin{30};
constexpr std::chrono::microseconds kSpinAndYield{200};

// Every sleep ends by itself after this; the loop around it looks again.
constexpr std::chrono::seconds kLongestSleep{1};

thread_local bool t_inside_task = false;

// Sleeps while `word` holds `expected`, until woken.
void FutexWait(std::atomic<uint32_t>* word, uint32_t expected) {
  const timespec timeout = {.tv_sec = kLongestSleep.count(), .tv_nsec = 0};
  syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, expected, &timeout, nullptr, 0);
}

void FutexWake(std::atomic<uint32_t>* word, int num_threads) {
  syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, num_threads, nullptr, nullptr, 0);
}

// Waits awake until `condition()` holds, at most kSpinAndYield. Returns condition().
template <typename Condition>
bool SpinUntil(Condition condition) {
  const auto start = std::chrono::steady_clock::now();
  for (auto now = start; now - start < kSpinAndYield; now = std::chrono::steady_clock::now()) {
    for (int i = 0; i < 32; ++i) {
      if (condition()) return true;
      _mm_pause();
    }
    if (now - start > kSpin) sched_yield();
  }
  return condition();
}

constexpr uint64_t kJobUnit = uint64_t{1} << 32;
constexpr uint32_t TasksLeft(uint64_t claim) { return static_cast<uint32_t>(claim); }

}  // namespace

ThreadPool::ThreadPool(int num_threads) {
  CHECK_GE(num_threads, 1);
  threads_.reserve(static_cast<size_t>(num_threads - 1));
  for (int i = 1; i < num_threads; ++i) threads_.emplace_back([this] { WorkerLoop(); });
}

ThreadPool::~ThreadPool() {
  CHECK(!busy_.load()) << "ThreadPool destroyed while ParallelFor runs";
  stop_.store(true);
  wake_.fetch_add(1);
  FutexWake(&wake_, static_cast<int>(threads_.size()));
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::Run(int64_t num_tasks, TaskFunction function, void* context) {
  if (num_tasks <= 0) return;
  if (threads_.empty() || num_tasks == 1 || t_inside_task || busy_.exchange(true)) {
    for (int64_t task = 0; task < num_tasks; ++task) function(context, task);
    return;
  }
  CHECK_LT(num_tasks, int64_t{1} << 32);
  const uint32_t count = static_cast<uint32_t>(num_tasks);
  function_.store(function, std::memory_order_relaxed);
  context_.store(context, std::memory_order_relaxed);
  num_tasks_.store(count, std::memory_order_relaxed);
  num_done_.store(0, std::memory_order_relaxed);
  const uint64_t job = claim_.load(std::memory_order_relaxed) / kJobUnit + 1;
  claim_.store(job * kJobUnit + count);  // seq_cst: ordered before the load of num_sleeping_
  wake_.fetch_add(1);
  if (const uint32_t sleeping = num_sleeping_.load(); sleeping > 0) {
    FutexWake(&wake_, static_cast<int>(std::min(sleeping, count - 1)));
  }
  while (RunOneTask()) {
  }
  WaitForTasks(count);
  busy_.store(false, std::memory_order_release);
}

bool ThreadPool::RunOneTask() {
  uint64_t claim = claim_.load(std::memory_order_acquire);
  while (TasksLeft(claim) > 0) {
    const TaskFunction function = function_.load(std::memory_order_relaxed);
    void* const context = context_.load(std::memory_order_relaxed);
    const uint32_t num_tasks = num_tasks_.load(std::memory_order_relaxed);
    // Success means that the claim did not change in between, so the job had a task left all along
    // and the three values above belong to it.
    if (!claim_.compare_exchange_weak(claim, claim - 1, std::memory_order_acq_rel,
                                      std::memory_order_acquire)) {
      continue;
    }
    t_inside_task = true;
    function(context, num_tasks - TasksLeft(claim));
    t_inside_task = false;
    // seq_cst, as is the store of caller_sleeps_: one of the two threads sees the other.
    if (num_done_.fetch_add(1) + 1 == num_tasks && caller_sleeps_.load() != 0) {
      FutexWake(&num_done_, 1);
    }
    return true;
  }
  return false;
}

void ThreadPool::WaitForTasks(uint32_t num_tasks) {
  const auto all_done = [&] { return num_done_.load(std::memory_order_acquire) == num_tasks; };
  if (SpinUntil(all_done)) return;
  caller_sleeps_.store(1);
  for (uint32_t done = num_done_.load(); done != num_tasks; done = num_done_.load()) {
    FutexWait(&num_done_, done);
  }
  caller_sleeps_.store(0);
}

bool ThreadPool::HasWork() const {
  return TasksLeft(claim_.load()) > 0 || stop_.load(std::memory_order_relaxed);
}

void ThreadPool::WorkerLoop() {
  while (!stop_.load()) {
    while (RunOneTask()) {
    }
    if (SpinUntil([this] { return HasWork(); })) continue;
    const uint32_t seen = wake_.load();
    num_sleeping_.fetch_add(1);
    if (!HasWork()) FutexWait(&wake_, seen);
    num_sleeping_.fetch_sub(1);
  }
}

}  // namespace lodestone
