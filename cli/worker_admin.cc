#include "cli/worker_admin.h"

#include <grpcpp/grpcpp.h>

#include <memory>

#include "worker/grpc_server.h"

namespace lodestone {
namespace {

// One call on a channel of its own: a worker that has just ended must not be remembered.
template <typename Reply, typename Call>
absl::StatusOr<Reply> Ask(const std::string& address, std::chrono::milliseconds timeout,
                          Call call) {
  grpc::ChannelArguments args = PeerChannelArguments();
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  const auto stub = v1::AdminService::NewStub(
      grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), args));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + timeout);
  Reply reply;
  const grpc::Status status = call(*stub, &context, &reply);
  if (!status.ok()) {
    return absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                        "worker at " + address + ": " + status.error_message());
  }
  return reply;
}

}  // namespace

absl::StatusOr<v1::GetStatusReply> GetWorkerStatus(const std::string& address,
                                                   std::chrono::milliseconds timeout) {
  return Ask<v1::GetStatusReply>(address, timeout,
                                 [](auto& stub, auto* context, auto* reply) {
                                   return stub.GetStatus(context, v1::GetStatusRequest(), reply);
                                 });
}

absl::StatusOr<v1::DrainReply> DrainWorker(const std::string& address,
                                           std::chrono::milliseconds drain_timeout,
                                           std::chrono::milliseconds timeout) {
  v1::DrainRequest request;
  request.set_timeout_ms(drain_timeout.count());
  return Ask<v1::DrainReply>(address, timeout, [&](auto& stub, auto* context, auto* reply) {
    return stub.Drain(context, request, reply);
  });
}

}  // namespace lodestone
