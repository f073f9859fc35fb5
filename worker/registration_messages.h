#pragma once

#include <string>

#include "base/ids.h"
#include "engine/engine.h"
#include "proto/lodestone/v1/worker.pb.h"
#include "worker/status_board.h"

namespace lodestone {

// The largest reservation that fits now: all free pages, and a slot if one is free.
int64_t ReservableBytes(const MemorySnapshot& memory, const MemoryPlan& plan);

// What never changes while the process lives. `address` is host:port as others reach it.
v1::WorkerHello MakeHello(v1::WorkerRole role, const InstanceId& instance,
                          const std::string& address, const std::string& model_name,
                          const Engine& engine);

// Of a worker whose model is not loaded yet.
v1::WorkerLoad MakeLoadingLoad(const WorkerStatus& status);

// The newest status, with the memory of this moment. `plan` says what a free page is worth.
v1::WorkerLoad MakeLoad(const WorkerStatus& status, const MemorySnapshot& memory,
                        const MemoryPlan& plan);

}  // namespace lodestone
