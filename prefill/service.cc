#include "prefill/service.h"

#include <atomic>
#include <utility>

#include "proto/convert.h"
#include "proto/grpc_status.h"

namespace lodestone {
namespace {

absl::StatusOr<PrefillRequest> ParseRun(const v1::RunRequest& proto) {
  const std::optional<InstanceId> decode = InstanceId::FromString(proto.decode_instance_id());
  if (!decode) {
    return absl::InvalidArgumentError("decode_instance_id \"" + proto.decode_instance_id() +
                                      "\" is not 32 hex digits");
  }
  if (proto.lease_id() == 0) return absl::InvalidArgumentError("lease_id is 0");
  std::vector<PrefillFork> forks;
  for (const v1::Fork& fork : proto.forks()) {
    if (fork.lease_id() == 0) return absl::InvalidArgumentError("lease_id of a fork is 0");
    forks.push_back({LeaseId(fork.lease_id()), fork.seed()});
  }
  return PrefillRequest{.request_id = proto.request_id(),
                        .attempt = proto.attempt(),
                        .lease = LeaseId(proto.lease_id()),
                        .decode = *decode,
                        .decode_address = proto.decode_address(),
                        .tokens = {proto.tokens().begin(), proto.tokens().end()},
                        .num_generated = proto.num_generated(),
                        .sampling = FromProto(proto.sampling()),
                        .forks = std::move(forks),
                        .prompt_logprobs = proto.prompt_logprobs()};
}

void FillReply(const PrefillReply& reply, v1::RunReply* proto) {
  *proto->mutable_first_token() = ToProto(reply.first_token);
  proto->set_finish_reason(ToProto(reply.finish));
  proto->set_queue_seconds(reply.queue_seconds);
  proto->set_prefill_seconds(reply.prefill_seconds);
  proto->set_handoff_bytes(reply.handoff_bytes);
  for (const ForkResult& fork : reply.forks) {
    v1::ForkStart* start = proto->add_forks();
    *start->mutable_first_token() = ToProto(fork.token);
    start->set_finish_reason(ToProto(fork.finish));
  }
  if (!reply.prompt_logprobs.logprobs.empty()) {
    *proto->mutable_prompt_logprobs() = ToProto(reply.prompt_logprobs);
  }
}

// Lives from the call's start to OnDone. The loop answers exactly once; until then the call, and so
// this object, exists.
class RunReactor final : public grpc::ServerUnaryReactor {
 public:
  RunReactor(PrefillWorker* worker, v1::RunReply* reply) : worker_(worker), reply_(reply) {}

  void Start(PrefillRequest request) {
    const PrefillTicket ticket =
        worker_->Run(std::move(request), [this](absl::StatusOr<PrefillReply> result) {
          if (result.ok()) FillReply(*result, reply_);
          Finish(result.ok() ? grpc::Status::OK : ToGrpc(result.status()));
        });
    ticket_ = ticket;
    if (cancelled_) worker_->Cancel(ticket);
  }

  // May come before Start has stored the ticket: then Start cancels.
  void OnCancel() override {
    cancelled_ = true;
    if (const PrefillTicket ticket = ticket_; ticket != 0) worker_->Cancel(ticket);
  }
  void OnDone() override { delete this; }

 private:
  PrefillWorker* const worker_;
  v1::RunReply* const reply_;
  std::atomic<PrefillTicket> ticket_{0};
  std::atomic<bool> cancelled_{false};
};

}  // namespace

grpc::ServerUnaryReactor* PrefillService::Run(grpc::CallbackServerContext* context,
                                              const v1::RunRequest* request, v1::RunReply* reply) {
  absl::StatusOr<PrefillRequest> parsed = ParseRun(*request);
  if (!parsed.ok()) {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(ToGrpc(parsed.status()));
    return reactor;
  }
  auto* reactor = new RunReactor(worker_, reply);
  reactor->Start(*std::move(parsed));
  return reactor;
}

}  // namespace lodestone
