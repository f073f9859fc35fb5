#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/device/row_ops.cuh"
#include "kernels/cuda/device/row_store.cuh"
#include "kernels/op_params.h"

// CompressKv's work on one token, by a block of kCompressThreads threads: what the kernels that do
// it share.
namespace lodestone::cuda {

constexpr int kCompressThreads = 128;
constexpr int kMaxCompressDims = 2048;
constexpr int kOverlap = 4;  // rows of one group under ratio 4, where two groups are pooled

struct CompressArgs {
  const float* kv;
  const float* score;
  const float* ape;
  int64_t kv_stride, score_stride, ape_stride;
  const uint16_t* norm_weight;
  const float* freqs;
  BatchPointers batch;
  const int32_t* block_table;
  int64_t max_pages;
  float* state_kv;
  float* state_score;
  int64_t kv_slot_stride, kv_row_stride, score_slot_stride, score_row_stride;
  WritableRows entries;
  int dims, width, num_pairs, ratio;
  float eps, hadamard_factor;
  CompressedRow row;
  bool round_fp8, updates_state;
  KvFormat kv_format;
  IndexRounding index_rounding;
  IndexKeyFormat index_format;
};

// The tokens of one sequence in this batch.
struct SeqSpan {
  int seq, first_token, first_position, end_position;
  int64_t slot;
};

__device__ inline SeqSpan FindSpan(const CompressArgs& args, int seq) {
  const int first = args.batch.seq_first[seq];
  const int position = args.batch.positions[first];
  return {.seq = seq,
          .first_token = first,
          .first_position = position,
          .end_position = position + args.batch.seq_tokens[seq],
          .slot = args.batch.seq_slot[seq]};
}

// One channel of the rows of group `group`, whose first tokens may be in the state and whose others
// are in the batch: calls visit(kv, score with ape) in token order.
template <typename Visit>
__device__ void ForRows(const CompressArgs& args, const SeqSpan& span, int group, int channel,
                        const Visit& visit) {
  const int first = group * args.ratio;
  const int from_state = max(0, min(args.ratio, span.first_position - first));
  const bool in_progress = args.ratio == kOverlap && group == span.first_position / kOverlap;
  const int64_t row = in_progress ? kOverlap : 0;
  const float* const state_kv =
      args.state_kv + span.slot * args.kv_slot_stride + row * args.kv_row_stride + channel;
  const float* const state_score =
      args.state_score + span.slot * args.score_slot_stride + row * args.score_row_stride + channel;
#pragma unroll 8
  for (int i = 0; i < from_state; ++i) {
    visit(state_kv[i * args.kv_row_stride], state_score[i * args.score_row_stride]);
  }
  const int64_t token = span.first_token + first - span.first_position;
#pragma unroll 4
  for (int i = from_state; i < args.ratio; ++i) {
    visit(args.kv[(token + i) * args.kv_stride + channel],
          args.score[(token + i) * args.score_stride + channel] +
              args.ape[i * args.ape_stride + channel]);
  }
}

// The same for all that channel `channel` of entry `entry` is pooled from.
template <typename Visit>
__device__ void ForGroup(const CompressArgs& args, const SeqSpan& span, int entry, int channel,
                         const Visit& visit) {
  if (args.ratio == kOverlap) {
    if (entry > 0) ForRows(args, span, entry - 1, channel, visit);
    channel += args.dims;  // half B of the group itself
  }
  ForRows(args, span, entry, channel, visit);
}

// row[channel] = softmax-weighted sum over the group.
__device__ inline void PoolGroup(const CompressArgs& args, const SeqSpan& span, int entry,
                                 float* row) {
  for (int channel = static_cast<int>(threadIdx.x); channel < args.dims;
       channel += kCompressThreads) {
    float largest = -INFINITY;
    ForGroup(args, span, entry, channel,
             [&](float, float score) { largest = fmaxf(largest, score); });
    float sum = 0;
    float total = 0;
    ForGroup(args, span, entry, channel, [&](float kv, float score) {
      const float weight = expf(score - largest);
      total += weight;
      sum = fmaf(weight, kv, sum);
    });
    row[channel] = sum / total;
  }
  __syncthreads();
}

// Norm, rotation and rounding of a pooled row, into the cache.
__device__ inline void StoreEntry(const CompressArgs& args, const SeqSpan& span, int entry,
                                  float* row) {
  RoundRow<kCompressThreads>(row, args.dims);
  RmsNormRow<kCompressThreads>(row, args.dims, args.norm_weight, args.eps);
  RotateTail<kCompressThreads>(row, args.dims, args.num_pairs, entry * args.ratio, args.freqs);
  const int per_page = kPageTokens / args.ratio;
  const int64_t page = args.block_table[span.seq * args.max_pages + entry / per_page];
  uint8_t* const payload = args.entries.Payload(page, entry % per_page);
  uint8_t* const scale = args.entries.Scale(page, entry % per_page);
  const int rope_dims = 2 * args.num_pairs;
  if (args.row == CompressedRow::kLatent) {
    if (args.round_fp8) RoundFp8Groups<kCompressThreads>(row, args.dims - rope_dims);
    StoreLatentRow<kCompressThreads>(args.kv_format, row, args.dims, rope_dims, payload, scale);
    return;
  }
  HadamardRow<kCompressThreads>(row, args.dims, args.hadamard_factor);
  RoundRow<kCompressThreads>(row, args.dims);
  if (args.index_rounding == IndexRounding::kFp4) RoundFp4Groups<kCompressThreads>(row, args.dims);
  StoreIndexKeyRow<kCompressThreads>(args.index_format, row, args.dims, payload, scale);
}

// One channel of the state after the batch: a thread reads and writes only its own channel.
__device__ inline void UpdateChannel(const CompressArgs& args, const SeqSpan& span, int channel) {
  float* const kv = args.state_kv + span.slot * args.kv_slot_stride + channel;
  float* const score = args.state_score + span.slot * args.score_slot_stride + channel;
  const int completed = span.end_position / args.ratio;
  if (args.ratio == kOverlap && completed > span.first_position / kOverlap) {
    int row = 0;  // rows 0..3 before rows 4..7, which these may come from
    ForRows(args, span, completed - 1, channel, [&](float row_kv, float row_score) {
      kv[row * args.kv_row_stride] = row_kv;
      score[row * args.score_row_stride] = row_score;
      ++row;
    });
  }
  const int first_row = args.ratio == kOverlap ? kOverlap : 0;
  for (int position = max(span.first_position, span.end_position - args.ratio);
       position < span.end_position; ++position) {
    const int in_group = position % args.ratio;
    const int64_t token = span.first_token + position - span.first_position;
    const int64_t row = first_row + in_group;
    kv[row * args.kv_row_stride] = args.kv[token * args.kv_stride + channel];
    score[row * args.score_row_stride] = args.score[token * args.score_stride + channel] +
                                         args.ape[in_group * args.ape_stride + channel];
  }
}

inline CompressArgs ArgsOf(const CompressKvParams& p) {
  const int64_t dims = p.norm_weight.shape[0];
  RequireArgument(dims <= kMaxCompressDims && dims % 4 == 0, "LaunchCompressKv",
                  "dims are not a multiple of 4 up to 2048", dims);
  return {.kv = p.kv.as<float>(),
          .score = p.score.as<float>(),
          .ape = p.ape.as<float>(),
          .kv_stride = p.kv.strides[0],
          .score_stride = p.score.strides[0],
          .ape_stride = p.ape.strides[0],
          .norm_weight = p.norm_weight.as<uint16_t>(),
          .freqs = p.freqs.as<float>(),
          .batch = PointersOf(p.batch),
          .block_table = p.batch.block_table.as<int32_t>(),
          .max_pages = p.batch.block_table.strides[0],
          .state_kv = p.state_kv.as<float>(),
          .state_score = p.state_score.as<float>(),
          .kv_slot_stride = p.state_kv.strides[0],
          .kv_row_stride = p.state_kv.strides[1],
          .score_slot_stride = p.state_score.strides[0],
          .score_row_stride = p.state_score.strides[1],
          .entries = WritableRowsOf(p.entries),
          .dims = static_cast<int>(dims),
          .width = static_cast<int>(p.kv.shape[1]),
          .num_pairs = static_cast<int>(p.freqs.shape[0]),
          .ratio = static_cast<int>(p.ratio),
          .eps = p.eps,
          .hadamard_factor = static_cast<float>(1.0 / std::sqrt(static_cast<double>(dims))),
          .row = p.row,
          .round_fp8 = p.round_fp8,
          .updates_state = p.batch.num_tokens() == p.batch.num_seqs(),
          .kv_format = p.kv_format,
          .index_rounding = p.index_rounding,
          .index_format = p.index_format};
}

__device__ inline float4 Load4(const float* from) { return *reinterpret_cast<const float4*>(from); }
__device__ inline void Store4(float* to, const float4& value) {
  *reinterpret_cast<float4*>(to) = value;
}
__device__ inline float4 Add4(const float4& a, const float4& b) {
  return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
}

// The pooled value of one channel, from the kv and scores of the rows that count, in token order.
__device__ inline float PoolRows(const float (&kv)[2 * kOverlap],
                                 const float (&score)[2 * kOverlap], bool first_group) {
  const int first = first_group ? kOverlap : 0;
  float largest = -INFINITY;
#pragma unroll
  for (int i = 0; i < 2 * kOverlap; ++i) {
    if (i >= first) largest = fmaxf(largest, score[i]);
  }
  float sum = 0;
  float total = 0;
#pragma unroll
  for (int i = 0; i < 2 * kOverlap; ++i) {
    if (i < first) continue;
    const float weight = expf(score[i] - largest);
    total += weight;
    sum = fmaf(weight, kv[i], sum);
  }
  return sum / total;
}

// Four channels of a group of four that the one token of its sequence completes, into `row`, and
// their state after it: PoolGroup and UpdateChannel with all loads at once, for they take the time.
__device__ inline void CompleteFour(const CompressArgs& args, const SeqSpan& span, int channel,
                                    float* row) {
  float* const state_kv = args.state_kv + span.slot * args.kv_slot_stride;
  float* const state_score = args.state_score + span.slot * args.score_slot_stride;
  const float* const kv = args.kv + span.first_token * args.kv_stride;
  const float* const score = args.score + span.first_token * args.score_stride;
  const float* const ape = args.ape + (kOverlap - 1) * args.ape_stride;
  float4 old_kv[kOverlap], old_score[kOverlap];        // of the group before, half A
  float4 new_kv[2][kOverlap], new_score[2][kOverlap];  // of this group, both halves
#pragma unroll
  for (int i = 0; i < kOverlap; ++i) {
    old_kv[i] = Load4(state_kv + i * args.kv_row_stride + channel);
    old_score[i] = Load4(state_score + i * args.score_row_stride + channel);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int at = half * args.dims + channel;
#pragma unroll
    for (int i = 0; i < kOverlap - 1; ++i) {
      new_kv[half][i] = Load4(state_kv + (kOverlap + i) * args.kv_row_stride + at);
      new_score[half][i] = Load4(state_score + (kOverlap + i) * args.score_row_stride + at);
    }
    new_kv[half][kOverlap - 1] = Load4(kv + at);
    new_score[half][kOverlap - 1] = Add4(Load4(score + at), Load4(ape + at));
  }
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    float pooled_kv[2 * kOverlap], pooled_score[2 * kOverlap];
#pragma unroll
    for (int i = 0; i < kOverlap; ++i) {
      pooled_kv[i] = reinterpret_cast<const float*>(&old_kv[i])[j];
      pooled_score[i] = reinterpret_cast<const float*>(&old_score[i])[j];
      pooled_kv[kOverlap + i] = reinterpret_cast<const float*>(&new_kv[1][i])[j];
      pooled_score[kOverlap + i] = reinterpret_cast<const float*>(&new_score[1][i])[j];
    }
    row[channel + j] = PoolRows(pooled_kv, pooled_score, span.first_position < kOverlap);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int at = half * args.dims + channel;
#pragma unroll
    for (int i = 0; i < kOverlap; ++i) {
      Store4(state_kv + i * args.kv_row_stride + at, new_kv[half][i]);
      Store4(state_score + i * args.score_row_stride + at, new_score[half][i]);
    }
    constexpr int kLast = kOverlap - 1;
    Store4(state_kv + (kOverlap + kLast) * args.kv_row_stride + at, new_kv[half][kLast]);
    Store4(state_score + (kOverlap + kLast) * args.score_row_stride + at, new_score[half][kLast]);
  }
}

// Pools the group that the token completes, if it does, and then, if args.updates_state, moves the
// state. `row`: shared memory of args.dims floats.
__device__ inline void CompressToken(const CompressArgs& args, int token, float* row) {
  const int position = args.batch.positions[token];
  const bool completes = (position + 1) % args.ratio == 0;
  if (!completes && !args.updates_state) return;
  const SeqSpan span = FindSpan(args, args.batch.token_seq[token]);
  if (span.first_position == span.end_position) return;  // fills the batch up
  if (completes && args.updates_state && args.ratio == kOverlap) {
    for (int channel = 4 * static_cast<int>(threadIdx.x); channel < args.dims;
         channel += 4 * kCompressThreads) {
      CompleteFour(args, span, channel, row);
    }
    __syncthreads();
    return StoreEntry(args, span, position / args.ratio, row);
  }
  if (completes) {
    PoolGroup(args, span, position / args.ratio, row);
    StoreEntry(args, span, position / args.ratio, row);
  }
  if (!args.updates_state) return;
  __syncthreads();
#pragma unroll 4
  for (int channel = static_cast<int>(threadIdx.x); channel < args.width;
       channel += kCompressThreads) {
    UpdateChannel(args, span, channel);
  }
}

}  // namespace lodestone::cuda
