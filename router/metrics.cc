#include "router/metrics.h"

namespace lodestone {

std::string_view Name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kNone:
      return "none";
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kError:
      return "error";
  }
  return "none";
}

RouterMetrics::RouterMetrics(Metrics* metrics)
    : metrics_(*metrics),
      started_(metrics->Counter(MetricId::kRequestsStarted)),
      duration_(metrics->Histogram(MetricId::kRequestDuration)),
      first_token_(metrics->Histogram(MetricId::kTimeToFirstToken)),
      inter_token_(metrics->Histogram(MetricId::kInterToken)),
      per_token_(metrics->Histogram(MetricId::kTimePerOutputToken)),
      prompt_tokens_(metrics->Histogram(MetricId::kRequestPromptTokens)),
      generation_tokens_(metrics->Histogram(MetricId::kRequestGenerationTokens)),
      prompt_tokens_total_(metrics->Counter(MetricId::kPromptTokens)),
      generation_tokens_total_(metrics->Counter(MetricId::kGenerationTokens)),
      queue_depth_(metrics->Gauge(MetricId::kRouterQueueDepth)),
      running_(metrics->Gauge(MetricId::kRouterRunningRequests)),
      open_streams_(metrics->Gauge(MetricId::kRouterOpenStreams)),
      phase_ages_(std::make_shared<PhaseAges>()) {
  for (const Phase phase : kAllPhases) {
    const GaugeMetric oldest =
        metrics->Gauge(MetricId::kOldestRequest, {{"phase", std::string(Name(phase))}});
    metrics->OnScrape(
        [oldest, phase, ages = phase_ages_] { oldest.Set(ages->OldestSeconds(phase)); });
  }
}

void RouterMetrics::RequestEnded(int http_status, FinishReason finish_reason, double seconds) {
  metrics_
      .Counter(MetricId::kRequests, {{"code", std::to_string(http_status)},
                                     {"finish_reason", std::string(Name(finish_reason))}})
      .Increment();
  duration_.Observe(seconds);
}

void RouterMetrics::FirstTokenWritten(double seconds) { first_token_.Observe(seconds); }

void RouterMetrics::TokensWritten(int64_t count, double seconds_per_token) {
  for (int64_t i = 0; i < count; ++i) inter_token_.Observe(seconds_per_token);
}

void RouterMetrics::Phases(const RequestTimings& timings) {
  const auto observe = [this](const char* phase, double seconds) {
    metrics_.Histogram(MetricId::kRequestPhase, {{"phase", phase}}).Observe(seconds);
  };
  observe("queue", timings.queue_seconds);
  observe("prefill", timings.prefill_seconds);
  observe("handoff", timings.handoff_seconds);
  observe("decode", timings.decode_seconds);
}

void RouterMetrics::Usage(const struct Usage& usage, double decode_seconds) {
  prompt_tokens_.Observe(static_cast<double>(usage.prompt_tokens));
  generation_tokens_.Observe(static_cast<double>(usage.completion_tokens));
  prompt_tokens_total_.Increment(static_cast<double>(usage.prompt_tokens));
  generation_tokens_total_.Increment(static_cast<double>(usage.completion_tokens));
  if (usage.completion_tokens < 2) return;
  per_token_.Observe(decode_seconds / static_cast<double>(usage.completion_tokens - 1));
}

void RouterMetrics::Rejected(std::string_view reason) {
  metrics_.Counter(MetricId::kAdmissionRejections, {{"reason", std::string(reason)}}).Increment();
}

void RouterMetrics::Replayed(std::string_view reason) {
  metrics_.Counter(MetricId::kRequestReplays, {{"reason", std::string(reason)}}).Increment();
}

void RouterMetrics::Placed(const Worker& prefill, const Worker& decode, bool link_was_up) {
  metrics_
      .Counter(MetricId::kRouterDecisions,
               {{"policy", "free_memory"}, {"reason", link_was_up ? "linked" : "unlinked"}})
      .Increment();
  for (const Worker* worker : {&prefill, &decode}) {
    metrics_
        .Counter(MetricId::kWorkerRequests, {{"role", std::string(Name(worker->hello.role))},
                                             {"worker", worker->hello.instance_id}})
        .Increment();
  }
}

void RouterMetrics::UnknownField(const std::string& name) {
  metrics_.Counter(MetricId::kApiUnknownFields, {{"field", name.substr(0, 64)}}).Increment();
}

void RouterMetrics::ProbeEnded(bool ok) {
  metrics_.Counter(MetricId::kReadinessProbes, {{"result", ok ? "ok" : "failed"}}).Increment();
}

void RouterMetrics::Load(int64_t queued, int64_t running) {
  queue_depth_.Set(static_cast<double>(queued));
  running_.Set(static_cast<double>(running));
}

void RouterMetrics::WorkerReady(const Worker& worker, bool ready) {
  metrics_
      .Gauge(MetricId::kWorkerReady, {{"role", std::string(Name(worker.hello.role))},
                                      {"worker", worker.hello.instance_id}})
      .Set(ready ? 1 : 0);
}

void RouterMetrics::WorkerLeft(const Worker& worker) {
  metrics_.Remove(
      metrics_.Gauge(MetricId::kWorkerReady, {{"role", std::string(Name(worker.hello.role))},
                                              {"worker", worker.hello.instance_id}}));
}

}  // namespace lodestone
