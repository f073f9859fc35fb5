// The one table of all metrics. The reference page, dashboards and tests derive from it; a metric
// that is not here cannot be exported.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace lodestone {

enum class MetricType { kCounter, kGauge, kHistogram };

// The binaries that export a metric; combined as bits.
enum MetricRole : uint8_t {
  kRoleRouter = 1,
  kRolePrefill = 2,
  kRoleDecode = 4,
  kRoleWorkers = kRolePrefill | kRoleDecode,
  kRoleAll = kRoleRouter | kRoleWorkers,
};

enum class MetricId {
  // Requests, seen by the router.
  kRequestsStarted,
  kRequests,
  kRequestDuration,
  kTimeToFirstToken,
  kInterToken,
  kTimePerOutputToken,
  kRequestPhase,
  kOldestRequest,
  kRequestPromptTokens,
  kRequestGenerationTokens,
  kRequestReplays,
  kPromptTokens,
  kGenerationTokens,
  kRouterQueueDepth,
  kRouterRunningRequests,
  kRouterOpenStreams,
  kRouterDecisions,
  kAdmissionRejections,
  kApiUnknownFields,
  kWorkerReady,
  kWorkerRequests,
  kReadinessProbes,
  // Prefill and decode.
  kWorkerState,
  kPrefillQueueDepth,
  kPrefillQueuedTokens,
  kPrefillRunningRequests,
  kPrefillInflightHandoffs,
  kDecodeRunningRequests,
  kDecodeWaitingRequests,
  kStepSeconds,
  kStepTokens,
  // The hand-off.
  kKvTransferSeconds,
  kKvTransferBytes,
  kKvTransferFailures,
  kHandoffRows,
  kHandoffDigests,
  kHandoffs,
  kLinkUp,
  kLeases,
  // Memory of a worker.
  kMemoryPoolUsedBytes,
  kMemoryPoolCapacityBytes,
  kMemoryFreeBytes,
  kMemoryReservedBytes,
  kMemoryOrphanBytes,
  // Facts.
  kBuildInfo,
  kConfigInfo,
  kStartTime,
};

struct MetricDef {
  MetricId id;
  std::string_view name;  // lodestone_..., base units; counters end in _total
  MetricType type;
  uint8_t roles;          // bits of MetricRole
  std::string_view help;  // one sentence, with the unit
  std::span<const std::string_view> labels;
  std::span<const double> buckets;  // upper edges, ascending; histograms only
};

// All metrics, in the order of MetricId.
std::span<const MetricDef> MetricTable();
const MetricDef& GetMetricDef(MetricId id);

// The values of the label `kind` (cache kinds of a hand-off) and of `pool` (memory of a worker).
std::span<const std::string_view> CacheKindLabels();
std::span<const std::string_view> MemoryPoolLabels();

}  // namespace lodestone
