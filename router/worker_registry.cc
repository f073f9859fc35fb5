#include "router/worker_registry.h"

#include <algorithm>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include "base/logging.h"
#include "router/worker_client.h"

namespace lodestone {
namespace {

constexpr std::chrono::milliseconds kSilenceCheckPeriod{250};

std::string Difference(std::string_view field, const std::string& here, const std::string& there) {
  return absl::StrCat(std::string(field), ": router ", here, ", worker ", there);
}

}  // namespace

std::string_view Name(WorkerRole role) {
  return role == WorkerRole::kPrefill ? "prefill" : "decode";
}

std::string_view Name(WorkerState state) {
  switch (state) {
    case WorkerState::kLoading:
      return "loading";
    case WorkerState::kReady:
      return "ready";
    case WorkerState::kDraining:
      return "draining";
    case WorkerState::kUnhealthy:
      return "unhealthy";
  }
  return "unknown";
}

int64_t WorstCaseBytes(const WorkerHello& hello, int64_t tokens) {
  const int64_t pages = (tokens + hello.page_tokens - 1) / hello.page_tokens;
  return hello.bytes_per_sequence + hello.bytes_per_page * pages;
}

int64_t LargestRequestTokens(const WorkerHello& hello) {
  const int64_t for_pages = hello.cache_capacity_bytes - hello.bytes_per_sequence;
  if (for_pages < 0) return 0;
  if (hello.bytes_per_page <= 0) return hello.max_context_tokens;
  return std::min<int64_t>(hello.max_context_tokens,
                           for_pages / hello.bytes_per_page * hello.page_tokens);
}

WorkerRegistry::WorkerRegistry(asio::io_context& loop, RegistryRules rules, Connect connect)
    : rules_(std::move(rules)), connect_(std::move(connect)), stop_(loop) {}

void WorkerRegistry::NotifyChanged() const {
  for (const std::function<void()>& callback : on_changed_) callback();
}

std::string WorkerRegistry::ModelIdHere() const {
  for (const std::shared_ptr<Worker>& worker : workers_) {
    if (!worker->hello.model_id.empty()) return worker->hello.model_id;
  }
  return {};
}

std::vector<std::string> WorkerRegistry::Differences(const WorkerHello& hello) const {
  std::vector<std::string> differences;
  const auto compare = [&](std::string_view field, const std::string& here,
                           const std::string& there) {
    if (!here.empty() && here != there) differences.push_back(Difference(field, here, there));
  };
  const std::string model_id = ModelIdHere();
  const bool known_id = !hello.model_id.empty() &&
                        (hello.model_id == rules_.model_id || hello.model_id == model_id);
  if (!known_id) compare("model_name", rules_.model_name, hello.model_name);
  compare("vocab_size", absl::StrCat(rules_.vocab_size), absl::StrCat(hello.vocab_size));
  compare("eos_token_id", absl::StrCat(rules_.eos_token_id), absl::StrCat(hello.eos_token_id));
  for (const auto& [name, value] : hello.layout) {
    if (name == "tokenizer" && !value.empty()) compare(name, rules_.tokenizer_fingerprint, value);
  }
  compare("model_id", model_id, hello.model_id);
  return differences;
}

// Whoever this worker takes the place of leaves: it loads no more, or it is an earlier start.
void WorkerRegistry::MakeRoomFor(const WorkerHello& hello) {
  const std::vector<std::shared_ptr<Worker>> workers = workers_;
  for (const std::shared_ptr<Worker>& worker : workers) {
    if (worker->hello.instance_id == hello.instance_id) {
      Replace(hello.instance_id);
    } else if (!hello.address.empty() && worker->hello.address == hello.address) {
      Remove(worker->hello.instance_id, "another start of it is at its address");
    }
  }
}

absl::Status WorkerRegistry::Refuse(const WorkerHello& hello,
                                    const std::vector<std::string>& differences) {
  const std::string reason =
      absl::StrCat("this router serves another model: ", absl::StrJoin(differences, "; "));
  constexpr size_t kMaxRefused = 64;
  if (refused_.size() < kMaxRefused || refused_.contains(hello.instance_id)) {
    refused_[hello.instance_id] = RefusedWorker{.role = hello.role,
                                                .instance_id = hello.instance_id,
                                                .address = hello.address,
                                                .reason = reason,
                                                .refused_at = RealClock()->Now()};
  }
  return absl::FailedPreconditionError(reason);
}

std::vector<RefusedWorker> WorkerRegistry::Refused() const {
  std::vector<RefusedWorker> refused;
  const TimePoint oldest = RealClock()->Now() - kRefusedStays;
  for (const auto& [instance_id, worker] : refused_) {
    if (worker.refused_at >= oldest) refused.push_back(worker);
  }
  return refused;
}

absl::Status WorkerRegistry::Add(WorkerHello hello, WorkerLoad load, TimePoint reported_at) {
  const bool loads = hello.address.empty() && load.state == WorkerState::kLoading;
  if (hello.instance_id.empty() || (!loads && (hello.address.empty() || hello.page_tokens <= 0))) {
    return absl::InvalidArgumentError(
        absl::StrCat("hello needs instance_id, address and page_tokens >= 1; got \"",
                     hello.instance_id, "\", \"", hello.address, "\", ", hello.page_tokens));
  }
  MakeRoomFor(hello);
  if (!loads) {
    const std::vector<std::string> differences = Differences(hello);
    if (!differences.empty()) return Refuse(hello, differences);
  }
  refused_.erase(hello.instance_id);
  auto worker = std::make_shared<Worker>();
  worker->hello = std::move(hello);
  worker->load = std::move(load);
  worker->last_report = reported_at;
  if (!loads) connect_(*worker);
  LOG(INFO) << Field("worker", worker->hello.instance_id) << Name(worker->hello.role) << " worker"
            << (loads ? "" : " at " + worker->hello.address) << " joined, "
            << Name(worker->load.state);
  workers_.push_back(std::move(worker));
  NotifyChanged();
  return absl::OkStatus();
}

bool WorkerRegistry::Report(const std::string& instance_id, WorkerLoad load,
                            TimePoint reported_at) {
  const std::shared_ptr<Worker> worker = Find(instance_id);
  if (worker == nullptr) return false;
  // Without an address it cannot be used, whatever it says.
  if (worker->hello.address.empty()) load.state = WorkerState::kLoading;
  if (worker->load.state != load.state) {
    LOG(INFO) << Field("worker", instance_id) << Name(worker->hello.role) << " worker is "
              << Name(load.state) << (load.state_reason.empty() ? "" : ": ") << load.state_reason;
  }
  if (load.state != WorkerState::kReady) NoteLeft(*worker);
  worker->load = std::move(load);
  worker->last_report = reported_at;
  NotifyChanged();
  return true;
}

// REQUIRES: it leaves now, or is about to get another state.
void WorkerRegistry::NoteLeft(const Worker& worker) {
  if (worker.load.state != WorkerState::kReady) return;
  left_at_[worker.hello.role] = RealClock()->Now();
}

std::optional<TimePoint> WorkerRegistry::LeftAt(WorkerRole role) const {
  const auto found = left_at_.find(role);
  if (found == left_at_.end()) return std::nullopt;
  return found->second;
}

void WorkerRegistry::Replace(const std::string& instance_id) {
  const std::shared_ptr<Worker> worker = Find(instance_id);
  if (worker == nullptr) return;
  // One without an address was loading, and has not gone anywhere: no line says that it left.
  if (worker->hello.address.empty()) return TakeOut(instance_id, "it has loaded its model");
  Remove(instance_id, "it registers again");
}

void WorkerRegistry::Remove(const std::string& instance_id, std::string why) {
  if (const std::shared_ptr<Worker> worker = Find(instance_id); worker != nullptr) {
    const std::string& address = worker->hello.address;
    LOG(INFO) << Field("worker", instance_id) << Name(worker->hello.role) << " worker"
              << (address.empty() ? "" : " at " + address) << " left: " << why;
  }
  TakeOut(instance_id, std::move(why));
}

void WorkerRegistry::TakeOut(const std::string& instance_id, const std::string& why) {
  const auto found = std::find_if(workers_.begin(), workers_.end(), [&](const auto& worker) {
    return worker->hello.instance_id == instance_id;
  });
  if (found == workers_.end()) return;
  const std::shared_ptr<Worker> worker = *found;
  workers_.erase(found);
  NoteLeft(*worker);
  worker->gone.Cancel(
      absl::UnavailableError(absl::StrCat(std::string(Name(worker->hello.role)), " worker at ",
                                          worker->hello.address, " left: ", why)));
  if (worker->decode != nullptr) worker->decode->Shutdown(worker->gone.reason());
  if (on_removed_) on_removed_(*worker);
  NotifyChanged();
}

Task<void> WorkerRegistry::WatchSilence() {
  TimePoint last_check = RealClock()->Now();
  while (!stopping_) {
    co_await stop_.WaitUntil(RealClock()->Now() + kSilenceCheckPeriod);
    const TimePoint now = RealClock()->Now();
    // If this loop itself did not run, reports may wait behind it: look again next time.
    const bool was_late = now - last_check > 2 * kSilenceCheckPeriod;
    last_check = now;
    std::erase_if(refused_, [now](const auto& entry) {
      return entry.second.refused_at < now - kRefusedStays;
    });
    if (was_late) continue;
    const std::vector<std::shared_ptr<Worker>> workers = workers_;
    for (const std::shared_ptr<Worker>& worker : workers) {
      const auto silence = std::chrono::duration_cast<std::chrono::milliseconds>(
          now - worker->last_report);
      if (silence <= rules_.worker_timeout) continue;
      Remove(worker->hello.instance_id,
             absl::StrCat("silent for ", silence.count(), " ms, limit is ",
                          rules_.worker_timeout.count(), " ms"));
    }
  }
}

void WorkerRegistry::Stop() {
  stopping_ = true;
  stop_.Notify();
  const std::vector<std::shared_ptr<Worker>> workers = workers_;
  for (const std::shared_ptr<Worker>& worker : workers) {
    Remove(worker->hello.instance_id, "the router stops");
  }
}

std::shared_ptr<Worker> WorkerRegistry::Find(const std::string& instance_id) const {
  for (const std::shared_ptr<Worker>& worker : workers_) {
    if (worker->hello.instance_id == instance_id) return worker;
  }
  return nullptr;
}

}  // namespace lodestone
