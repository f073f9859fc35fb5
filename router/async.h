// What the router's coroutines wait with. Everything here belongs to the one thread that runs the
// io_context ("the loop"): no locks, and no other thread may call it. Other threads enter through
// boost::asio::post.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <utility>

#include <absl/status/status.h>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "base/clock.h"

namespace lodestone {

namespace asio = boost::asio;

template <typename T>
using Task = asio::awaitable<T>;

// Starts `task` on the loop; nobody waits for it. An exception out of it ends the process: ours
// never throw.
void Spawn(asio::io_context& loop, Task<void> task);

Task<void> SleepUntil(asio::io_context& loop, TimePoint deadline);

// Wakes coroutines, like a condition variable: a waiter checks its condition, waits, checks again.
class Event {
 public:
  explicit Event(asio::io_context& loop) : loop_(loop) {}
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  // Wakes everybody who waits now.
  void Notify();
  // False at the deadline. The event must outlive the wait.
  Task<bool> WaitUntil(TimePoint deadline);

 private:
  struct Waiter {
    explicit Waiter(asio::io_context& loop) : timer(loop) {}
    asio::steady_timer timer;
    bool notified = false;
  };
  asio::io_context& loop_;
  std::list<Waiter*> waiters_;
};

// The wish to stop something, with its reason. Cancel() runs what was registered, once.
class CancelSource {
 public:
  CancelSource() = default;
  CancelSource(const CancelSource&) = delete;
  CancelSource& operator=(const CancelSource&) = delete;

  // Takes its callback back when destroyed; may outlive the source.
  class Registration {
   public:
    Registration() = default;
    Registration(Registration&&) = default;
    Registration& operator=(Registration&& other) {
      Reset();
      callback_ = std::move(other.callback_);
      return *this;
    }
    ~Registration() { Reset(); }

   private:
    friend class CancelSource;
    using Callback = std::function<void(const absl::Status&)>;
    explicit Registration(std::shared_ptr<Callback> callback) : callback_(std::move(callback)) {}
    void Reset() {
      if (callback_ != nullptr) *callback_ = nullptr;
      callback_ = nullptr;
    }
    std::shared_ptr<Callback> callback_;
  };

  // Runs `callback` at once if already cancelled.
  [[nodiscard]] Registration OnCancel(std::function<void(const absl::Status&)> callback);
  // REQUIRES: !reason.ok(). Later calls change nothing.
  void Cancel(absl::Status reason);
  bool cancelled() const { return !reason_.ok(); }
  // OK unless cancelled.
  const absl::Status& reason() const { return reason_; }

 private:
  absl::Status reason_;
  std::list<std::weak_ptr<Registration::Callback>> callbacks_;
};

inline constexpr std::chrono::seconds kLatePause{5};

// Counts coroutines that must have ended before their owner may.
class TaskGroup {
 public:
  explicit TaskGroup(asio::io_context& loop) : loop_(loop), ended_(loop) {}
  // `task` must let no exception out.
  void Spawn(Task<void> task);
  // False if some still run at the deadline.
  Task<bool> WaitUntil(TimePoint deadline);
  // Until all have ended, for an owner whose members they use: it cannot leave them behind. They
  // should have ended at `due`; from then on it says so in the log and calls `on_late`, which
  // should end them, every kLatePause. `on_late` must outlive the wait.
  Task<void> WaitForEnd(TimePoint due, const std::function<void()>& on_late);
  int64_t running() const { return running_; }

 private:
  Task<void> Counted(Task<void> task);
  asio::io_context& loop_;
  Event ended_;
  int64_t running_ = 0;
};

// Runs `work` on `pool`, continues on the loop with its result. For work that would hold up the
// loop, such as tokenising a long prompt.
template <typename F>
Task<std::invoke_result_t<F>> RunOn(asio::thread_pool& pool, asio::io_context& loop, F work) {
  co_await asio::post(asio::bind_executor(pool.get_executor(), asio::use_awaitable));
  std::optional<std::invoke_result_t<F>> result;
  std::exception_ptr failure;
  try {
    result.emplace(work());
  } catch (...) {
    failure = std::current_exception();  // to be thrown on the loop, whose state it unwinds
  }
  co_await asio::post(asio::bind_executor(loop.get_executor(), asio::use_awaitable));
  if (failure) std::rethrow_exception(failure);
  co_return *std::move(result);
}

}  // namespace lodestone
