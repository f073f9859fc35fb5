#include "worker/grpc_server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>

#include <chrono>

#include "proto/grpc_limits.h"

namespace lodestone {
namespace {

constexpr int kPingMs = 1000;
constexpr int kPingTimeoutMs = 2000;
constexpr int kFirstReconnectMs = 200;
constexpr int kLastReconnectMs = 500;
constexpr int kConnectMs = 1000;  // what was begun while the network was broken is given up
constexpr int kShortestPingMs = 500;  // that a server takes from a client

}  // namespace

grpc::ChannelArguments PeerChannelArguments() {
  grpc::ChannelArguments args;
  args.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kPingMs);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kPingTimeoutMs);
  args.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  args.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kFirstReconnectMs);
  args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kConnectMs);
  args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kLastReconnectMs);
  args.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);  // replays are the router's decision
  args.SetMaxReceiveMessageSize(kMaxMessageBytes);
  return args;
}

void GrpcServer::SetServing(bool serving) {
  if (server == nullptr) return;
  if (auto* health = server->GetHealthCheckService()) health->SetServingStatus(serving);
}

void GrpcServer::Shutdown(std::chrono::milliseconds grace) {
  if (server != nullptr) server->Shutdown(std::chrono::system_clock::now() + grace);
}

absl::StatusOr<GrpcServer> StartGrpcServer(const std::string& host, int64_t port,
                                           const std::vector<grpc::Service*>& services) {
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  const std::string address = host + ":" + std::to_string(port);
  grpc::ServerBuilder builder;
  GrpcServer result;
  // Two workers must never share a port by accident.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kPingMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kPingTimeoutMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             kShortestPingMs);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kStreamWindowBytes);
  builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
  builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &result.port);
  for (grpc::Service* service : services) builder.RegisterService(service);
  result.server = builder.BuildAndStart();
  if (result.server == nullptr || result.port == 0) {
    return absl::UnavailableError("cannot listen on " + address +
                                  " (gRPC): taken, or no address of this machine?");
  }
  return result;
}

}  // namespace lodestone
