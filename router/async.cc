#include "router/async.h"

#include <new>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>

#include "base/logging.h"

namespace lodestone {
namespace {

void RethrowToTerminate(std::exception_ptr error) {
  if (error) std::rethrow_exception(error);
}

}  // namespace

void Spawn(asio::io_context& loop, Task<void> task) {
  asio::co_spawn(loop, std::move(task), RethrowToTerminate);
}

Task<void> SleepUntil(asio::io_context& loop, TimePoint deadline) {
  asio::steady_timer timer(loop, deadline);
  co_await timer.async_wait(asio::as_tuple(asio::use_awaitable));
}

void Event::Notify() {
  for (Waiter* waiter : waiters_) {
    waiter->notified = true;
    waiter->timer.cancel();
  }
}

Task<bool> Event::WaitUntil(TimePoint deadline) {
  Waiter waiter(loop_);
  waiter.timer.expires_at(deadline);
  const auto place = waiters_.insert(waiters_.end(), &waiter);
  co_await waiter.timer.async_wait(asio::as_tuple(asio::use_awaitable));
  waiters_.erase(place);
  co_return waiter.notified;
}

CancelSource::Registration CancelSource::OnCancel(
    std::function<void(const absl::Status&)> callback) {
  if (cancelled()) {
    callback(reason_);
    return Registration();
  }
  callbacks_.remove_if([](const auto& entry) { return entry.expired(); });
  auto shared = std::make_shared<Registration::Callback>(std::move(callback));
  callbacks_.push_back(shared);
  return Registration(std::move(shared));
}

void CancelSource::Cancel(absl::Status reason) {
  if (cancelled()) return;
  reason_ = std::move(reason);
  const std::list<std::weak_ptr<Registration::Callback>> callbacks = std::move(callbacks_);
  for (const auto& entry : callbacks) {
    const std::shared_ptr<Registration::Callback> callback = entry.lock();
    if (callback == nullptr || *callback == nullptr) continue;
    const Registration::Callback call = *callback;
    call(reason_);
  }
}

void TaskGroup::Spawn(Task<void> task) {
  ++running_;  // before: the task may run to its end in here
  try {
    lodestone::Spawn(loop_, Counted(std::move(task)));
  } catch (const std::bad_alloc&) {
    --running_;
    throw;
  }
}

Task<void> TaskGroup::Counted(Task<void> task) {
  co_await std::move(task);
  --running_;
  ended_.Notify();
}

Task<bool> TaskGroup::WaitUntil(TimePoint deadline) {
  while (running_ > 0) {
    const bool woken = co_await ended_.WaitUntil(deadline);
    if (!woken) break;
  }
  co_return running_ == 0;
}

Task<void> TaskGroup::WaitForEnd(TimePoint due, const std::function<void()>& on_late) {
  TimePoint deadline = due;
  while (true) {
    const bool ended = co_await WaitUntil(deadline);
    if (ended) co_return;
    LOG_EVERY_SECONDS(ERROR, 5) << running_ << " tasks of the router run longer than they may";
    on_late();
    deadline = RealClock()->Now() + kLatePause;
  }
}

}  // namespace lodestone
