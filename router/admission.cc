#include "router/admission.h"

#include <algorithm>
#include <utility>

#include <absl/strings/str_cat.h>

namespace lodestone {

Admission::Admission(asio::io_context& loop, AdmissionLimits limits)
    : limits_(limits), changed_(loop), last_end_(RealClock()->Now()) {}

ApiError Admission::QueueFull(std::string message) const {
  ApiError error;
  error.http_status = 429;
  error.type = "rate_limit_error";
  error.code = "queue_full";
  error.message = std::move(message);
  error.retry_after = DrainEstimate();
  return error;
}

ApiOr<Admission::Ticket> Admission::Enter(int64_t num_tokens) {
  if (num_queued() >= limits_.max_queued) {
    return QueueFull(absl::StrCat(num_queued(), " requests are waiting, limit is ",
                                  limits_.max_queued));
  }
  if (!line_.empty() && queued_tokens_ + num_tokens > limits_.max_queued_tokens) {
    return QueueFull(absl::StrCat("prompts of ", queued_tokens_,
                                  " tokens are waiting, this one has ", num_tokens,
                                  ", limit of all is ", limits_.max_queued_tokens));
  }
  return Ticket(this, Insert(line_.end(), num_tokens), RealClock()->Now() + limits_.queue_timeout);
}

Admission::Ticket Admission::EnterRunning(int64_t num_tokens) {
  Ticket ticket(this, Insert(line_.end(), num_tokens), RealClock()->Now() + limits_.queue_timeout);
  ticket.Run();
  return ticket;
}

Admission::Line::iterator Admission::Insert(Line::iterator before, int64_t num_tokens) {
  queued_tokens_ += num_tokens;
  return line_.insert(before, num_tokens);
}

void Admission::Erase(Line::iterator place) {
  queued_tokens_ -= *place;
  line_.erase(place);
}

std::chrono::milliseconds Admission::DrainEstimate() const {
  const double seconds = seconds_between_ends_ * static_cast<double>(num_queued() + 1);
  return std::chrono::milliseconds(static_cast<int64_t>(std::clamp(seconds, 1.0, 120.0) * 1000));
}

ApiError Admission::QueueTimedOut() const {
  ApiError error;
  error.http_status = 429;
  error.type = "rate_limit_error";
  error.code = "queue_timeout";
  error.message = absl::StrCat("waited ", limits_.queue_timeout.count(),
                               " ms for memory or a free place, limit reached");
  error.retry_after = DrainEstimate();
  return error;
}

void Admission::Left() {
  const TimePoint now = RealClock()->Now();
  const double seconds = std::chrono::duration<double>(now - last_end_).count();
  seconds_between_ends_ += 0.1 * (std::min(seconds, 60.0) - seconds_between_ends_);
  last_end_ = now;
  --num_running_;
}

Admission::Ticket::Ticket(Ticket&& other) noexcept
    : admission_(std::exchange(other.admission_, nullptr)),
      place_(other.place_),
      num_tokens_(other.num_tokens_),
      queue_deadline_(other.queue_deadline_),
      state_(other.state_) {}

Admission::Ticket::~Ticket() {
  if (admission_ == nullptr) return;
  if (state_ == State::kQueued) {
    admission_->Erase(place_);
  } else {
    admission_->Left();
  }
  admission_->NotifyChange();
}

Task<std::optional<ApiError>> Admission::Ticket::AwaitTurn(TimePoint deadline,
                                                           CancelSource& cancel) {
  const CancelSource::Registration registration =
      cancel.OnCancel([this](const absl::Status&) { admission_->NotifyChange(); });
  const TimePoint limit = std::min(deadline, queue_deadline_);
  while (true) {
    if (cancel.cancelled()) co_return FromStatus(cancel.reason(), "queue");
    const bool is_first = place_ == admission_->line_.begin();
    if (is_first && admission_->num_running_ < admission_->limits_.max_running) {
      co_return std::nullopt;
    }
    const bool woken = co_await admission_->changed_.WaitUntil(limit);
    if (woken) continue;
    if (queue_deadline_ <= deadline) co_return admission_->QueueTimedOut();
    co_return FromStatus(absl::DeadlineExceededError("the request's deadline passed in the queue"),
                         "queue");
  }
}

Task<void> Admission::Ticket::AwaitChange(TimePoint deadline) {
  co_await admission_->changed_.WaitUntil(deadline);
}

void Admission::Ticket::Run() {
  admission_->Erase(place_);
  state_ = State::kRunning;
  ++admission_->num_running_;
  admission_->NotifyChange();
}

void Admission::Ticket::Return(Patience patience) {
  if (state_ == State::kQueued) return;
  --admission_->num_running_;
  place_ = admission_->Insert(admission_->line_.begin(), num_tokens_);
  state_ = State::kQueued;
  if (patience == Patience::kKept) return;
  queue_deadline_ = RealClock()->Now() + admission_->limits_.queue_timeout;
}

}  // namespace lodestone
