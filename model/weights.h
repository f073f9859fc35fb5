#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/ops.h"
#include "model/checkpoint.h"
#include "model/model_config.h"
#include "runtime/memory.h"
#include "runtime/tensor.h"

namespace lodestone {

// Shapes below are those of the matrices [out, in]; a PackedWeight holds one in the backend's own
// layout, in the format of the checkpoint: bf16 where nothing else is said, "dense" and "expert"
// are ModelConfig::dense_format and expert_format. Dims as in kernels/op_params.h.

struct HyperConnectionWeights {
  PackedWeight fn;   // f32 [M*(M+2), M*D]; final collapse: [M, M*D]
  TensorView base;   // f32 [M*(M+2)]; [M]
  TensorView scale;  // f32 [3]; [1]
};

struct CompressorWeights {  // output width c; w = c * (ratio == 4 ? 2 : 1)
  PackedWeight wkv, wgate;  // bf16 [w, D]
  TensorView ape;           // f32 [ratio, w]
  TensorView norm;          // bf16 [c]
};

struct IndexerWeights {
  PackedWeight wq_b;             // dense [H_i * d_i, R_q]
  PackedWeight weights_proj;     // bf16 [H_i, D]
  CompressorWeights compressor;  // c = d_i
};

struct AttentionWeights {
  TensorView norm;               // bf16 [D]  attn_norm
  PackedWeight wq_a;             // dense [R_q, D]
  TensorView q_norm;             // bf16 [R_q]
  PackedWeight wq_b;             // dense [H * d, R_q]
  PackedWeight wkv;              // dense [d, D]
  TensorView kv_norm;            // bf16 [d]
  TensorView sink;               // f32 [H]
  PackedWeight wo_a;             // dense [G * R_o, H * d / G], G groups
  PackedWeight wo_b;             // dense [D, G * R_o]
  CompressorWeights compressor;  // c = d; layers of ratio 4 and 128
  IndexerWeights indexer;        // layers of ratio 4
};

struct FeedForwardWeights {
  TensorView norm;                    // bf16 [D]  ffn_norm
  PackedWeight gate;                  // bf16 [E, D]
  TensorView bias;                    // f32 [E]; empty() in hash layers
  TensorView tid2eid;                 // i32 [V, experts per token]; hash layers only
  std::vector<ExpertWeights> routed;  // E
  ExpertWeights shared;
};

struct LayerWeights {
  HyperConnectionWeights hc_attn, hc_ffn;
  AttentionWeights attention;
  FeedForwardWeights feed_forward;
};

// Bytes handled so far and in all; called from LoadWeights at least every 0.25 s while it works on
// tensors that take less than that, and once at the end.
using LoadProgress = std::function<void(int64_t bytes_done, int64_t bytes_total)>;

// All parameters of a model, packed for one backend into one allocation. Immutable after loading,
// so any number of threads may read it. Movable.
struct Weights {
  Buffer memory;  // everything below views it

  TensorView embedding;  // bf16 [V, D]
  std::vector<LayerWeights> layers;
  HyperConnectionWeights head_collapse;
  TensorView final_norm;        // bf16 [D]
  PackedWeight head;            // bf16 [V, D]
  TensorView window_freqs;      // f32 [r_d / 2]  rotary, window layers
  TensorView compressed_freqs;  // f32 [r_d / 2]  rotary, layers of ratio 4 and 128
};

// Size of Weights::memory, without reading a checkpoint: for the planner.
int64_t WeightBytes(const ModelConfig& config, const Ops& ops);

// Packs every tensor of `checkpoint` and gives its file pages back to the system on the way; the
// checkpoint can be closed afterwards. `progress` is called on any of `num_threads` threads, by one
// at a time. INVALID_ARGUMENT, naming file and tensor, if an expert number of a hash table is out
// of range; RESOURCE_EXHAUSTED without memory for the weights.
absl::StatusOr<Weights> LoadWeights(const ModelConfig& config, const Checkpoint& checkpoint,
                                    const Ops& ops, const LoadProgress& progress,
                                    int num_threads = 1);

}  // namespace lodestone
