#include "model/weights.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/mutex.h"
#include "base/out_of_memory.h"
#include "base/status_macros.h"
#include "base/thread_pool.h"
#include "model/inventory.h"

namespace lodestone {
namespace {

using Kind = TensorSpec::Kind;

constexpr int64_t kAlignment = 64;
constexpr std::chrono::milliseconds kProgressInterval{100};

constexpr int64_t RoundUp(int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

int64_t NumElements(const TensorSpec& spec) {
  int64_t count = 1;
  for (int64_t dim : spec.shape) count *= dim;
  return count;
}

// Bytes of one tensor in memory, a matrix with its scales.
int64_t StoredBytes(const TensorSpec& spec, const Ops& ops) {
  switch (spec.kind) {
    case Kind::kMatrix:
      return RoundUp(ops.PackedBytes(spec.matrix));
    case Kind::kScale:
      return 0;  // counted with its matrix
    case Kind::kTokenTable:
      return RoundUp(NumElements(spec) * BytesPerElement(DType::kI32));
    case Kind::kPlain:
      break;
  }
  return RoundUp(NumElements(spec) * BytesPerElement(spec.dtype));
}

int64_t FrequencyBytes(const ModelConfig& config) {
  return RoundUp(config.rope_dims / 2 * BytesPerElement(DType::kF32));
}

TensorView PlainView(std::byte* data, DType dtype, const std::vector<int64_t>& shape) {
  return shape.size() == 1 ? TensorView(data, dtype, {shape[0]})
                           : TensorView(data, dtype, {shape[0], shape[1]});
}

// The tensor itself, or a copy in `copy` if the file places it where its elements are not aligned.
absl::StatusOr<TensorView> Aligned(const TensorView& tensor, Buffer& copy) {
  const auto address = reinterpret_cast<uintptr_t>(tensor.data);
  if (address % static_cast<uintptr_t>(BytesPerElement(tensor.dtype)) == 0) return tensor;
  ASSIGN_OR_RETURN(copy, Buffer::Allocate(tensor.num_bytes()));
  std::memcpy(copy.data(), tensor.data, static_cast<size_t>(tensor.num_bytes()));
  TensorView view = tensor;
  view.data = copy.data();
  return view;
}

// Whether one of the codes is NaN: no product can use it.
absl::Status CheckCodes(const TensorView& tensor) {
  const auto* bytes = tensor.as<const uint8_t>();
  const int64_t count = tensor.num_elements();
  int64_t bad = 0;
  if (tensor.dtype == DType::kF8E4M3) {
    for (int64_t i = 0; i < count; ++i) bad += (bytes[i] & 0x7f) == 0x7f ? 1 : 0;
  } else if (tensor.dtype == DType::kF8E8M0) {
    for (int64_t i = 0; i < count; ++i) bad += bytes[i] == 0xff ? 1 : 0;
  }
  if (bad == 0) return absl::OkStatus();
  return absl::InvalidArgumentError("has " + std::to_string(bad) + " NaN among " +
                                    std::to_string(count) + " codes");
}

// i64 expert numbers of the file to i32, each in [0, num_experts).
absl::Status NarrowTokenTable(const TensorView& source, int64_t num_experts, int32_t* out) {
  const auto* ids = source.as<const int64_t>();
  for (int64_t i = 0; i < source.num_elements(); ++i) {
    if (ids[i] < 0 || ids[i] >= num_experts) {
      return absl::InvalidArgumentError("has expert " + std::to_string(ids[i]) + " for token " +
                                        std::to_string(i / source.shape[1]) + ", there are " +
                                        std::to_string(num_experts));
    }
    out[i] = static_cast<int32_t>(ids[i]);
  }
  return absl::OkStatus();
}

// Fills one allocation from front to back and remembers where each tensor went: first all tensors
// get their places, then they are packed in any order and by any thread.
class WeightPacker {
 public:
  WeightPacker(const ModelConfig& config, const Ops& ops, std::byte* memory)
      : config_(config), ops_(ops), next_(memory) {}

  void Place(const TensorSpec& spec) {
    std::byte* const place = Take(StoredBytes(spec, ops_));
    if (spec.kind == Kind::kMatrix) {
      matrices_[spec.name].data = TensorView(place, DType::kU8, {ops_.PackedBytes(spec.matrix)});
    } else if (spec.kind != Kind::kScale) {
      const DType dtype = spec.kind == Kind::kTokenTable ? DType::kI32 : spec.dtype;
      plain_[spec.name] = PlainView(place, dtype, spec.shape);
    }
  }

  // REQUIRES: Place was called for it. `scales`: of a quantised matrix. Thread-safe.
  absl::Status Fill(const TensorSpec& spec, const TensorView& source, const TensorView& scales) {
    switch (spec.kind) {
      case Kind::kMatrix: {
        RETURN_IF_ERROR(CheckCodes(source));
        PackedWeight& matrix = matrices_.at(spec.name);
        matrix = ops_.PackWeight({spec.matrix, source, scales}, matrix.data);
        return absl::OkStatus();
      }
      case Kind::kScale:
        return CheckCodes(source);
      case Kind::kTokenTable:
        return NarrowTokenTable(source, config_.num_experts, Plain(spec.name).as<int32_t>());
      case Kind::kPlain:
        std::memcpy(Plain(spec.name).data, source.data, static_cast<size_t>(source.num_bytes()));
        return absl::OkStatus();
    }
    return absl::OkStatus();
  }

  TensorView AddFrequencies(const std::vector<float>& freqs) {
    std::byte* const place = Take(FrequencyBytes(config_));
    std::memcpy(place, freqs.data(), freqs.size() * sizeof(float));
    return TensorView(place, DType::kF32, {static_cast<int64_t>(freqs.size())});
  }

  // REQUIRES: placed before.
  PackedWeight Matrix(const std::string& name) const { return matrices_.at(name); }
  TensorView Plain(const std::string& name) const { return plain_.at(name); }

 private:
  std::byte* Take(int64_t bytes) { return std::exchange(next_, next_ + bytes); }

  const ModelConfig& config_;
  const Ops& ops_;
  std::byte* next_;
  std::map<std::string, PackedWeight> matrices_;
  std::map<std::string, TensorView> plain_;
};

HyperConnectionWeights HyperConnection(const WeightPacker& packed, const std::string& prefix) {
  return {.fn = packed.Matrix(prefix + "_fn"),
          .base = packed.Plain(prefix + "_base"),
          .scale = packed.Plain(prefix + "_scale")};
}

CompressorWeights Compressor(const WeightPacker& packed, const std::string& prefix) {
  return {.wkv = packed.Matrix(prefix + "wkv.weight"),
          .wgate = packed.Matrix(prefix + "wgate.weight"),
          .ape = packed.Plain(prefix + "ape"),
          .norm = packed.Plain(prefix + "norm.weight")};
}

IndexerWeights Indexer(const WeightPacker& packed, const std::string& prefix) {
  return {.wq_b = packed.Matrix(prefix + "wq_b.weight"),
          .weights_proj = packed.Matrix(prefix + "weights_proj.weight"),
          .compressor = Compressor(packed, prefix + "compressor.")};
}

AttentionWeights Attention(const WeightPacker& packed, const std::string& prefix, int64_t ratio) {
  AttentionWeights weights{.norm = packed.Plain(prefix + "attn_norm.weight"),
                           .wq_a = packed.Matrix(prefix + "attn.wq_a.weight"),
                           .q_norm = packed.Plain(prefix + "attn.q_norm.weight"),
                           .wq_b = packed.Matrix(prefix + "attn.wq_b.weight"),
                           .wkv = packed.Matrix(prefix + "attn.wkv.weight"),
                           .kv_norm = packed.Plain(prefix + "attn.kv_norm.weight"),
                           .sink = packed.Plain(prefix + "attn.attn_sink"),
                           .wo_a = packed.Matrix(prefix + "attn.wo_a.weight"),
                           .wo_b = packed.Matrix(prefix + "attn.wo_b.weight"),
                           .compressor = {},
                           .indexer = {}};
  if (ratio != 0) weights.compressor = Compressor(packed, prefix + "attn.compressor.");
  if (ratio == 4) weights.indexer = Indexer(packed, prefix + "attn.indexer.");
  return weights;
}

ExpertWeights Expert(const WeightPacker& packed, const std::string& prefix) {
  return {.w1 = packed.Matrix(prefix + "w1.weight"),
          .w3 = packed.Matrix(prefix + "w3.weight"),
          .w2 = packed.Matrix(prefix + "w2.weight")};
}

FeedForwardWeights FeedForward(const WeightPacker& packed, const std::string& prefix,
                               const ModelConfig& config, bool hash_routing) {
  FeedForwardWeights weights{.norm = packed.Plain(prefix + "ffn_norm.weight"),
                             .gate = packed.Matrix(prefix + "ffn.gate.weight"),
                             .bias = {},
                             .tid2eid = {},
                             .routed = {},
                             .shared = Expert(packed, prefix + "ffn.shared_experts.")};
  if (hash_routing) {
    weights.tid2eid = packed.Plain(prefix + "ffn.gate.tid2eid");
  } else {
    weights.bias = packed.Plain(prefix + "ffn.gate.bias");
  }
  for (int64_t expert = 0; expert < config.num_experts; ++expert) {
    weights.routed.push_back(
        Expert(packed, prefix + "ffn.experts." + std::to_string(expert) + "."));
  }
  return weights;
}

void Assemble(const WeightPacker& packed, const ModelConfig& config, Weights& weights) {
  weights.embedding = packed.Plain("embed.weight");
  weights.head_collapse = HyperConnection(packed, "hc_head");
  weights.final_norm = packed.Plain("norm.weight");
  weights.head = packed.Matrix("head.weight");
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    const std::string prefix = "layers." + std::to_string(layer) + ".";
    weights.layers.push_back(
        {.hc_attn = HyperConnection(packed, prefix + "hc_attn"),
         .hc_ffn = HyperConnection(packed, prefix + "hc_ffn"),
         .attention = Attention(packed, prefix, config.ratio(layer)),
         .feed_forward = FeedForward(packed, prefix, config, config.uses_hash_routing(layer))});
  }
}

// Calls `progress` no more often than people can read.
class ProgressMeter {
 public:
  ProgressMeter(const LoadProgress& progress, int64_t bytes_total)
      : progress_(progress), bytes_total_(bytes_total) {}

  void Advance(int64_t bytes) {
    const MutexLock lock(&mutex_);
    bytes_done_ += bytes;
    const auto now = std::chrono::steady_clock::now();
    if (!progress_ || (bytes_done_ < bytes_total_ && now - last_call_ < kProgressInterval)) return;
    last_call_ = now;
    progress_(bytes_done_, bytes_total_);
  }

 private:
  const LoadProgress& progress_;
  const int64_t bytes_total_;
  Mutex mutex_;
  int64_t bytes_done_ GUARDED_BY(mutex_) = 0;
  std::chrono::steady_clock::time_point last_call_ GUARDED_BY(mutex_);
};

// Packs one tensor of the checkpoint and gives its pages back.
absl::Status LoadTensor(const TensorSpec& spec, const Checkpoint& checkpoint,
                        WeightPacker& packer) {
  Buffer copy;
  ASSIGN_OR_RETURN(const TensorView source, Aligned(checkpoint.Find(spec.name), copy));
  const bool has_scales = spec.kind == Kind::kMatrix && IsQuantised(spec.matrix.format);
  const TensorView scales = has_scales ? checkpoint.Find(ScaleName(spec.name)) : TensorView();
  const absl::Status filled = packer.Fill(spec, source, scales);
  if (!filled.ok()) {
    return absl::Status(filled.code(), checkpoint.FileOf(spec.name) + ": tensor '" + spec.name +
                                           "' " + std::string(filled.message()));
  }
  checkpoint.DropPages(spec.name);
  return absl::OkStatus();
}

// The first tensor's error, in the order of `specs`, of those that were tried.
absl::Status LoadTensors(std::span<const TensorSpec> specs, const Checkpoint& checkpoint,
                         const Ops& ops, WeightPacker& packer, ProgressMeter& meter,
                         ThreadPool& pool) {
  std::vector<absl::Status> errors(specs.size());
  std::atomic<bool> failed = false;
  pool.ParallelFor(std::ssize(specs), [&](int64_t task) {
    if (failed) return;
    const auto i = static_cast<size_t>(task);
    errors[i] = CatchOutOfMemory("for weights",
                                 [&] { return LoadTensor(specs[i], checkpoint, packer); });
    if (!errors[i].ok()) failed = true;
    meter.Advance(StoredBytes(specs[i], ops));
  });
  for (absl::Status& error : errors) RETURN_IF_ERROR(std::move(error));
  return absl::OkStatus();
}

}  // namespace

int64_t WeightBytes(const ModelConfig& config, const Ops& ops) {
  int64_t bytes = 2 * FrequencyBytes(config);
  for (const TensorSpec& spec : TensorInventory(config)) bytes += StoredBytes(spec, ops);
  return bytes;
}

absl::StatusOr<Weights> LoadWeights(const ModelConfig& config, const Checkpoint& checkpoint,
                                    const Ops& ops, const LoadProgress& progress,
                                    int num_threads) {
  Weights weights;
  const int64_t total = WeightBytes(config, ops);
  ASSIGN_OR_RETURN(weights.memory, Buffer::Allocate(total));
  WeightPacker packer(config, ops, weights.memory.data());
  ProgressMeter meter(progress, total);
  const std::vector<TensorSpec> specs = TensorInventory(config);
  for (const TensorSpec& spec : specs) packer.Place(spec);
  ThreadPool pool(num_threads);
  RETURN_IF_ERROR(LoadTensors(specs, checkpoint, ops, packer, meter, pool));
  weights.window_freqs = packer.AddFrequencies(WindowFrequencies(config));
  weights.compressed_freqs = packer.AddFrequencies(CompressedFrequencies(config));
  Assemble(packer, config, weights);
  meter.Advance(2 * FrequencyBytes(config));
  return weights;
}

}  // namespace lodestone
