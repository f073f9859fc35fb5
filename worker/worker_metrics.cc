#include "worker/worker_metrics.h"

#include <cinttypes>
#include <cstdio>
#include <string>
#include <vector>

#include "kvcache/ledger.h"
#include "runtime/cache_format.h"

namespace lodestone {
namespace {

// The gauges of one memory pool.
struct PoolGauges {
  MemoryPool pool;
  GaugeMetric used, capacity;
};

// How the rows of a pool are stored; "none" for a pool without rows.
std::string FormatOf(MemoryPool pool, const FormatChoice& formats) {
  switch (pool) {
    case MemoryPool::kLatentsIndexed:
    case MemoryPool::kLatentsDense:
    case MemoryPool::kRingWindows:
      return std::string(Name(formats.kv));
    case MemoryPool::kIndexKeys:
      return std::string(Name(formats.index_key));
    case MemoryPool::kCompressorStates:
      return "f32";
    default:
      return "none";
  }
}

void ExportMemory(Engine* engine, Metrics* metrics) {
  std::vector<PoolGauges> pools;
  for (int i = 0; i < kNumMemoryPools; ++i) {
    const MemoryPool pool = static_cast<MemoryPool>(i);
    const MetricLabels labels = {{"pool", std::string(Name(pool))},
                                 {"format", FormatOf(pool, engine->formats())}};
    pools.push_back({pool, metrics->Gauge(MetricId::kMemoryPoolUsedBytes, labels),
                     metrics->Gauge(MetricId::kMemoryPoolCapacityBytes, labels)});
  }
  metrics->OnScrape([ledger = &engine->cache().ledger(), pools = std::move(pools),
                     free = metrics->Gauge(MetricId::kMemoryFreeBytes),
                     reserved = metrics->Gauge(MetricId::kMemoryReservedBytes),
                     orphan = metrics->Gauge(MetricId::kMemoryOrphanBytes)] {
    const MemorySnapshot memory = ledger->Snapshot();
    for (const PoolGauges& pool : pools) {
      pool.used.Set(static_cast<double>(memory.used[pool.pool]));
      pool.capacity.Set(static_cast<double>(memory.capacity[pool.pool]));
    }
    free.Set(static_cast<double>(memory.free_bytes));
    reserved.Set(static_cast<double>(memory.reserved_bytes));
    orphan.Set(static_cast<double>(memory.orphan_bytes));
  });
}

void ExportState(const StatusBoard* board, Metrics* metrics) {
  for (const LoopState state : kAllLoopStates) {
    const GaugeMetric seconds =
        metrics->Gauge(MetricId::kWorkerState, {{"state", std::string(Name(state))}});
    metrics->OnScrape([board, state, seconds] {
      const auto [now, since] = board->StateAndAge();
      seconds.Set(now == state ? std::chrono::duration<double>(since).count() : 0);
    });
  }
}

void ExportPrefillQueues(const StatusBoard* board, Metrics* metrics) {
  metrics->OnScrape([board, depth = metrics->Gauge(MetricId::kPrefillQueueDepth),
                     tokens = metrics->Gauge(MetricId::kPrefillQueuedTokens),
                     running = metrics->Gauge(MetricId::kPrefillRunningRequests),
                     handoffs = metrics->Gauge(MetricId::kPrefillInflightHandoffs)] {
    const WorkerStatus status = board->Get();
    depth.Set(static_cast<double>(status.queued_requests));
    tokens.Set(static_cast<double>(status.queued_tokens));
    running.Set(static_cast<double>(status.running_requests));
    handoffs.Set(static_cast<double>(status.inflight_handoffs));
  });
}

void ExportDecodeQueues(const StatusBoard* board, Metrics* metrics) {
  const auto waiting = [metrics](const char* stage) {
    return metrics->Gauge(MetricId::kDecodeWaitingRequests, {{"stage", stage}});
  };
  waiting("ready");  // an adopted request runs in the next step: always 0
  metrics->OnScrape([board, running = metrics->Gauge(MetricId::kDecodeRunningRequests),
                     prealloc = waiting("prealloc"), transfer = waiting("transfer"),
                     leases = metrics->Gauge(MetricId::kLeases)] {
    const WorkerStatus status = board->Get();
    running.Set(static_cast<double>(status.running_requests));
    prealloc.Set(static_cast<double>(status.waiting_prealloc));
    transfer.Set(static_cast<double>(status.waiting_transfer));
    leases.Set(static_cast<double>(status.live_leases));
  });
}

void SetConfigInfo(const std::string& model_name, const Engine& engine, Metrics* metrics) {
  char layout_hash[17];
  std::snprintf(layout_hash, sizeof(layout_hash), "%016" PRIx64,
                LayoutFingerprint(engine.layout()));
  const FormatChoice& formats = engine.formats();
  metrics
      ->Gauge(MetricId::kConfigInfo, {{"model", model_name},
                                      {"numerics", std::string(Name(formats.numerics))},
                                      {"kv_dtype", std::string(Name(formats.kv))},
                                      {"index_dtype", std::string(Name(formats.index_key))},
                                      {"page_tokens", std::to_string(kPageTokens)},
                                      {"layout_hash", layout_hash}})
      .Set(1);
}

}  // namespace

void ExportWorkerMetrics(v1::WorkerRole role, const std::string& model_name, Engine* engine,
                         const StatusBoard* board, Metrics* metrics) {
  SetConfigInfo(model_name, *engine, metrics);
  ExportMemory(engine, metrics);
  ExportState(board, metrics);
  if (role == v1::WORKER_ROLE_PREFILL) {
    ExportPrefillQueues(board, metrics);
  } else {
    ExportDecodeQueues(board, metrics);
  }
}

}  // namespace lodestone
