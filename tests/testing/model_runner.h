#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/ops.h"
#include "model/format_choice.h"
#include "model/forward_args.h"
#include "model/transformer.h"
#include "model/weights.h"
#include "tests/testing/op_inputs.h"

namespace lodestone {

// A checkpoint loaded for one backend. Anything wrong with it ends the process.
struct LoadedModel {
  LoadedModel(const std::string& directory, const Ops& backend, int num_threads = 1);
  LoadedModel(const LoadedModel&) = delete;
  LoadedModel& operator=(const LoadedModel&) = delete;

  const Ops& ops;
  ModelConfig config;
  Weights weights;
};

// tests/golden/mini and models/needle-tiny of the source tree.
std::string MiniDirectory();
std::string NeedleDirectory();

// What is in memory that nobody has written: workspace before each pass, cache rows at the start.
enum class UnwrittenMemory { kZero, kNaN };

// Runs a model without engine and kvcache: each sequence has a slot and pages of its own in plain
// tensors, slots in reverse and pages in shuffled order, so that mixing them up shows.
class ModelRunner {
 public:
  struct Limits {
    int64_t num_seqs = 1;
    int64_t max_context = 0;
    int64_t max_tokens = 0;  // of one pass
    int num_threads = 2;
    UnwrittenMemory unwritten = UnwrittenMemory::kZero;
  };

  // `ops` may differ from model.ops as long as it keeps weights alike (a wrapper around it, say).
  ModelRunner(const LoadedModel& model, const Ops& ops, const FormatChoice& formats,
              const Limits& limits);

  // The next tokens of one sequence.
  struct Part {
    int64_t seq = 0;
    std::span<const int32_t> ids;
    int64_t num_logits = 0;  // of its last rows
  };
  // One pass over several sequences. Logits [rows wanted, V], part by part.
  std::vector<float> Feed(std::span<const Part> parts, const ForwardProbe* probe = nullptr);

  // Feeds `ids` to sequence 0 in chunks (0: whole). Logits of the last min(num_logits, all) rows.
  std::vector<float> Prefill(std::span<const int32_t> ids, int64_t chunk_tokens, int64_t num_logits,
                             const ForwardProbe* probe = nullptr);

  int64_t length(int64_t seq) const { return lengths_[static_cast<size_t>(seq)]; }
  // Position of the first row of the pass that is running; for probes. REQUIRES: one part.
  int64_t first_position() const { return first_position_; }

  // Everything of a sequence that later tokens may read, byte for byte: window rows, entries, index
  // keys, live rows of the compressor states. Two runs with equal caches give equal bytes.
  std::vector<std::byte> LiveCache(int64_t seq) const;

  // Rows as f32, for KvFormat::kF32 and IndexKeyFormat::kF32 only.
  std::vector<float> WindowRow(int64_t layer, int64_t seq, int64_t position) const;
  std::vector<float> Entry(int64_t layer, int64_t seq, int64_t entry) const;
  std::vector<float> IndexKey(int64_t layer, int64_t seq, int64_t entry) const;
  // One row of a compressor state, kv then score.
  std::vector<float> StateRow(int64_t layer, int64_t seq, int64_t row) const;
  std::vector<float> IndexStateRow(int64_t layer, int64_t seq, int64_t row) const;

 private:
  struct LayerCache {
    std::unique_ptr<TestRowStore> ring, entries, index_keys;
    HostTensor state_kv, state_score, index_state_kv, index_state_score;
    LayerCacheView view;
  };
  struct RowPlace {
    int64_t block = 0;
    int64_t row = 0;
  };

  LayerCache MakeLayerCache(int64_t layer) const;
  std::unique_ptr<TestRowStore> MakeRows(int64_t blocks, int64_t rows, RowBytes bytes) const;
  // 0xff throughout, which is NaN in every format, under UnwrittenMemory::kNaN.
  void FillUnwritten(const HostTensor& memory) const;
  int64_t Slot(int64_t seq) const { return num_seqs_ - seq; }  // slot 0 stays unused
  RowPlace PlaceOfEntry(int64_t seq, int64_t entry, int64_t ratio) const;

  const LoadedModel& model_;
  const FormatChoice formats_;
  const int64_t num_seqs_;
  const int64_t pages_per_seq_;
  const int64_t max_tokens_;
  const UnwrittenMemory unwritten_;
  std::vector<int32_t> pages_;  // [num_seqs, pages_per_seq]
  std::vector<LayerCache> caches_;
  std::vector<LayerCacheView> views_;
  std::vector<int64_t> lengths_;
  int64_t first_position_ = 0;
  Transformer transformer_;
  HostTensor workspace_;
  ThreadPool pool_;
  Stream stream_;
};

// Index of the largest value of row `row` of [rows, width]; the first of equals.
int32_t Argmax(const std::vector<float>& values, int64_t width, int64_t row);

}  // namespace lodestone
