#pragma once

#include "prefill/worker.h"
#include "proto/lodestone/v1/worker.grpc.pb.h"

namespace lodestone {

// PrefillService over the worker's loop: translates, and turns an ended call into a cancel.
class PrefillService final : public v1::PrefillService::CallbackService {
 public:
  explicit PrefillService(PrefillWorker* worker) : worker_(worker) {}  // not owned

  grpc::ServerUnaryReactor* Run(grpc::CallbackServerContext* context, const v1::RunRequest* request,
                                v1::RunReply* reply) override;

 private:
  PrefillWorker* const worker_;
};

}  // namespace lodestone
