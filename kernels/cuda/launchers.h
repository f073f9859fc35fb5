#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/tiles.h"
#include "runtime/cache_format.h"

// Host launchers of the CUDA kernels. Each takes a struct of device pointers, queues on `stream`,
// and neither allocates nor synchronises, so a step can be captured as a graph. Formulas, ties and
// padding are those of the op's params struct in kernels/op_params.h. A failed launch ends the
// process.
//
// Letters in comments are those of kernels/op_params.h. Activations are bf16; pointers are aligned
// to 16 bytes and rows are dense unless a stride says otherwise.
namespace lodestone::cuda {

// Rows of one cache kind and layer (RowStore), dense within a block: a page or a sequence slot.
struct DeviceRows {
  const uint8_t* payload = nullptr;
  const uint8_t* scale = nullptr;    // null if the format has none
  int64_t payload_block_stride = 0;  // bytes; a multiple of 16
  int64_t scale_block_stride = 0;    // bytes; a multiple of 16
  int64_t num_blocks = 0;
};

// Scores of the lightning indexer (IndexTopKParams), fp32. Only scores[t, n < num_visible[t]] are
// written. A dot product of -inf gives NaN (relu is computed as (x + |x|) / 2).
// block_table, token_seq and num_visible are read before the kernels ahead in the stream end: no
// kernel of a step writes them.
struct IndexScoresArgs {
  const uint16_t* q = nullptr;    // bf16 [T, H_i, d_i]
  const float* weight = nullptr;  // [T, H_i]
  DeviceRows keys;                // [P, 64]
  IndexKeyFormat format = IndexKeyFormat::kBf16;
  const int32_t* block_table = nullptr;  // [B, max_pages]
  int64_t max_pages = 0;
  const int32_t* token_seq = nullptr;    // [T]
  const int32_t* num_visible = nullptr;  // [T]
  int64_t num_tokens = 0;                // T
  int64_t num_seqs = 0;                  // B; fewer than T: tokens of one sequence share key reads
  // Of each token only the last visible entry may be new in this step: true where every sequence of
  // the step has one token. Loads of older entries then begin before the kernels ahead end.
  bool old_keys = false;
  int64_t num_heads = 0;     // H_i
  int64_t head_dim = 0;      // d_i
  int64_t max_visible = 0;   // at least every num_visible[t]
  float* scores = nullptr;   // [T, score_stride]  out
  int64_t score_stride = 0;  // elements; >= max_visible
};
// Launches on one stream share a word that deals tiles to their blocks: what was captured on a
// stream must run on it, as runtime/graph.h does, or at least not beside other work of that stream.
void LaunchIndexScores(const IndexScoresArgs& args, IndexScoresPath path, cudaStream_t stream);
// What the current device and this shape allow: kPortable, or kTensorCore where it is faster.
IndexScoresPath ChooseIndexScoresPath(const IndexScoresArgs& args);

// The k largest of n[row] scores per row: ascending entry numbers, then -1. Ties go to the lower
// entry; NaN sorts below every number. num_visible is read before the kernels ahead in the stream
// end: no kernel of a step writes it.
struct TopKArgs {
  const float* scores = nullptr;         // [rows, score_stride]
  int64_t score_stride = 0;              // elements; a multiple of 4
  const int32_t* num_visible = nullptr;  // [rows]
  int64_t num_rows = 0;
  int64_t max_visible = 0;         // at least every num_visible[row]; <= 2^30
  int32_t k = 0;                   // 1 .. kMaxTopK
  int32_t* top_entries = nullptr;  // [rows, k]  out
};
void LaunchTopK(const TopKArgs& args, const TopKTile& tile, cudaStream_t stream);

// Both: scores of as many tokens at a time as fit the scratch, then their selection. `scores` and
// `score_stride` of `index` are ignored.
struct IndexTopKArgs {
  IndexScoresArgs index;
  int32_t k = 0;
  int32_t* top_entries = nullptr;  // [T, k]  out
  void* scratch = nullptr;         // IndexTopKScratchBytes(T, max_visible)
};
void LaunchIndexTopK(const IndexTopKArgs& args, cudaStream_t stream);

// Sparse attention (SparseAttentionParams) over the ring window and the chosen, or all, entries.
// Token pointers may start behind the batch's first token, which first_token then is the number of.
struct SparseAttentionArgs {
  const uint16_t* q = nullptr;           // bf16 [T, H, d]
  const uint16_t* latents = nullptr;     // bf16 [T, d]  the batch's own
  const int32_t* positions = nullptr;    // [T]
  const int32_t* token_seq = nullptr;    // [T]
  const int32_t* seq_first = nullptr;    // [B]
  const int32_t* seq_slot = nullptr;     // [B]
  const int32_t* block_table = nullptr;  // [B, max_pages]
  int64_t max_pages = 0;
  // Of each sequence one token is new in this step. Loads of older rows of the ring then begin
  // before the kernels ahead end.
  bool old_rows = false;
  int64_t window = 0;  // W
  DeviceRows ring;     // [S, W]
  KvFormat format = KvFormat::kBf16;
  int64_t ratio = 0;                     // 0, 4 or 128
  DeviceRows entries;                    // [P, 256 / ratio]
  const int32_t* top_entries = nullptr;  // [T, k]  ratio 4: ascending, then -1
  int64_t k = 0;
  const float* sink = nullptr;   // [H]
  const float* freqs = nullptr;  // [rope_dims / 2]
  int64_t rope_dims = 0;         // r_d
  int64_t first_token = 0;       // of the batch, that q, latents and all other [T] begin with
  int64_t num_tokens = 0;        // T
  int64_t num_heads = 0;         // H
  int64_t head_dim = 0;          // d
  int64_t max_keys = 0;          // at least every token's window and entries together
  void* scratch = nullptr;       // SparseAttentionScratchBytes(T, H, d, tile)
  uint16_t* out = nullptr;       // bf16 [T, H, d]  out
};
void LaunchSparseAttention(const SparseAttentionArgs& args, const SparseAttentionTile& tile,
                           cudaStream_t stream);
// The tile for the current device; a token's result does not depend on which other tokens there
// are.
SparseAttentionTile ChooseSparseAttentionTile(const SparseAttentionArgs& args);

}  // namespace lodestone::cuda
