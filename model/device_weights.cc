#include "model/device_weights.h"

#include <cstddef>
#include <utility>

#include "base/status_macros.h"
#include "runtime/cuda_calls.h"

namespace lodestone {
namespace {

// Moves every view of the weights from one allocation to another.
class Mover {
 public:
  Mover(const std::byte* from, std::byte* to) : from_(from), to_(to) {}

  void Move(Weights& weights) const {
    for (TensorView* view : {&weights.embedding, &weights.final_norm, &weights.window_freqs,
                             &weights.compressed_freqs}) {
      Move(*view);
    }
    Move(weights.head);
    Move(weights.head_collapse);
    for (LayerWeights& layer : weights.layers) {
      Move(layer.hc_attn);
      Move(layer.hc_ffn);
      Move(layer.attention);
      Move(layer.feed_forward);
    }
  }

 private:
  void Move(TensorView& view) const {
    if (view.empty()) return;
    view.data = to_ + (view.as<const std::byte>() - from_);
    view.device = Device::kCuda;
  }
  void Move(PackedWeight& weight) const { Move(weight.data); }
  void Move(HyperConnectionWeights& weights) const {
    Move(weights.fn);
    Move(weights.base);
    Move(weights.scale);
  }
  void Move(CompressorWeights& weights) const {
    Move(weights.wkv);
    Move(weights.wgate);
    Move(weights.ape);
    Move(weights.norm);
  }
  void Move(AttentionWeights& weights) const {
    for (TensorView* view : {&weights.norm, &weights.q_norm, &weights.kv_norm, &weights.sink}) {
      Move(*view);
    }
    for (PackedWeight* matrix : {&weights.wq_a, &weights.wq_b, &weights.wkv, &weights.wo_a,
                                 &weights.wo_b, &weights.indexer.wq_b,
                                 &weights.indexer.weights_proj}) {
      Move(*matrix);
    }
    Move(weights.compressor);
    Move(weights.indexer.compressor);
  }
  void Move(ExpertWeights& expert) const {
    Move(expert.w1);
    Move(expert.w3);
    Move(expert.w2);
  }
  void Move(FeedForwardWeights& weights) const {
    for (TensorView* view : {&weights.norm, &weights.bias, &weights.tid2eid}) Move(*view);
    Move(weights.gate);
    for (ExpertWeights& expert : weights.routed) Move(expert);
    Move(weights.shared);
  }

  const std::byte* const from_;
  std::byte* const to_;
};

}  // namespace

absl::StatusOr<Weights> CopyToDevice(Weights weights, DeviceId device) {
  ASSIGN_OR_RETURN(Buffer memory, Buffer::Allocate(weights.memory.size(), WorkMemory(device)));
  RETURN_IF_ERROR(cuda_calls::CopyToDevice(device.cuda, memory.data(), weights.memory.data(),
                                           weights.memory.size()));
  Mover(weights.memory.data(), memory.data()).Move(weights);
  weights.memory = std::move(memory);
  return weights;
}

}  // namespace lodestone
