#include "cli/generate_client.h"

#include <grpcpp/grpcpp.h>

#include <utility>

#include "proto/convert.h"
#include "proto/grpc_limits.h"

namespace lodestone {
namespace {

std::unique_ptr<v1::InferenceService::Stub> MakeStub(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  // A channel of its own for each client: a cluster that was started again at the same port must
  // not be met through the old one's connection.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return v1::InferenceService::NewStub(
      grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments));
}

v1::GenerateRequest ToRequest(const GenerateInput& input) {
  v1::GenerateRequest request;
  request.mutable_tokens()->mutable_ids()->Add(input.tokens.begin(), input.tokens.end());
  *request.mutable_sampling() = ToProto(input.sampling);
  return request;
}

// False once the reader wants no more.
bool Take(const v1::GenerateReply& reply, const GenerateClient::OnToken& on_token,
          ClusterAnswer* answer) {
  if (!reply.prefill_worker().empty()) answer->prefill_worker = reply.prefill_worker();
  if (!reply.decode_worker().empty()) answer->decode_worker = reply.decode_worker();
  for (const v1::Token& token : reply.tokens()) {
    answer->output.tokens.push_back(FromProto(token));
    if (on_token && !on_token(answer->output.tokens.back())) return false;
  }
  if (reply.finish_reason() != v1::FINISH_REASON_UNSPECIFIED) {
    answer->output.finish = FromProto(reply.finish_reason());
  }
  return true;
}

}  // namespace

GenerateClient::GenerateClient(const std::string& address) : stub_(MakeStub(address)) {}

absl::StatusOr<ClusterAnswer> GenerateClient::Generate(const GenerateInput& input,
                                                       std::chrono::milliseconds timeout,
                                                       const OnToken& on_token) const {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + timeout);
  const std::unique_ptr<grpc::ClientReader<v1::GenerateReply>> reader =
      stub_->Generate(&context, ToRequest(input));
  ClusterAnswer answer;
  bool wanted = true;
  for (v1::GenerateReply reply; wanted && reader->Read(&reply);) {
    wanted = Take(reply, on_token, &answer);
  }
  if (!wanted) context.TryCancel();
  const grpc::Status status = reader->Finish();
  if (!wanted) return absl::CancelledError("cancelled by the client");
  if (!status.ok()) {
    return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  }
  if (answer.output.finish == FinishReason::kNone) {
    return absl::DataLossError("the stream ended without a finish reason after " +
                               std::to_string(answer.output.tokens.size()) + " tokens");
  }
  return answer;
}

}  // namespace lodestone
