#include "router/readiness.h"

#include <algorithm>

#include <absl/strings/str_cat.h>

#include "base/logging.h"
#include "router/json_text.h"
#include "router/policy.h"

namespace lodestone {
namespace {

constexpr std::chrono::seconds kProbeTimeout{30};
constexpr std::chrono::milliseconds kRetryPause{500};
constexpr std::chrono::seconds kIdlePause{5};
constexpr char kProbeText[] = "Hello";
constexpr int kProbeTokens = 2;  // the second one needs the hand-off

class CountingSink final : public TokenSink {
 public:
  Task<absl::StatusOr<Written>> Write(std::span<const GeneratedToken> tokens) override {
    count_ += tokens.size();
    co_return Written{.num_tokens = tokens.size()};
  }
  size_t count() const { return count_; }

 private:
  size_t count_ = 0;
};

}  // namespace

Readiness::Readiness(asio::io_context& loop, const ModelInfo* model, WorkerRegistry* registry,
                     RequestFlow* flow, RouterMetrics* metrics)
    : model_(*model), registry_(*registry), flow_(*flow), metrics_(*metrics), changed_(loop) {}

std::set<Readiness::Pair> Readiness::LivePairs() const {
  std::set<Pair> pairs;
  for (const std::shared_ptr<Worker>& prefill : registry_.workers()) {
    if (prefill->hello.role != WorkerRole::kPrefill) continue;
    for (const std::shared_ptr<Worker>& decode : registry_.workers()) {
      if (decode->hello.role != WorkerRole::kDecode) continue;
      const bool usable = prefill->load.state == WorkerState::kReady &&
                          decode->load.state == WorkerState::kReady &&
                          prefill->hello.layout_fingerprint == decode->hello.layout_fingerprint;
      if (usable) pairs.emplace(prefill->hello.instance_id, decode->hello.instance_id);
    }
  }
  return pairs;
}

bool Readiness::ready() const {
  if (stopping_) return false;
  const std::set<Pair> live = LivePairs();
  return std::any_of(live.begin(), live.end(),
                     [this](const Pair& pair) { return proven_.contains(pair); });
}

// At once, not when the watch comes round: a probe may keep it busy while a worker stops and goes
// on.
void Readiness::NotifyChange() {
  const std::set<Pair> live = LivePairs();
  std::erase_if(proven_, [&](const Pair& pair) { return !live.contains(pair); });
  if (!live.contains(probed_)) probed_ = {};
  changed_.Notify();
}

Task<void> Readiness::Watch() {
  while (!stopping_) {
    const std::set<Pair> live = LivePairs();
    const auto unproven = std::find_if(
        live.begin(), live.end(), [this](const Pair& pair) { return !proven_.contains(pair); });
    if (unproven == live.end()) {
      co_await changed_.WaitUntil(RealClock()->Now() + kIdlePause);
      continue;
    }
    const Pair pair = *unproven;
    probed_ = pair;
    co_await Probe(pair);
    if (!proven_.contains(pair)) co_await changed_.WaitUntil(RealClock()->Now() + kRetryPause);
  }
}

Task<void> Readiness::Probe(Pair pair) {
  Request request;
  request.is_probe = true;
  request.prompt = model_.tokenizer->EncodeText(kProbeText);
  request.sampling.ignore_eos = true;
  request.sampling.max_new_tokens = kProbeTokens;
  request.received_at = RealClock()->Now();
  request.deadline = request.received_at + kProbeTimeout;
  request.pinned_prefill = pair.first;
  request.pinned_decode = pair.second;
  CountingSink sink;
  const ApiOr<Outcome> outcome = co_await flow_.Run(request, sink, stop_);
  if (stopping_) co_return;
  const bool ok = outcome.ok() && sink.count() == kProbeTokens;
  metrics_.ProbeEnded(ok);
  if (!ok) {
    last_failure_ = outcome.ok() ? absl::StrCat("the probe got ", sink.count(),
                                                " tokens, expected ", kProbeTokens)
                                 : absl::StrCat("the probe failed: ", outcome.error().message);
    LOG_EVERY_SECONDS(WARNING, 5) << last_failure_;
    co_return;
  }
  if (probed_ != pair) co_return;  // one of them was not ready meanwhile
  const bool was_ready = ready();
  proven_.insert(pair);
  last_failure_.clear();
  if (!was_ready && ready()) LOG(INFO) << "ready: a generation went through every step";
}

void Readiness::Stop() {
  stopping_ = true;
  stop_.Cancel(absl::CancelledError("the router stops"));
  changed_.Notify();
}

std::shared_ptr<Worker> Readiness::FirstReady(WorkerRole role) const {
  for (const std::shared_ptr<Worker>& worker : registry_.workers()) {
    if (worker->hello.role == role && worker->load.state == WorkerState::kReady) return worker;
  }
  return nullptr;
}

std::vector<std::string> Readiness::Reasons() const {
  std::vector<std::string> reasons;
  if (ready()) return reasons;
  if (stopping_) reasons.push_back("the router is stopping");
  if (!FirstReady(WorkerRole::kPrefill)) reasons.push_back("no prefill worker is ready");
  if (!FirstReady(WorkerRole::kDecode)) reasons.push_back("no decode worker is ready");
  if (!reasons.empty()) return reasons;
  if (LivePairs().empty()) {
    reasons.push_back("no prefill and decode worker have the same cache layout: " +
                      DifferingLayout(FirstReady(WorkerRole::kPrefill)->hello,
                                      FirstReady(WorkerRole::kDecode)->hello));
  } else {
    reasons.push_back(last_failure_.empty() ? "no generation has gone through every step yet"
                                            : last_failure_);
  }
  return reasons;
}

std::string Readiness::Describe() const {
  JsonText json;
  json.Open("{").Key("ready").Bool(ready()).Key("reasons").Open("[");
  for (const std::string& reason : Reasons()) json.String(reason);
  json.Close("]").Key("workers").Raw(DescribeWorkers(registry_.workers()));
  json.Key("refused").Open("[");
  for (const RefusedWorker& worker : registry_.Refused()) {
    json.Open("{").Key("role").String(Name(worker.role));
    json.Key("instance_id").String(worker.instance_id).Key("address").String(worker.address);
    json.Key("reason").String(worker.reason).Close("}");
  }
  return json.Close("]").Close("}").Take();
}

}  // namespace lodestone
