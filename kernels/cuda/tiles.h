#pragma once

#include <cstdint>

// How the CUDA kernels cut their work: pure functions of the shape, testable without a GPU.
namespace lodestone::cuda {

inline constexpr int64_t kMaxTopK = 1024;
inline constexpr int64_t kMaxScoreBytes = int64_t{512} << 20;  // index scores kept at one time

// kPortable runs on every architecture and any shape, kTensorCore needs sm_90a: 128 dims, 4 to 64
// heads in multiples of 4.
enum class IndexScoresPath : uint8_t { kPortable, kTensorCore };

// One row is selected by a thread block of kTopKThreads threads or a cluster of them, which take
// rows of any width, `per_thread` scores of each thread at a time.
inline constexpr int kTopKThreads = 512;
inline constexpr int kMaxTopKCluster = 8;
inline constexpr int kMaxHeldTopK = 64 * kTopKThreads;  // entries of a row in shared memory
struct TopKTile {
  int cluster = 1;      // 1, 2, 4 or 8
  int per_thread = 32;  // 16 or 32, of two blocks a processor, or 64
  bool alone = false;   // one block a processor
  bool ring = false;    // sm_90: 64 through shared memory, of one block a processor
  bool held = false;    // sm_90: all of a row of up to kMaxHeldTopK, of one block a processor
};
TopKTile ChooseTopKTile(int64_t num_rows, int64_t max_visible, int num_processors);

// Row stride of the scores in scratch, in elements.
int64_t ScoreStride(int64_t max_visible);
// Tokens whose scores are in scratch at one time.
int64_t ScoreRows(int64_t num_tokens, int64_t max_visible);
// Its bytes: never more than kMaxScoreBytes (or one row), nor more for fewer tokens or entries.
int64_t IndexTopKScratchBytes(int64_t num_tokens, int64_t max_visible);

// Rows of a tile of a product of many rows, 64, 128 or 176 (device/gemm_many_ring.cuh): those with
// which the processors, which take tiles in turn, are done first. `column_tiles` of each row tile.
int ManyTileRows(int64_t rows, int64_t column_tiles, int64_t processors);

// Tokens that one cluster mixes the streams of (hyper_connection.cu); 0: blocks that stay and
// scratch. `clusters`: the device has clusters of 16 blocks.
int ChooseHcTokens(int64_t num_tokens, bool clusters);

// All but kPortable need sm_90a, bf16 latents, d = 512 and r_d = 64. Keys are attended to 64 a
// step. They give the same bits, which do not depend on the other tokens of the batch.
//   kTensorCore: a split of a token's steps is work of one thread block; of several splits a second
//     kernel makes one. The length of a split is fixed.
//   kCluster: a cluster of thread blocks for some heads of one token. For few tokens.
//   kPrefill: all steps of a token are work of one thread block. For many tokens.
enum class AttentionPath : uint8_t { kPortable, kTensorCore, kCluster, kPrefill };
struct AttentionSplits {
  int splits = 1;
  int steps_per_split = 1;
};
struct ClusterShape {
  int heads = 0;   // 16, 32 or 64; 64 with 2 or 4 blocks; 0: no cluster
  int blocks = 0;  // 2, 4, 8 or 16
};
struct SparseAttentionTile {
  AttentionPath path = AttentionPath::kPortable;
  AttentionSplits split;  // kTensorCore only
  ClusterShape cluster;   // kCluster only
};
inline constexpr int kAttentionKeys = 64;   // keys of one step
inline constexpr int kAttentionHeads = 64;  // heads of one thread block
// Steps that fit the shared memory of a cluster's blocks.
constexpr int MaxClusterSteps(const ClusterShape& shape) {
  if (shape.blocks <= 4) return 10;
  if (shape.blocks == 8) return 11;
  if (shape.heads == 16) return 16;
  return shape.heads == 64 ? 15 : 18;
}

// Of up to `max_keys` keys a token. The length of a split follows from nothing else.
AttentionSplits ChooseAttentionSplits(int64_t max_keys);
// Clusters of so many thread blocks that run at once.
struct MaxClusters {
  int of16 = 0;
  int of8 = 0;
  int of4 = 0;
  int of2 = 0;
};
// The fastest cluster with which all clusters of the launch run at once (docs/benchmarks.md,
// "Sparse attention"). 0 heads where none does.
ClusterShape ChooseAttentionCluster(int64_t num_tokens, int64_t num_heads, int64_t max_keys,
                                    const MaxClusters& max_clusters);
int64_t SparseAttentionScratchBytes(int64_t num_tokens, int64_t num_heads, int64_t head_dim,
                                    const SparseAttentionTile& tile);

}  // namespace lodestone::cuda
