#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "monitoring/metrics.h"
#include "router/api_error.h"
#include "router/phase_ages.h"
#include "router/request.h"
#include "router/worker_registry.h"

namespace lodestone {

// What the router counts, as verbs. Loop only, except for the scrape that reads it.
class RouterMetrics {
 public:
  explicit RouterMetrics(Metrics* metrics);  // not owned

  // Of every request: one start, one end.
  void RequestStarted() { started_.Increment(); }
  void RequestEnded(int http_status, FinishReason finish_reason, double seconds);
  void FirstTokenWritten(double seconds);
  void TokensWritten(int64_t count, double seconds_per_token);
  void Phases(const RequestTimings& timings);
  // A request enters a phase; it leaves with the stay.
  PhaseAges::Stay Enter(Phase phase) { return PhaseAges::Stay(phase_ages_.get(), phase); }
  void Usage(const struct Usage& usage, double decode_seconds);
  void Rejected(std::string_view reason);
  void Replayed(std::string_view reason);
  void Placed(const Worker& prefill, const Worker& decode, bool link_was_up);
  void UnknownField(const std::string& name);
  void ProbeEnded(bool ok);
  void StreamsOpen(int64_t change) { open_streams_.Add(static_cast<double>(change)); }
  void Load(int64_t queued, int64_t running);
  void WorkerReady(const Worker& worker, bool ready);
  void WorkerLeft(const Worker& worker);

 private:
  Metrics& metrics_;
  CounterMetric started_;
  HistogramMetric duration_;
  HistogramMetric first_token_;
  HistogramMetric inter_token_;
  HistogramMetric per_token_;
  HistogramMetric prompt_tokens_;
  HistogramMetric generation_tokens_;
  CounterMetric prompt_tokens_total_;
  CounterMetric generation_tokens_total_;
  GaugeMetric queue_depth_;
  GaugeMetric running_;
  GaugeMetric open_streams_;
  const std::shared_ptr<PhaseAges> phase_ages_;  // with the scrape, which may outlive this
};

// "stop", "length", ...
std::string_view Name(FinishReason reason);

}  // namespace lodestone
