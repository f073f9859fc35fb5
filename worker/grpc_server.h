#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace lodestone {

// Arguments of every channel between our processes: a dead peer is noticed within 3 s.
grpc::ChannelArguments PeerChannelArguments();

// The gRPC server of one process: our services, health and reflection.
struct GrpcServer {
  std::unique_ptr<grpc::Server> server;
  int port = 0;  // the bound one

  // What the health service answers; serving at first.
  void SetServing(bool serving);
  // Ends open calls after `grace`.
  void Shutdown(std::chrono::milliseconds grace);
};

// `port` 0 takes any free one. UNAVAILABLE, with the address, if it cannot be bound. The services
// are not owned and must outlive the server.
absl::StatusOr<GrpcServer> StartGrpcServer(const std::string& host, int64_t port,
                                           const std::vector<grpc::Service*>& services);

}  // namespace lodestone
