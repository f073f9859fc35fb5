// Gated pooling of groups of tokens into cache entries, and the state of the group in progress
// (CompressKvParams).
//
// One thread block per token; those whose token completes a group pool it, channel by channel, from
// the batch's own rows and, for tokens before the batch, from the state. The state is then updated:
// by the same block where every sequence has one token (a decode step), else by a second kernel,
// since other blocks still read it. Bound by the bytes of kv and score, read once.

#include <cmath>

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/row_ops.cuh"
#include "kernels/cuda/device/row_store.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/op_launchers.h"

namespace lodestone::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kMaxDims = 2048;
constexpr int kOverlap = 4;  // rows of one group under ratio 4, where two groups are pooled

struct CompressArgs {
  const float* kv;
  const float* score;
  const float* ape;
  int64_t kv_stride, score_stride, ape_stride;
  const uint16_t* norm_weight;
  const float* freqs;
  const int32_t* positions;
  const int32_t* token_seq;
  const int32_t* seq_first;
  const int32_t* seq_tokens;
  const int32_t* seq_slot;
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

__device__ SeqSpan FindSpan(const CompressArgs& args, int seq) {
  const int first = args.seq_first[seq];
  const int position = args.positions[first];
  return {.seq = seq,
          .first_token = first,
          .first_position = position,
          .end_position = position + args.seq_tokens[seq],
          .slot = args.seq_slot[seq]};
}

// kv and score (with ape) of one token.
struct TokenRow {
  const float* kv;
  const float* score;
  const float* ape;  // null: contained in score
  __device__ float Kv(int channel) const { return kv[channel]; }
  __device__ float Score(int channel) const {
    return ape == nullptr ? score[channel] : score[channel] + ape[channel];
  }
};

__device__ TokenRow StateRow(const CompressArgs& args, int64_t slot, int row) {
  return {args.state_kv + slot * args.kv_slot_stride + row * args.kv_row_stride,
          args.state_score + slot * args.score_slot_stride + row * args.score_row_stride, nullptr};
}

// The token at `position`, which is in the batch or still in the state.
__device__ TokenRow FindToken(const CompressArgs& args, const SeqSpan& span, int position) {
  if (position >= span.first_position) {
    const int64_t token = span.first_token + position - span.first_position;
    return {args.kv + token * args.kv_stride, args.score + token * args.score_stride,
            args.ape + position % args.ratio * args.ape_stride};
  }
  const int in_group = position % args.ratio;
  const bool in_progress = position / args.ratio == span.first_position / args.ratio;
  return StateRow(args, span.slot, args.ratio == kOverlap && in_progress ? kOverlap + in_group
                                                                         : in_group);
}

// Calls visit(token row, channel) for all that one channel of entry `entry` is pooled from.
template <typename Visit>
__device__ void ForGroup(const CompressArgs& args, const SeqSpan& span, int entry, int channel,
                         const Visit& visit) {
  const int first = entry * args.ratio;
  if (args.ratio == kOverlap) {
    for (int i = -kOverlap; i < 0 && entry > 0; ++i) {
      visit(FindToken(args, span, first + i), channel);
    }
    channel += args.dims;  // half B of the group itself
  }
  for (int i = 0; i < args.ratio; ++i) visit(FindToken(args, span, first + i), channel);
}

// row[channel] = softmax-weighted sum over the group.
__device__ void PoolGroup(const CompressArgs& args, const SeqSpan& span, int entry, float* row) {
  for (int channel = static_cast<int>(threadIdx.x); channel < args.dims; channel += kThreads) {
    float largest = -INFINITY;
    ForGroup(args, span, entry, channel, [&](const TokenRow& token, int at) {
      largest = fmaxf(largest, token.Score(at));
    });
    float sum = 0;
    float total = 0;
    ForGroup(args, span, entry, channel, [&](const TokenRow& token, int at) {
      const float weight = expf(token.Score(at) - largest);
      total += weight;
      sum = fmaf(weight, token.Kv(at), sum);
    });
    row[channel] = sum / total;
  }
  __syncthreads();
}

// Norm, rotation and rounding of a pooled row, into the cache.
__device__ void StoreEntry(const CompressArgs& args, const SeqSpan& span, int entry, float* row) {
  RoundRow<kThreads>(row, args.dims);
  RmsNormRow<kThreads>(row, args.dims, args.norm_weight, args.eps);
  RotateTail<kThreads>(row, args.dims, args.num_pairs, entry * args.ratio, args.freqs);
  const int per_page = kPageTokens / args.ratio;
  const int64_t page = args.block_table[span.seq * args.max_pages + entry / per_page];
  uint8_t* const payload = args.entries.Payload(page, entry % per_page);
  uint8_t* const scale = args.entries.Scale(page, entry % per_page);
  const int rope_dims = 2 * args.num_pairs;
  if (args.row == CompressedRow::kLatent) {
    if (args.round_fp8) RoundFp8Groups<kThreads>(row, args.dims - rope_dims);
    StoreLatentRow<kThreads>(args.kv_format, row, args.dims, rope_dims, payload, scale);
    return;
  }
  HadamardRow<kThreads>(row, args.dims, args.hadamard_factor);
  RoundRow<kThreads>(row, args.dims);
  if (args.index_rounding == IndexRounding::kFp4) RoundFp4Groups<kThreads>(row, args.dims);
  StoreIndexKeyRow<kThreads>(args.index_format, row, args.dims, payload, scale);
}

// The last position below `end` whose place in its group is `place`; negative if there is none.
__device__ int LastAt(int end, int place, int ratio) {
  const int back = (end - 1 - place) % ratio;
  return end - 1 - (back < 0 ? back + ratio : back);
}

// One channel of the state after the batch: a thread reads and writes only its own channel.
__device__ void UpdateChannel(const CompressArgs& args, const SeqSpan& span, int channel) {
  float* const kv = args.state_kv + span.slot * args.kv_slot_stride + channel;
  float* const score = args.state_score + span.slot * args.score_slot_stride + channel;
  const auto store = [&](int row, const TokenRow& token) {
    kv[row * args.kv_row_stride] = token.Kv(channel);
    score[row * args.score_row_stride] = token.Score(channel);
  };
  const int completed = span.end_position / args.ratio;
  if (args.ratio == kOverlap && completed > span.first_position / args.ratio) {
    for (int i = 0; i < kOverlap; ++i) {  // before rows 4..7, which these may come from
      store(i, FindToken(args, span, (completed - 1) * kOverlap + i));
    }
  }
  const int first_row = args.ratio == kOverlap ? kOverlap : 0;
  for (int place = 0; place < args.ratio; ++place) {
    const int position = LastAt(span.end_position, place, args.ratio);
    if (position >= span.first_position) store(first_row + place, FindToken(args, span, position));
  }
}

__global__ void CompressKvKernel(const __grid_constant__ CompressArgs args) {
  extern __shared__ float row[];
  AllowNextKernel();
  WaitForPreviousKernel();
  const int token = static_cast<int>(blockIdx.x);
  const int position = args.positions[token];
  const bool completes = (position + 1) % args.ratio == 0;
  if (!completes && !args.updates_state) return;
  const SeqSpan span = FindSpan(args, args.token_seq[token]);
  if (completes) {
    PoolGroup(args, span, position / args.ratio, row);
    StoreEntry(args, span, position / args.ratio, row);
  }
  if (!args.updates_state) return;
  __syncthreads();
  for (int channel = static_cast<int>(threadIdx.x); channel < args.width; channel += kThreads) {
    UpdateChannel(args, span, channel);
  }
}

__global__ void UpdateStateKernel(const __grid_constant__ CompressArgs args) {
  AllowNextKernel();
  WaitForPreviousKernel();
  const int blocks_per_seq = (args.width + kThreads - 1) / kThreads;
  const SeqSpan span = FindSpan(args, static_cast<int>(blockIdx.x) / blocks_per_seq);
  const int channel =
      static_cast<int>(blockIdx.x) % blocks_per_seq * kThreads + static_cast<int>(threadIdx.x);
  if (channel < args.width) UpdateChannel(args, span, channel);
}

CompressArgs ArgsOf(const CompressKvParams& p) {
  const int64_t dims = p.norm_weight.shape[0];
  return {.kv = p.kv.as<float>(),
          .score = p.score.as<float>(),
          .ape = p.ape.as<float>(),
          .kv_stride = p.kv.strides[0],
          .score_stride = p.score.strides[0],
          .ape_stride = p.ape.strides[0],
          .norm_weight = p.norm_weight.as<uint16_t>(),
          .freqs = p.freqs.as<float>(),
          .positions = p.batch.positions.as<int32_t>(),
          .token_seq = p.batch.token_seq.as<int32_t>(),
          .seq_first = p.batch.seq_first.as<int32_t>(),
          .seq_tokens = p.batch.seq_tokens.as<int32_t>(),
          .seq_slot = p.batch.seq_slot.as<int32_t>(),
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

}  // namespace

void LaunchCompressKv(const CompressKvParams& p, cudaStream_t stream) {
  const CompressArgs args = ArgsOf(p);
  RequireArgument(args.dims <= kMaxDims, "LaunchCompressKv", "dims exceed 2048", args.dims);
  LaunchOverlapped(
      CompressKvKernel,
      {.blocks = p.batch.num_tokens(), .threads = kThreads, .shared_bytes = args.dims * 4}, stream,
      args);
  if (args.updates_state) return;
  const int64_t blocks_per_seq = (args.width + kThreads - 1) / kThreads;
  LaunchOverlapped(UpdateStateKernel,
                   {.blocks = p.batch.num_seqs() * blocks_per_seq, .threads = kThreads}, stream,
                   args);
}

}  // namespace lodestone::cuda
