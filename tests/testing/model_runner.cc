#include "tests/testing/model_runner.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>

#include "base/logging.h"
#include "model/checkpoint.h"

namespace lodestone {
namespace {

ModelConfig MustLoadConfig(const std::string& directory) {
  absl::StatusOr<ModelConfig> config = LoadModelConfig(directory);
  CHECK(config.ok()) << config.status().message();
  return *std::move(config);
}

Weights MustLoadWeights(const std::string& directory, const ModelConfig& config, const Ops& ops,
                        int num_threads) {
  const absl::StatusOr<Checkpoint> checkpoint = Checkpoint::Open(directory, {});
  CHECK(checkpoint.ok()) << checkpoint.status().message();
  absl::StatusOr<Weights> weights = LoadWeights(config, *checkpoint, ops, nullptr, num_threads);
  CHECK(weights.ok()) << weights.status().message();
  return *std::move(weights);
}

HostTensor IntTensor(const std::vector<int32_t>& values) {
  HostTensor tensor(DType::kI32, {static_cast<int64_t>(values.size())});
  tensor.SetInts(values);
  return tensor;
}

HostTensor FilledState(int64_t slots, int64_t rows, int64_t width, float value) {
  HostTensor tensor(DType::kF32, {slots, rows, width});
  std::fill_n(tensor.view().as<float>(), tensor.size(), value);
  return tensor;
}

void AppendBytes(const void* data, int64_t count, std::vector<std::byte>& out) {
  const auto* bytes = static_cast<const std::byte*>(data);
  out.insert(out.end(), bytes, bytes + count);
}

// Payload and scale of one row.
void AppendRow(const RowStore& store, int64_t block, int64_t row, std::vector<std::byte>& out) {
  for (const TensorView& part : {store.payload, store.scale}) {
    if (part.empty()) continue;
    AppendBytes(part.row<std::byte>(block) + row * part.strides[1], part.shape[2], out);
  }
}

std::vector<float> FloatRow(const RowStore& store, int64_t block, int64_t row) {
  std::vector<float> values(static_cast<size_t>(store.payload.shape[2]) / sizeof(float));
  std::memcpy(values.data(), store.payload.row<std::byte>(block) + row * store.payload.strides[1],
              values.size() * sizeof(float));
  return values;
}

std::vector<float> StateValues(const CompressorStateView& state, int64_t slot, int64_t row) {
  const int64_t width = state.kv.shape[2];
  std::vector<float> values;
  for (const TensorView& part : {state.kv, state.score}) {
    const float* first = part.row<float>(slot) + row * width;
    values.insert(values.end(), first, first + width);
  }
  return values;
}

// The state rows that later tokens read (docs/model.md 8.5), of the first `columns` channels where
// only half A is read.
void AppendLiveState(const CompressorStateView& state, int64_t slot, int64_t ratio, int64_t length,
                     std::vector<std::byte>& out) {
  const int64_t width = state.kv.shape[2];
  const auto append = [&](int64_t row, int64_t columns) {
    for (const TensorView& part : {state.kv, state.score}) {
      AppendBytes(part.row<float>(slot) + row * width, columns * 4, out);
    }
  };
  if (ratio == 4 && length >= 4) {
    for (int64_t row = 0; row < 4; ++row) append(row, width / 2);
  }
  const int64_t first_pending = ratio == 4 ? 4 : 0;
  for (int64_t row = 0; row < length % ratio; ++row) append(first_pending + row, width);
}

}  // namespace

LoadedModel::LoadedModel(const std::string& directory, const Ops& backend, int num_threads)
    : ops(backend),
      config(MustLoadConfig(directory)),
      weights(MustLoadWeights(directory, config, backend, num_threads)) {}

std::string MiniDirectory() { return std::string(LODESTONE_SOURCE_DIR) + "/tests/golden/mini"; }
std::string NeedleDirectory() { return std::string(LODESTONE_SOURCE_DIR) + "/models/needle-tiny"; }

ModelRunner::ModelRunner(const LoadedModel& model, const Ops& ops, const FormatChoice& formats,
                         const Limits& limits)
    : model_(model),
      formats_(formats),
      num_seqs_(limits.num_seqs),
      pages_per_seq_((limits.max_context + kPageTokens - 1) / kPageTokens),
      max_tokens_(limits.max_tokens),
      unwritten_(limits.unwritten),
      pages_(static_cast<size_t>(num_seqs_ * pages_per_seq_)),
      lengths_(static_cast<size_t>(num_seqs_), 0),
      transformer_(model.config, model.weights, ops, formats),
      workspace_(DType::kU8, {Transformer::WorkspaceBytes(model.config, ops, formats,
                                                          {.max_tokens = limits.max_tokens,
                                                           .max_logit_rows = limits.max_tokens,
                                                           .max_context = limits.max_context,
                                                           .index_scores = true})}),
      pool_(limits.num_threads),
      stream_(&pool_) {
  std::iota(pages_.begin(), pages_.end(), 1);  // page 0 stays unused
  std::shuffle(pages_.begin(), pages_.end(), std::mt19937(7));
  for (int64_t layer = 0; layer < model.config.num_layers; ++layer) {
    caches_.push_back(MakeLayerCache(layer));
    views_.push_back(caches_.back().view);
  }
}

void ModelRunner::FillUnwritten(const HostTensor& memory) const {
  if (unwritten_ == UnwrittenMemory::kNaN) std::memset(memory.view().data, 0xff, memory.size());
}

std::unique_ptr<TestRowStore> ModelRunner::MakeRows(int64_t blocks, int64_t rows,
                                                    RowBytes bytes) const {
  auto store = std::make_unique<TestRowStore>(blocks, rows, bytes);
  FillUnwritten(store->memory);
  return store;
}

ModelRunner::LayerCache ModelRunner::MakeLayerCache(int64_t layer) const {
  const ModelConfig& c = model_.config;
  const int64_t ratio = c.ratio(layer);
  const int64_t slots = num_seqs_ + 1;
  const int64_t pages = num_seqs_ * pages_per_seq_ + 1;
  constexpr float kUnwritten = -std::numeric_limits<float>::infinity();
  const RowBytes latent = LatentRowBytes(formats_.kv, c.head_dim, c.rope_dims);
  LayerCache cache;
  cache.ring = MakeRows(slots, c.window, latent);
  cache.view.ring = cache.ring->store;
  if (ratio == 0) return cache;
  const int64_t rows = ratio == 4 ? 8 : ratio;
  const int64_t width = c.head_dim * (ratio == 4 ? 2 : 1);
  cache.entries = MakeRows(pages, kPageTokens / ratio, latent);
  cache.state_kv = FilledState(slots, rows, width, 0);
  cache.state_score = FilledState(slots, rows, width, kUnwritten);
  cache.view.entries = cache.entries->store;
  cache.view.state = {cache.state_kv, cache.state_score};
  if (ratio != 4) return cache;
  cache.index_keys = MakeRows(pages, kPageTokens / ratio,
                              IndexKeyRowBytes(formats_.index_key, c.index_head_dim));
  cache.index_state_kv = FilledState(slots, rows, 2 * c.index_head_dim, 0);
  cache.index_state_score = FilledState(slots, rows, 2 * c.index_head_dim, kUnwritten);
  cache.view.index_keys = cache.index_keys->store;
  cache.view.index_state = {cache.index_state_kv, cache.index_state_score};
  return cache;
}

std::vector<float> ModelRunner::Feed(std::span<const Part> parts, const ForwardProbe* probe) {
  std::vector<int32_t> ids, positions, token_seq, first, count, slot, table, visible, rows;
  int64_t max_position = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    const Part& part = parts[i];
    int64_t& length = lengths_[static_cast<size_t>(part.seq)];
    first_position_ = length;
    first.push_back(static_cast<int32_t>(ids.size()));
    count.push_back(static_cast<int32_t>(part.ids.size()));
    slot.push_back(static_cast<int32_t>(Slot(part.seq)));
    const auto pages = pages_.begin() + part.seq * pages_per_seq_;
    table.insert(table.end(), pages, pages + pages_per_seq_);
    for (const int32_t id : part.ids) {
      ids.push_back(id);
      token_seq.push_back(static_cast<int32_t>(i));
      positions.push_back(static_cast<int32_t>(length++));
      visible.push_back(static_cast<int32_t>(length / 4));
    }
    max_position = std::max(max_position, length - 1);
    const auto end = static_cast<int32_t>(ids.size());
    for (int64_t row = end - part.num_logits; row < end; ++row) {
      rows.push_back(static_cast<int32_t>(row));
    }
  }
  CHECK_LE(static_cast<int64_t>(ids.size()), max_tokens_);
  CHECK_LE(max_position, pages_per_seq_ * kPageTokens - 1);

  const HostTensor id_tensor = IntTensor(ids), position_tensor = IntTensor(positions),
                   token_seq_tensor = IntTensor(token_seq), first_tensor = IntTensor(first),
                   count_tensor = IntTensor(count), slot_tensor = IntTensor(slot),
                   table_tensor = IntTensor(table), visible_tensor = IntTensor(visible),
                   row_tensor = IntTensor(rows);
  HostTensor logits(DType::kF32, {static_cast<int64_t>(rows.size()), model_.config.vocab_size});
  const ForwardArgs args{
      .ids = id_tensor,
      .batch = {.positions = position_tensor,
                .token_seq = token_seq_tensor,
                .seq_first = first_tensor,
                .seq_tokens = count_tensor,
                .seq_slot = slot_tensor,
                .block_table = TensorView(table_tensor.view().data, DType::kI32,
                                          {static_cast<int64_t>(parts.size()), pages_per_seq_})},
      .num_visible_indexed = visible_tensor,
      .max_visible_indexed = *std::max_element(visible.begin(), visible.end()),
      .max_position = max_position,
      .caches = views_,
      .logit_rows = row_tensor,
      .logits = logits,
      .probe = probe};
  FillUnwritten(workspace_);
  transformer_.Forward(
      args, {workspace_.view().as<std::byte>(), static_cast<size_t>(workspace_.size())}, stream_);
  CHECK(stream_.Synchronize().ok());
  return logits.Floats();
}

std::vector<float> ModelRunner::Prefill(std::span<const int32_t> ids, int64_t chunk_tokens,
                                        int64_t num_logits, const ForwardProbe* probe) {
  const auto total = static_cast<int64_t>(ids.size());
  const int64_t first_logit = std::max<int64_t>(total - num_logits, 0);
  std::vector<float> logits;
  for (int64_t begin = 0; begin < total;) {
    const int64_t count = chunk_tokens == 0 ? total : std::min(chunk_tokens, total - begin);
    const int64_t end = begin + count;
    const Part part{.seq = 0,
                    .ids = ids.subspan(static_cast<size_t>(begin), static_cast<size_t>(count)),
                    .num_logits = std::max<int64_t>(end - std::max(begin, first_logit), 0)};
    const std::vector<float> rows = Feed({&part, 1}, probe);
    logits.insert(logits.end(), rows.begin(), rows.end());
    begin = end;
  }
  return logits;
}

ModelRunner::RowPlace ModelRunner::PlaceOfEntry(int64_t seq, int64_t entry, int64_t ratio) const {
  const int64_t rows = kPageTokens / ratio;
  return {pages_[static_cast<size_t>(seq * pages_per_seq_ + entry / rows)], entry % rows};
}

std::vector<std::byte> ModelRunner::LiveCache(int64_t seq) const {
  std::vector<std::byte> bytes;
  const int64_t length = lengths_[static_cast<size_t>(seq)];
  const int64_t window = model_.config.window;
  for (int64_t layer = 0; layer < model_.config.num_layers; ++layer) {
    const LayerCacheView& view = views_[static_cast<size_t>(layer)];
    const int64_t ratio = model_.config.ratio(layer);
    for (int64_t p = std::max<int64_t>(0, length - window); p < length; ++p) {
      AppendRow(view.ring, Slot(seq), p % window, bytes);
    }
    if (ratio == 0) continue;
    for (int64_t entry = 0; entry < length / ratio; ++entry) {
      const RowPlace place = PlaceOfEntry(seq, entry, ratio);
      AppendRow(view.entries, place.block, place.row, bytes);
      if (ratio == 4) AppendRow(view.index_keys, place.block, place.row, bytes);
    }
    AppendLiveState(view.state, Slot(seq), ratio, length, bytes);
    if (ratio == 4) AppendLiveState(view.index_state, Slot(seq), ratio, length, bytes);
  }
  return bytes;
}

std::vector<float> ModelRunner::WindowRow(int64_t layer, int64_t seq, int64_t position) const {
  return FloatRow(views_[static_cast<size_t>(layer)].ring, Slot(seq),
                  position % model_.config.window);
}

std::vector<float> ModelRunner::Entry(int64_t layer, int64_t seq, int64_t entry) const {
  const RowPlace place = PlaceOfEntry(seq, entry, model_.config.ratio(layer));
  return FloatRow(views_[static_cast<size_t>(layer)].entries, place.block, place.row);
}

std::vector<float> ModelRunner::IndexKey(int64_t layer, int64_t seq, int64_t entry) const {
  const RowPlace place = PlaceOfEntry(seq, entry, model_.config.ratio(layer));
  return FloatRow(views_[static_cast<size_t>(layer)].index_keys, place.block, place.row);
}

std::vector<float> ModelRunner::StateRow(int64_t layer, int64_t seq, int64_t row) const {
  return StateValues(views_[static_cast<size_t>(layer)].state, Slot(seq), row);
}

std::vector<float> ModelRunner::IndexStateRow(int64_t layer, int64_t seq, int64_t row) const {
  return StateValues(views_[static_cast<size_t>(layer)].index_state, Slot(seq), row);
}

int32_t Argmax(const std::vector<float>& values, int64_t width, int64_t row) {
  const auto first = values.begin() + row * width;
  return static_cast<int32_t>(std::max_element(first, first + width) - first);
}

}  // namespace lodestone
