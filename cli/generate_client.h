#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include <absl/status/statusor.h>

#include "engine/generate.h"
#include "proto/lodestone/v1/inference.grpc.pb.h"

namespace lodestone {

// What a cluster answered, beside the tokens: which workers did it.
struct ClusterAnswer {
  GenerateOutput output;
  std::string prefill_worker;  // instance ids
  std::string decode_worker;
};

// Token ids in, token ids out through the public gRPC API of a router: log-probabilities arrive as
// the floats that the engine computed. Thread-safe (const).
class GenerateClient {
 public:
  explicit GenerateClient(const std::string& address);

  // Called for each token; false cancels the call.
  using OnToken = std::function<bool(const GeneratedToken&)>;
  // CANCELLED: on_token said so. Other errors are the router's. A stop token that ends the answer
  // is not delivered.
  absl::StatusOr<ClusterAnswer> Generate(const GenerateInput& input,
                                         std::chrono::milliseconds timeout,
                                         const OnToken& on_token = {}) const;

 private:
  const std::unique_ptr<v1::InferenceService::Stub> stub_;
};

}  // namespace lodestone
