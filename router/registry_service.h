#pragma once

#include <memory>

#include <grpcpp/impl/service_type.h>

#include "router/worker_registry.h"

namespace lodestone {

// The gRPC service WorkerRegistry.Register over `registry`; both must outlive the server that it is
// added to. `loop` runs the registry.
std::unique_ptr<grpc::Service> MakeRegistryService(asio::io_context& loop,
                                                   WorkerRegistry* registry);

}  // namespace lodestone
