#include "kvtransfer/metrics.h"

namespace lodestone {
namespace {

constexpr const char* PhaseLabel(HandoffPhase phase) {
  switch (phase) {
    case HandoffPhase::kPack: return "pack";
    case HandoffPhase::kWait: return "wait";
    case HandoffPhase::kMove: return "move";
    case HandoffPhase::kScatter: return "scatter";
    case HandoffPhase::kAdopt: return "adopt";
  }
  return "";
}

constexpr const char* FailureReason(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kDataLoss: return "data_loss";
    case absl::StatusCode::kUnavailable: return "unavailable";
    case absl::StatusCode::kDeadlineExceeded: return "deadline";
    case absl::StatusCode::kCancelled: return "cancelled";
    case absl::StatusCode::kNotFound: return "lease_unknown";
    case absl::StatusCode::kFailedPrecondition: return "refused";
    default: return "internal";
  }
}

const char* ResultLabel(bool same) { return same ? "ok" : "mismatch"; }

MetricLabels Labels(const LinkPair& pair) {
  return {{"prefill", pair.prefill}, {"decode", pair.decode}};
}

}  // namespace

void HandoffMetrics::ObservePhase(const LinkPair& pair, HandoffPhase phase,
                                  std::chrono::nanoseconds time) {
  if (metrics_ == nullptr) return;
  auto& phases = pairs_[{pair.prefill, pair.decode}].phases;
  auto found = phases.find(phase);
  if (found == phases.end()) {
    MetricLabels labels = Labels(pair);
    labels["phase"] = PhaseLabel(phase);
    found = phases.emplace(phase, metrics_->Histogram(MetricId::kKvTransferSeconds, labels)).first;
  }
  found->second.Observe(std::chrono::duration<double>(time).count());
}

void HandoffMetrics::AddBytes(const LinkPair& pair, const Manifest& kinds) {
  if (metrics_ == nullptr) return;
  auto& bytes = pairs_[{pair.prefill, pair.decode}].bytes;
  for (size_t i = 0; i < kinds.size(); ++i) {
    if (kinds[i].bytes == 0) continue;
    auto found = bytes.find(i);
    if (found == bytes.end()) {
      MetricLabels labels = Labels(pair);
      labels["kind"] = std::string(Name(static_cast<CacheKind>(i)));
      found = bytes.emplace(i, metrics_->Counter(MetricId::kKvTransferBytes, labels)).first;
    }
    found->second.Increment(static_cast<double>(kinds[i].bytes));
  }
}

void HandoffMetrics::CountComparison(const Manifest& here, const Manifest& offered) {
  if (metrics_ == nullptr) return;
  for (size_t i = 0; i < here.size(); ++i) {
    if (here[i].rows == 0 && offered[i].rows == 0) continue;
    const auto counter = [&](auto& kept, MetricId id, bool same) -> const CounterMetric& {
      auto found = kept.find({i, same});
      if (found == kept.end()) {
        const std::string kind(Name(static_cast<CacheKind>(i)));
        const CounterMetric made =
            metrics_->Counter(id, {{"kind", kind}, {"result", ResultLabel(same)}});
        found = kept.emplace(std::pair(i, same), made).first;
      }
      return found->second;
    };
    const bool same_rows = here[i].rows == offered[i].rows && here[i].bytes == offered[i].bytes;
    counter(rows_, MetricId::kHandoffRows, same_rows).Increment(static_cast<double>(here[i].rows));
    counter(digests_, MetricId::kHandoffDigests, here[i].digest == offered[i].digest).Increment();
  }
}

void HandoffMetrics::CountEnd(const absl::Status& status) {
  if (metrics_ == nullptr) return;
  const bool aborted = status.code() == absl::StatusCode::kCancelled;
  const char* result = status.ok() ? "adopted" : aborted ? "aborted" : "failed";
  metrics_->Counter(MetricId::kHandoffs, {{"result", result}}).Increment();
  if (status.ok()) return;
  metrics_->Counter(MetricId::kKvTransferFailures, {{"reason", FailureReason(status.code())}})
      .Increment();
}

MetricLabels HandoffMetrics::LinkLabels(const LinkPair& pair) const {
  const auto transport = transports_.find({pair.prefill, pair.decode});
  MetricLabels labels = Labels(pair);
  labels["transport"] = transport == transports_.end() ? "none" : transport->second;
  return labels;
}

void HandoffMetrics::SetLinkUp(const LinkPair& pair, std::string_view transport) {
  if (metrics_ == nullptr) return;
  ForgetLink(pair);
  transports_[{pair.prefill, pair.decode}] = std::string(transport);
  metrics_->Gauge(MetricId::kLinkUp, LinkLabels(pair)).Set(1);
}

void HandoffMetrics::SetLinkDown(const LinkPair& pair) {
  if (metrics_ != nullptr) metrics_->Gauge(MetricId::kLinkUp, LinkLabels(pair)).Set(0);
}

void HandoffMetrics::ForgetLink(const LinkPair& pair) {
  if (metrics_ == nullptr) return;
  metrics_->Remove(metrics_->Gauge(MetricId::kLinkUp, LinkLabels(pair)));
  transports_.erase({pair.prefill, pair.decode});
  pairs_.erase({pair.prefill, pair.decode});
}

}  // namespace lodestone
