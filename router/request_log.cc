#include "router/request_log.h"

#include "base/logging.h"

namespace lodestone {

void RecordEnd(const RequestEnd& end, RouterMetrics& metrics) {
  const double seconds =
      std::chrono::duration<double>(RealClock()->Now() - end.received_at).count();
  const int status = end.error.has_value() ? end.error->http_status : 200;
  FinishReason reason = end.outcome.finish_reason;
  if (end.error.has_value()) {
    reason = status == 499 ? FinishReason::kCancelled : FinishReason::kError;
  }
  metrics.RequestEnded(status, reason, seconds);
  if (status == 429 || status == 503) metrics.Rejected(end.error->code);
  if (!end.error.has_value()) {
    metrics.Phases(end.outcome.timings);
    metrics.Usage(end.outcome.usage, end.outcome.timings.decode_seconds);
  }
  LOG(INFO) << Field("request_id", end.internal_id) << Field("client_request_id", end.request_id)
            << Field("code", status) << Field("finish_reason", Name(reason))
            << Field("error_code", end.error.has_value() ? end.error->code : "")
            << Field("prompt_tokens", end.outcome.usage.prompt_tokens)
            << Field("output_tokens", end.outcome.usage.completion_tokens)
            << Field("attempts", end.outcome.attempts) << Field("dur_s", seconds) << end.api
            << " request ended";
}

}  // namespace lodestone
