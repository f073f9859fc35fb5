#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/sampling_params.h"
#include "proto/lodestone/v1/inference.pb.h"
#include "proto/lodestone/v1/worker.pb.h"

namespace lodestone {

// Between the messages that every service shares and the plain structs that the code works on.
// Absent fields take the struct's "off" value (top_p 0 is 1, repetition_penalty 0 is 1).

SamplingParams FromProto(const v1::SamplingParams& proto);
v1::SamplingParams ToProto(const SamplingParams& params);

GeneratedToken FromProto(const v1::Token& proto);
v1::Token ToProto(const GeneratedToken& token);

// INVALID_ARGUMENT if the numbers of entries do not fit together.
absl::StatusOr<PromptLogprobs> FromProto(const v1::PromptLogprobs& proto);
v1::PromptLogprobs ToProto(const PromptLogprobs& logprobs);

FinishReason FromProto(v1::FinishReason proto);
v1::FinishReason ToProto(FinishReason reason);

absl::Status FromProto(const v1::Status& proto);
v1::Status ToProto(const absl::Status& status);

}  // namespace lodestone
