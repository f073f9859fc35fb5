#pragma once

#include <memory>

#include <grpcpp/impl/service_type.h>

#include "router/http_service.h"

namespace lodestone {

// The gRPC service InferenceService over the same flow as HTTP. `context` is not owned and must
// outlive the server that the service is added to.
std::unique_ptr<grpc::Service> MakeInferenceService(const ServiceContext* context);

}  // namespace lodestone
