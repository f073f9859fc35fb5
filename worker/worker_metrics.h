#pragma once

#include "engine/engine.h"
#include "monitoring/metrics.h"
#include "worker/status_board.h"
#include "worker/worker_config.h"

namespace lodestone {

// Lets `metrics` show, at every scrape, the memory of the engine's ledger and the queues of the
// status board, and sets lodestone_config_info. Nothing is owned; engine and board must outlive
// `metrics`.
void ExportWorkerMetrics(WorkerRole role, const std::string& model_name, Engine* engine,
                         const StatusBoard* board, Metrics* metrics);

}  // namespace lodestone
