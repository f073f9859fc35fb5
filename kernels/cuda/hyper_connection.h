#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

// What the kernels of HcPre and HcBoundary get, and the launcher for many tokens.
namespace lodestone::cuda {

struct HcArgs {
  // bf16 [T, hidden]  of the sub-layer before; null: the streams stay as they are
  const uint16_t* y = nullptr;
  const float* old_post = nullptr;  // [T, 4]
  const float* old_comb = nullptr;  // [T, 4, 4]
  int64_t y_stride = 0;             // elements, as all strides here
  int64_t old_post_stride = 0;
  int64_t old_comb_stride = 0;
  uint16_t* streams;  // bf16 [T, 4, hidden]
  int64_t token_stride, stream_stride;
  const float* fn;              // [24, 4 * hidden]
  const float* base;            // [24]
  const float* scale;           // [3]
  const uint16_t* norm_weight;  // bf16 [hidden]
  float* partial;               // [T, HcTile::kSlices, HcTile::kPaddedSums]; many tokens
  uint16_t* x;                  // bf16 [T, hidden]  out
  float* post;                  // [T, 4]  out
  float* comb;                  // [T, 4, 4]  out
  int64_t x_stride, post_stride, comb_stride;
  int num_tokens, hidden, channels;  // channels: HcSliceChannels
  int sinkhorn_iters;
  float rms_eps, hc_eps;
  float hidden_inverse;  // 1 / hidden
};

// Two launches for any number of tokens; the same bits as one launch for few.
void LaunchHcMany(const HcArgs& args, cudaStream_t stream);

}  // namespace lodestone::cuda
