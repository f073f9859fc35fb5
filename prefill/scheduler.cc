#include "prefill/scheduler.h"

#include <algorithm>
#include <string>
#include <utility>

namespace lodestone {

int64_t PrefillScheduler::queued_tokens() const {
  int64_t tokens = 0;
  for (const auto& job : queued_) tokens += std::ssize(job->request.tokens);
  for (const auto& job : running_) tokens += job->sequence->num_pending();
  return tokens;
}

absl::Status PrefillScheduler::Enqueue(std::unique_ptr<PrefillJob>&& job) {
  if (num_queued() >= limits_.max_queued_requests) {
    return absl::ResourceExhaustedError(std::to_string(num_queued()) + " requests are queued, " +
                                        "the limit is " +
                                        std::to_string(limits_.max_queued_requests));
  }
  const int64_t tokens = queued_tokens();
  if (tokens > 0 && tokens + std::ssize(job->request.tokens) > limits_.max_queued_tokens) {
    return absl::ResourceExhaustedError(std::to_string(tokens) + " prompt tokens are queued, " +
                                        std::to_string(job->request.tokens.size()) +
                                        " more are over the limit of " +
                                        std::to_string(limits_.max_queued_tokens));
  }
  queued_.push_back(std::move(job));
  return absl::OkStatus();
}

std::unique_ptr<PrefillJob> PrefillScheduler::TakeNext() {
  if (queued_.empty() || num_running() >= limits_.max_running) return nullptr;
  std::unique_ptr<PrefillJob> job = std::move(queued_.front());
  queued_.pop_front();
  return job;
}

void PrefillScheduler::PutBack(std::unique_ptr<PrefillJob> job) {
  queued_.push_front(std::move(job));
}

void PrefillScheduler::Start(std::unique_ptr<PrefillJob> job) {
  running_.push_back(std::move(job));
}

std::vector<StepPart> PrefillScheduler::NextStep() {
  std::vector<StepPart> parts;
  int64_t budget = limits_.chunk_tokens;
  int64_t rows = limits_.logit_rows;
  for (const auto& job : running_) {
    const bool row_per_token = job->sequence->wants_prompt_logprobs();
    const int64_t most = row_per_token ? std::min(budget, rows) : budget;
    const int64_t tokens = std::min(job->sequence->num_pending(), most);
    if (tokens == 0 || rows == 0) break;
    parts.push_back({job->sequence.get(), static_cast<int32_t>(tokens)});
    budget -= tokens;
    rows -= row_per_token ? tokens : 1;
  }
  if (!running_.empty()) running_.splice(running_.end(), running_, running_.begin());
  return parts;
}

PrefillJob* PrefillScheduler::FindRunning(const Sequence* sequence) {
  const auto job = std::ranges::find_if(
      running_, [sequence](const auto& running) { return running->sequence.get() == sequence; });
  return job == running_.end() ? nullptr : job->get();
}

bool PrefillScheduler::HasLease(LeaseId lease) const {
  const auto matches = [lease](const auto& job) { return job->request.lease == lease; };
  return std::ranges::any_of(queued_, matches) || std::ranges::any_of(running_, matches);
}

template <typename Matches>
std::unique_ptr<PrefillJob> PrefillScheduler::RemoveIf(Matches matches) {
  const auto take = [&matches](auto& jobs) -> std::unique_ptr<PrefillJob> {
    const auto found = std::ranges::find_if(jobs, [&](const auto& job) { return matches(*job); });
    if (found == jobs.end()) return nullptr;
    std::unique_ptr<PrefillJob> job = std::move(*found);
    jobs.erase(found);
    return job;
  };
  std::unique_ptr<PrefillJob> job = take(queued_);
  return job != nullptr ? std::move(job) : take(running_);
}

std::unique_ptr<PrefillJob> PrefillScheduler::Remove(PrefillTicket ticket) {
  return RemoveIf([ticket](const PrefillJob& job) { return job.ticket == ticket; });
}

std::unique_ptr<PrefillJob> PrefillScheduler::RemoveLease(LeaseId lease) {
  return RemoveIf([lease](const PrefillJob& job) { return job.request.lease == lease; });
}

std::unique_ptr<PrefillJob> PrefillScheduler::RemoveAny() {
  return RemoveIf([](const PrefillJob&) { return true; });
}

}  // namespace lodestone
