#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "kvcache/cache_pool.h"
#include "model/forward_args.h"
#include "model/weights.h"
#include "runtime/cache_format.h"
#include "runtime/device.h"

namespace lodestone {

constexpr int kMaxComputeThreads = 1024;

// How a worker is set up; the worker's flags are made of these.
struct EngineOptions {
  std::string model_dir;
  std::string overlay;               // safetensors file that replaces tensors; "" = none
  bool verify_weights = false;       // the model id covers every byte
  std::optional<Numerics> numerics;  // nullopt: what the checkpoint was trained for
  std::optional<KvFormat> kv;
  std::optional<IndexKeyFormat> index_key;
  std::string tokenizer_fingerprint;  // hex; part of the layout that two workers compare

  DeviceId device;      // where weights, caches and ops are; memory_limit_bytes is of its memory
  bool cuda_graphs = true;  // decode steps of a CUDA device as graphs, for few launches
  int num_threads = 0;  // at most kMaxComputeThreads; 0: one per usable processor
  int64_t memory_limit_bytes = int64_t{1} << 30;
  int64_t max_sequences = 16;
  int64_t max_context_tokens = 0;  // 0: what the model allows; more than it allows is refused
  int64_t max_batch_tokens = 512;  // of one step; also the largest prefill chunk
  int64_t staging_bytes = 0;       // slots of the hand-off, owned by the worker
  int64_t transport_bytes = 0;

  FreedPages freed_pages = FreedPages::kKeep;
  LoadProgress progress;  // may be empty
  std::function<void()> step_progress;  // after each layer of a step, on its thread; may be empty
  const ForwardProbe* probe = nullptr;  // watches every pass, for tests; not owned
};

}  // namespace lodestone
