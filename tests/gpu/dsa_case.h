#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "bench/gpu/device_array.h"
#include "kernels/cuda/launchers.h"
#include "kernels/op_params.h"

// Inputs of the DSA kernels, on the host for the reference ops and on the device. Everything
// follows from the seed. Memory that no sequence owns is poisoned with NaN.
namespace lodestone::cuda {

// Tokens [first_position, first_position + num_tokens) of one sequence.
struct SeqPart {
  int32_t first_position = 0;
  int32_t num_tokens = 1;
};

struct CaseBatch {
  CaseBatch(const std::vector<SeqPart>& parts, uint32_t seed);
  std::vector<int32_t> positions, token_seq, seq_first, seq_tokens, seq_slot, block_table;
  std::vector<int32_t> num_visible;  // (position + 1) / 4
  int64_t num_seqs = 0, max_pages = 0, num_pages = 0, num_slots = 0;
  int64_t num_tokens() const { return static_cast<int64_t>(positions.size()); }
  int64_t max_visible() const;
  BatchIndex index();  // views of the vectors above
};

// Rows of a cache, planar, with padding between blocks; on the host and on the device.
class CaseRows {
 public:
  CaseRows(int64_t blocks, int64_t rows, RowBytes bytes);
  std::byte* payload(int64_t block, int64_t row);
  std::byte* scale(int64_t block, int64_t row);
  RowStore store();
  DeviceRows Upload();  // copies what was written so far

 private:
  int64_t blocks_, rows_, stride_;
  RowBytes bytes_;
  std::vector<uint8_t> memory_;
  std::unique_ptr<DeviceArray<uint8_t>> device_;
};

std::vector<float> RandomFloats(int64_t n, std::mt19937& random, float factor = 1.0f);
std::vector<uint16_t> ToBf16(const std::vector<float>& values);
TensorView View(std::vector<uint16_t>& values, std::initializer_list<int64_t> dims);
TensorView View(std::vector<float>& values, std::initializer_list<int64_t> dims);
TensorView View(std::vector<int32_t>& values, std::initializer_list<int64_t> dims);

struct IndexShape {
  int64_t num_heads = 64;
  int64_t head_dim = 128;
  IndexKeyFormat format = IndexKeyFormat::kBf16;
  bool round_keys_to_fp4 = false;     // before they are stored: what `reference` numerics do
  bool round_queries_to_fp4 = false;  // the same
  bool few_values = false;            // many equal scores
  float key_factor = 1;
  // One group of some keys, and of a head of every third token's query, is 2^-spread of its size.
  int key_spread = 0;
  int query_spread = 0;
};

// Index keys and queries of a batch.
struct IndexCase {
  IndexCase(const std::vector<SeqPart>& parts, const IndexShape& shape, uint32_t seed);
  IndexScoresArgs Args();  // `scores` not set
  // Scores of the reference op, [T, max_visible]; NaN where not visible.
  std::vector<float> ReferenceScores();

  IndexShape shape;
  CaseBatch batch;
  std::vector<uint16_t> q;
  std::vector<float> weight;
  CaseRows keys;
  std::unique_ptr<DeviceArray<uint16_t>> device_q;
  std::unique_ptr<DeviceArray<float>> device_weight;
  std::unique_ptr<DeviceArray<int32_t>> block_table, token_seq, num_visible;
};

// f32 [tokens][args.score_stride], each token's scores by a launch of its own on the tensor cores.
// REQUIRES: tokens of one sequence each, or of one sequence.
std::vector<float> ComputeScoresOneByOne(IndexScoresArgs args);

struct AttentionShape {
  int64_t num_heads = 64;
  int64_t head_dim = 512;
  int64_t rope_dims = 64;
  int64_t window = 128;
  int64_t ratio = 4;
  int64_t k = 512;
  KvFormat format = KvFormat::kBf16;
  float query_factor = 1;
};

struct AttentionCase {
  AttentionCase(const std::vector<SeqPart>& parts, const AttentionShape& shape, uint32_t seed);
  SparseAttentionArgs Args();  // `scratch` and `out` not set
  std::vector<uint16_t> ReferenceOut();
  int64_t max_keys() const;

  AttentionShape shape;
  CaseBatch batch;
  std::vector<uint16_t> q, latents;
  std::vector<int32_t> top_entries;
  std::vector<float> sink, freqs;
  CaseRows ring, entries;
  std::vector<std::unique_ptr<DeviceArray<int32_t>>> device_ints;
  std::vector<std::unique_ptr<DeviceArray<float>>> device_floats;
  std::vector<std::unique_ptr<DeviceArray<uint16_t>>> device_halves;
};

}  // namespace lodestone::cuda
