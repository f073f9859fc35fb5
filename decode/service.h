#pragma once

#include "decode/worker.h"
#include "proto/lodestone/v1/worker.grpc.pb.h"

namespace lodestone {

// DecodeService over the worker's loop: translates, and carries each router's token stream.
class DecodeService final : public v1::DecodeService::CallbackService {
 public:
  explicit DecodeService(DecodeWorker* worker) : worker_(worker) {}  // not owned

  grpc::ServerUnaryReactor* Reserve(grpc::CallbackServerContext* context,
                                    const v1::ReserveRequest* request,
                                    v1::ReserveReply* reply) override;
  grpc::ServerUnaryReactor* Cancel(grpc::CallbackServerContext* context,
                                   const v1::CancelRequest* request,
                                   v1::CancelReply* reply) override;
  grpc::ServerBidiReactor<v1::StreamRequest, v1::StreamReply>* Stream(
      grpc::CallbackServerContext* context) override;

 private:
  DecodeWorker* const worker_;
};

}  // namespace lodestone
