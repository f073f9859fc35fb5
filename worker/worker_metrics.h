#pragma once

#include "engine/engine.h"
#include "monitoring/metrics.h"
#include "proto/lodestone/v1/worker.pb.h"
#include "worker/status_board.h"

namespace lodestone {

// Lets `metrics` show, at every scrape, the memory of the engine's ledger and the queues of the
// status board, and sets lodestone_config_info. Nothing is owned; engine and board must outlive
// `metrics`.
void ExportWorkerMetrics(v1::WorkerRole role, const std::string& model_name, Engine* engine,
                         const StatusBoard* board, Metrics* metrics);

}  // namespace lodestone
