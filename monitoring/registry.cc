#include "monitoring/registry.h"

#include <array>

#include "base/logging.h"

namespace lodestone {
namespace {

using Labels = std::span<const std::string_view>;
using Buckets = std::span<const double>;

// Seconds. A prompt of a million tokens takes minutes, so requests and their parts reach an hour.
constexpr double kRequestSeconds[] = {0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1,    2.5, 5,
                                      10,    20,   40,    80,   160, 320,  640, 1280, 3600};
constexpr double kTokenSeconds[] = {0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02,
                                    0.03,  0.04,  0.05,  0.075, 0.1,    0.15, 0.2,   0.3,
                                    0.5,   1,     2.5,   5,     10,     30};
constexpr double kPhaseSeconds[] = {0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02,
                                    0.05,   0.1,    0.2,    0.5,   1,     2,     5,    10,
                                    30,     60,     120,    300,   900,   3600};
constexpr double kTokenCounts[] = {1,    2,    5,     10,    20,    50,  100, 200, 500, 1000,
                                   2000, 5000, 10000, 20000, 50000, 1e5, 2e5, 5e5, 1e6};

constexpr std::string_view kCacheKinds[] = {"latents_indexed", "latents_dense",
                                            "index_keys",      "exact_index_keys",
                                            "ring_windows",    "compressor_states"};
constexpr std::string_view kMemoryPools[] = {
    "weights",      "latents_indexed",   "latents_dense", "index_keys", "exact_index_keys",
    "ring_windows", "compressor_states", "staging",       "transport",  "scratch",
    "graphs"};

constexpr std::string_view kCodeFinish[] = {"code", "finish_reason"};
constexpr std::string_view kPhase[] = {"phase"};
constexpr std::string_view kPolicyReason[] = {"policy", "reason"};
constexpr std::string_view kReason[] = {"reason"};
constexpr std::string_view kField[] = {"field"};
constexpr std::string_view kRoleWorker[] = {"role", "worker"};
constexpr std::string_view kPairTransport[] = {"prefill", "decode", "transport"};
constexpr std::string_view kResult[] = {"result"};
constexpr std::string_view kStage[] = {"stage"};
constexpr std::string_view kState[] = {"state"};
constexpr std::string_view kPhasePair[] = {"phase", "prefill", "decode"};
constexpr std::string_view kKindPair[] = {"kind", "prefill", "decode"};
constexpr std::string_view kKindResult[] = {"kind", "result"};
constexpr std::string_view kPoolFormat[] = {"pool", "format"};
constexpr std::string_view kRoleLabel[] = {"role"};
constexpr std::string_view kBuild[] = {"version", "role", "compiler", "build_type"};
constexpr std::string_view kConfig[] = {"model",       "numerics",    "kv_dtype",
                                        "index_dtype", "page_tokens", "layout_hash"};

constexpr MetricDef Counter(MetricId id, std::string_view name, uint8_t roles,
                            std::string_view help, Labels labels = {}) {
  return {id, name, MetricType::kCounter, roles, help, labels, {}};
}
constexpr MetricDef Gauge(MetricId id, std::string_view name, uint8_t roles, std::string_view help,
                          Labels labels = {}) {
  return {id, name, MetricType::kGauge, roles, help, labels, {}};
}
constexpr MetricDef Histogram(MetricId id, std::string_view name, uint8_t roles, Buckets buckets,
                              std::string_view help, Labels labels = {}) {
  return {id, name, MetricType::kHistogram, roles, help, labels, buckets};
}

constexpr std::array kTable = {
    // Requests.
    Counter(MetricId::kRequestsStarted, "lodestone_requests_started_total", kRoleRouter,
            "Requests to generate that arrived; once idle, as many as have ended."),
    Counter(MetricId::kRequests, "lodestone_requests_total", kRoleRouter,
            "Requests that ended, by HTTP status code and finish reason.", kCodeFinish),
    Histogram(MetricId::kRequestDuration, "lodestone_request_duration_seconds", kRoleRouter,
              kRequestSeconds, "Seconds from a request's arrival to its last byte."),
    Histogram(MetricId::kTimeToFirstToken, "lodestone_time_to_first_token_seconds", kRoleRouter,
              kRequestSeconds, "Seconds from a request's arrival to its first token written."),
    Histogram(MetricId::kInterToken, "lodestone_inter_token_seconds", kRoleRouter, kTokenSeconds,
              "Seconds between two tokens written of one stream."),
    Histogram(MetricId::kTimePerOutputToken, "lodestone_time_per_output_token_seconds", kRoleRouter,
              kTokenSeconds, "Seconds per token after the first, mean of one request."),
    Histogram(MetricId::kRequestPhase, "lodestone_request_phase_seconds", kRoleRouter,
              kPhaseSeconds, "Seconds a request spent in a phase: queue, prefill, handoff, decode.",
              kPhase),
    Gauge(MetricId::kOldestRequest, "lodestone_oldest_request_seconds", kRoleRouter,
          "Seconds that the request longest in a phase has been in it; 0 if there is none.",
          kPhase),
    Histogram(MetricId::kRequestPromptTokens, "lodestone_request_prompt_tokens", kRoleRouter,
              kTokenCounts, "Tokens in the prompt of a request."),
    Histogram(MetricId::kRequestGenerationTokens, "lodestone_request_generation_tokens",
              kRoleRouter, kTokenCounts, "Tokens generated for a request."),
    Counter(MetricId::kRequestReplays, "lodestone_request_replays_total", kRoleRouter,
            "Attempts of a request that were run again on other workers.", kReason),
    Counter(MetricId::kPromptTokens, "lodestone_prompt_tokens_total", kRoleRouter | kRolePrefill,
            "Prompt tokens: accepted by the router, computed by a prefill worker."),
    Counter(MetricId::kGenerationTokens, "lodestone_generation_tokens_total", kRoleAll,
            "Tokens generated: written to clients by the router, computed by a worker."),
    Gauge(MetricId::kRouterQueueDepth, "lodestone_router_queue_depth", kRoleRouter,
          "Requests that wait for a placement."),
    Gauge(MetricId::kRouterRunningRequests, "lodestone_router_running_requests", kRoleRouter,
          "Requests that are placed and have not ended."),
    Gauge(MetricId::kRouterOpenStreams, "lodestone_router_open_streams", kRoleRouter,
          "Client connections with an open answer."),
    Counter(MetricId::kRouterDecisions, "lodestone_router_decisions_total", kRoleRouter,
            "Placements, by policy and the reason for the choice.", kPolicyReason),
    Counter(MetricId::kAdmissionRejections, "lodestone_admission_rejections_total",
            kRoleRouter | kRoleDecode, "Requests or reservations refused, by reason.", kReason),
    Counter(MetricId::kApiUnknownFields, "lodestone_api_unknown_fields_total", kRoleRouter,
            "Request fields that the API ignored because it does not know them.", kField),
    Gauge(MetricId::kWorkerReady, "lodestone_worker_ready", kRoleRouter,
          "1 while a registered worker takes requests, else 0.", kRoleWorker),
    Counter(MetricId::kWorkerRequests, "lodestone_worker_requests_total", kRoleRouter,
            "Requests placed on a worker.", kRoleWorker),
    Counter(MetricId::kReadinessProbes, "lodestone_readiness_probes_total", kRoleRouter,
            "Generations run to decide readiness, by result.", kResult),
    // Workers.
    Gauge(MetricId::kWorkerState, "lodestone_worker_state_seconds", kRoleWorkers,
          "Seconds that the worker's loop has been in its state; 0 for the states it is not in.",
          kState),
    Gauge(MetricId::kPrefillQueueDepth, "lodestone_prefill_queue_depth", kRolePrefill,
          "Requests that wait for their first chunk."),
    Gauge(MetricId::kPrefillQueuedTokens, "lodestone_prefill_queued_tokens", kRolePrefill,
          "Prompt tokens accepted and not yet computed."),
    Gauge(MetricId::kPrefillRunningRequests, "lodestone_prefill_running_requests", kRolePrefill,
          "Requests whose prompt is being computed."),
    Gauge(MetricId::kPrefillInflightHandoffs, "lodestone_prefill_inflight_handoffs", kRolePrefill,
          "Requests computed whose cache is not yet adopted."),
    Gauge(MetricId::kDecodeRunningRequests, "lodestone_decode_running_requests", kRoleDecode,
          "Sequences in the running batch."),
    Gauge(MetricId::kDecodeWaitingRequests, "lodestone_decode_waiting_requests", kRoleDecode,
          "Reserved requests not yet running, by stage: prealloc, transfer, ready.", kStage),
    Histogram(MetricId::kStepSeconds, "lodestone_step_seconds", kRoleWorkers, kTokenSeconds,
              "Seconds of one engine step."),
    Histogram(MetricId::kStepTokens, "lodestone_step_tokens", kRoleWorkers, kTokenCounts,
              "Tokens in one engine step."),
    // The hand-off.
    Histogram(
        MetricId::kKvTransferSeconds, "lodestone_kv_transfer_seconds", kRoleWorkers, kPhaseSeconds,
        "Seconds of a hand-off phase: reserve, pack, wait, move, scatter, adopt.", kPhasePair),
    Counter(MetricId::kKvTransferBytes, "lodestone_kv_transfer_bytes_total", kRoleWorkers,
            "Cache bytes moved, by cache kind.", kKindPair),
    Counter(MetricId::kKvTransferFailures, "lodestone_kv_transfer_failures_total", kRoleWorkers,
            "Hand-offs that failed, by reason.", kReason),
    Counter(MetricId::kHandoffRows, "lodestone_handoff_rows_total", kRoleWorkers,
            "Cache rows counted against the expected number, by cache kind and result.",
            kKindResult),
    Counter(MetricId::kHandoffDigests, "lodestone_handoff_digests_total", kRoleWorkers,
            "Digests of cache rows compared, by cache kind and result.", kKindResult),
    Counter(MetricId::kHandoffs, "lodestone_handoffs_total", kRoleWorkers,
            "Hand-offs that ended, by result: adopted, aborted, failed.", kResult),
    Gauge(MetricId::kLinkUp, "lodestone_link_up", kRoleWorkers,
          "1 while a prefill and a decode worker are linked, else 0; over which transport.",
          kPairTransport),
    Gauge(MetricId::kLeases, "lodestone_leases", kRoleDecode, "Live leases of reserved memory."),
    // Memory.
    Gauge(MetricId::kMemoryPoolUsedBytes, "lodestone_memory_pool_used_bytes", kRoleWorkers,
          "Bytes in use of a memory pool.", kPoolFormat),
    Gauge(MetricId::kMemoryPoolCapacityBytes, "lodestone_memory_pool_capacity_bytes", kRoleWorkers,
          "Bytes that a memory pool may use.", kPoolFormat),
    Gauge(MetricId::kMemoryFreeBytes, "lodestone_memory_free_bytes", kRoleWorkers,
          "Bytes that can still be reserved."),
    Gauge(MetricId::kMemoryReservedBytes, "lodestone_memory_reserved_bytes", kRoleWorkers,
          "Bytes promised to requests and not yet in use."),
    Gauge(MetricId::kMemoryOrphanBytes, "lodestone_memory_orphan_bytes", kRoleWorkers,
          "Bytes in use that no live request owns; 0 unless something leaks."),
    // Facts.
    Gauge(MetricId::kBuildInfo, "lodestone_build_info", kRoleAll,
          "1, labelled with what this build is.", kBuild),
    Gauge(MetricId::kConfigInfo, "lodestone_config_info", kRoleWorkers,
          "1, labelled with what is served and how.", kConfig),
    Gauge(MetricId::kStartTime, "lodestone_start_timestamp_seconds", kRoleAll,
          "Unix time of the start of the process.", kRoleLabel),
};

constexpr bool IsInOrder() {
  for (size_t i = 0; i < kTable.size(); ++i) {
    if (static_cast<size_t>(kTable[i].id) != i) return false;
  }
  return true;
}
static_assert(IsInOrder(), "the table follows the order of MetricId");

}  // namespace

std::span<const MetricDef> MetricTable() { return kTable; }

const MetricDef& GetMetricDef(MetricId id) {
  const size_t index = static_cast<size_t>(id);
  CHECK_LT(index, kTable.size());
  return kTable[index];
}

std::span<const std::string_view> CacheKindLabels() { return kCacheKinds; }
std::span<const std::string_view> MemoryPoolLabels() { return kMemoryPools; }

}  // namespace lodestone
