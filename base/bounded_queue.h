// A queue with a capacity, between any number of producer and consumer threads. Thread-safe.
//
// Close() ends it in order: pushes fail from then on, pops still drain what was queued, and every
// waiter wakes up. An element is either refused at the push or delivered by a pop: none is lost
// (what nobody pops dies with the queue).
#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <optional>
#include <utility>

#include "base/mutex.h"

namespace lodestone {

template <typename T>
class BoundedQueue {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  // REQUIRES: capacity > 0.
  explicit BoundedQueue(size_t capacity) : capacity_(capacity) {}

  // False if full or closed; `value` is then left untouched.
  bool TryPush(T&& value) {
    MutexLock lock(&mutex_);
    return PushLocked(std::move(value));
  }
  bool TryPush(const T& value) { return TryPush(T(value)); }

  // Waits for room. False if it is still full at the deadline, or closed; `value` is then
  // untouched.
  bool PushUntil(T&& value, TimePoint deadline) {
    MutexLock lock(&mutex_);
    not_full_.WaitUntil(&mutex_, deadline,
                        [this]() REQUIRES(mutex_) { return closed_ || items_.size() < capacity_; });
    return PushLocked(std::move(value));
  }
  bool PushUntil(const T& value, TimePoint deadline) { return PushUntil(T(value), deadline); }

  // The oldest element; nullopt if there is none.
  std::optional<T> TryPop() {
    MutexLock lock(&mutex_);
    return PopLocked();
  }

  // Waits for an element. nullopt at the deadline, or at once when closed and drained.
  std::optional<T> PopUntil(TimePoint deadline) {
    MutexLock lock(&mutex_);
    not_empty_.WaitUntil(&mutex_, deadline,
                         [this]() REQUIRES(mutex_) { return closed_ || !items_.empty(); });
    return PopLocked();
  }

  // Idempotent.
  void Close() {
    MutexLock lock(&mutex_);
    closed_ = true;
    not_full_.NotifyAll();
    not_empty_.NotifyAll();
  }

  bool closed() const {
    MutexLock lock(&mutex_);
    return closed_;
  }
  size_t size() const {
    MutexLock lock(&mutex_);
    return items_.size();
  }
  size_t capacity() const { return capacity_; }

 private:
  bool PushLocked(T&& value) REQUIRES(mutex_) {
    if (closed_ || items_.size() >= capacity_) return false;
    items_.push_back(std::move(value));
    not_empty_.NotifyOne();
    return true;
  }

  std::optional<T> PopLocked() REQUIRES(mutex_) {
    if (items_.empty()) return std::nullopt;
    std::optional<T> value(std::move(items_.front()));
    items_.pop_front();
    not_full_.NotifyOne();
    return value;
  }

  const size_t capacity_;
  mutable Mutex mutex_;
  CondVar not_full_;
  CondVar not_empty_;
  std::deque<T> items_ GUARDED_BY(mutex_);
  bool closed_ GUARDED_BY(mutex_) = false;
};

}  // namespace lodestone
