#include "kvcache/layout.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/logging.h"
#include "xxhash.h"

namespace lodestone {
namespace {

constexpr int64_t Align(int64_t bytes) {
  return (bytes + kBlockAlignment - 1) / kBlockAlignment * kBlockAlignment;
}

// A compressor keeps the group in progress and, where groups overlap, the one before it.
StateBlock MakeStateBlock(int64_t ratio, int64_t dims) {
  const int64_t halves = ratio == kIndexedRatio ? 2 : 1;
  StateBlock block{.num_rows = ratio * halves, .width = dims * halves};
  block.score_offset = Align(block.num_rows * block.width * int64_t{sizeof(float)});
  block.bytes = 2 * block.score_offset;
  return block;
}

// [blocks, rows, row bytes], blocks `stride` bytes apart.
TensorView BlockView(std::byte* base, int64_t num_blocks, int64_t stride, int64_t num_rows,
                     int64_t row_bytes) {
  TensorView view(base, DType::kU8, {num_blocks, num_rows, row_bytes});
  view.strides[0] = stride;
  return view;
}

CompressorStateView StateViews(const StateBlock& block, std::byte* base, int64_t num_slots,
                               int64_t stride) {
  CompressorStateView views;
  views.kv = TensorView(base, DType::kF32, {num_slots, block.num_rows, block.width});
  views.kv.strides[0] = stride / int64_t{sizeof(float)};
  views.score = views.kv;
  views.score.data = base + block.score_offset;
  return views;
}

void AddPart(RowRun& run, const TensorView& view, int64_t block, int64_t first_row,
             int64_t part_bytes) {
  const int64_t element = BytesPerElement(view.dtype);
  const int i = run.num_parts++;
  run.part[i] = static_cast<std::byte*>(view.data) +
                (block * view.strides[0] + first_row * view.strides[1]) * element;
  run.part_bytes[i] = part_bytes;
  run.part_stride[i] = view.strides[1] * element;
}

std::string CanonicalText(const LayoutDescriptor& layout) {
  std::string text;
  for (const LayoutField& field : layout)
    absl::StrAppend(&text, field.name, "=", field.value, "\n");
  return text;
}

}  // namespace

PlanarBlock MakePlanarBlock(RowBytes row, int64_t num_rows) {
  PlanarBlock block{.num_rows = num_rows, .row = row};
  block.scale_offset = Align(num_rows * row.payload);
  block.bytes = block.scale_offset + Align(num_rows * row.scale);
  return block;
}

CacheLayout::CacheLayout(CacheShape shape) : shape_(std::move(shape)) {
  const RowBytes latent = LatentRowBytes(shape_.kv_format, shape_.head_dim, shape_.rope_dim);
  const RowBytes key = IndexKeyRowBytes(shape_.index_key_format, shape_.index_head_dim);
  latents_indexed_ = MakePlanarBlock(latent, kPageTokens / kIndexedRatio);
  latents_dense_ = MakePlanarBlock(latent, kPageTokens / kDenseRatio);
  index_keys_ = MakePlanarBlock(key, kPageTokens / kIndexedRatio);
  ring_ = MakePlanarBlock(latent, shape_.window);
  indexed_state_ = MakeStateBlock(kIndexedRatio, shape_.head_dim);
  dense_state_ = MakeStateBlock(kDenseRatio, shape_.head_dim);
  index_state_ = MakeStateBlock(kIndexedRatio, shape_.index_head_dim);
}

const PlanarBlock& CacheLayout::PageBlock(CacheKind kind) const {
  switch (kind) {
    case CacheKind::kLatentsIndexed:
      return latents_indexed_;
    case CacheKind::kLatentsDense:
      return latents_dense_;
    case CacheKind::kIndexKeys:
      return index_keys_;
    default:
      break;
  }
  LOG(FATAL) << Name(kind) << " has no pages";
  std::abort();
}

const StateBlock& CacheLayout::LatentState(int64_t ratio) const {
  CHECK(ratio == kIndexedRatio || ratio == kDenseRatio) << "ratio " << ratio;
  return ratio == kIndexedRatio ? indexed_state_ : dense_state_;
}

PoolBytes CacheLayout::BytesPerPage() const {
  PoolBytes bytes;
  bytes[MemoryPool::kLatentsIndexed] = shape_.NumLayers(kIndexedRatio) * latents_indexed_.bytes;
  bytes[MemoryPool::kLatentsDense] = shape_.NumLayers(kDenseRatio) * latents_dense_.bytes;
  bytes[MemoryPool::kIndexKeys] = shape_.NumLayers(kIndexedRatio) * index_keys_.bytes;
  return bytes;
}

PoolBytes CacheLayout::BytesPerSlot() const {
  PoolBytes bytes;
  bytes[MemoryPool::kRingWindows] = shape_.num_layers() * ring_.bytes;
  for (int layer = 0; layer < shape_.num_layers(); ++layer) {
    bytes[MemoryPool::kCompressorStates] += StateBytesPerSlot(layer);
  }
  return bytes;
}

int64_t CacheLayout::LayersBefore(int layer, int64_t ratio) const {
  const auto first = shape_.compress_ratios.begin();
  return std::count(first, first + layer, ratio);
}

int64_t CacheLayout::StateBytesPerSlot(int layer) const {
  switch (shape_.compress_ratios[layer]) {
    case kIndexedRatio:
      return indexed_state_.bytes + index_state_.bytes;
    case kDenseRatio:
      return dense_state_.bytes;
    default:
      return 0;
  }
}

RowStore CacheLayout::Rows(CacheKind kind, int layer, std::byte* pool, int64_t num_blocks) const {
  const bool is_ring = kind == CacheKind::kRingWindows;
  const PlanarBlock& block = is_ring ? ring_ : PageBlock(kind);
  const int64_t ratio = kind == CacheKind::kLatentsDense ? kDenseRatio : kIndexedRatio;
  CHECK(is_ring || shape_.compress_ratios[layer] == ratio)
      << "layer " << layer << " has no " << Name(kind);
  const int64_t layers_before = is_ring ? layer : LayersBefore(layer, ratio);
  std::byte* base = pool + layers_before * num_blocks * block.bytes;

  RowStore store;
  store.payload = BlockView(base, num_blocks, block.bytes, block.num_rows, block.row.payload);
  if (block.row.scale > 0) {
    store.scale = BlockView(base + block.scale_offset, num_blocks, block.bytes, block.num_rows,
                            block.row.scale);
  }
  return store;
}

CompressorStateView CacheLayout::LatentStates(int layer, std::byte* pool, int64_t num_slots) const {
  int64_t offset = 0;
  for (int before = 0; before < layer; ++before) offset += num_slots * StateBytesPerSlot(before);
  return StateViews(LatentState(shape_.compress_ratios[layer]), pool + offset, num_slots,
                    StateBytesPerSlot(layer));
}

CompressorStateView CacheLayout::IndexStates(int layer, std::byte* pool, int64_t num_slots) const {
  CHECK_EQ(shape_.compress_ratios[layer], kIndexedRatio) << "layer " << layer;
  const CompressorStateView latent = LatentStates(layer, pool, num_slots);
  std::byte* base = static_cast<std::byte*>(latent.kv.data) + indexed_state_.bytes;
  return StateViews(index_state_, base, num_slots, StateBytesPerSlot(layer));
}

RowRun RunOf(const RowStore& store, int64_t block, int64_t first_row, int64_t num_rows) {
  RowRun run{.num_rows = num_rows};
  AddPart(run, store.payload, block, first_row, store.payload.shape[2]);
  if (!store.scale.empty()) AddPart(run, store.scale, block, first_row, store.scale.shape[2]);
  return run;
}

RowRun RunOf(const RowStore& store, std::span<const PageId> pages, int64_t first_row,
             int64_t num_rows) {
  RowRun run = RunOf(store, 0, 0, num_rows);
  run.pages = pages.data();
  run.rows_per_page = store.payload.shape[1];
  run.first_in_page = first_row;
  run.page_stride[0] = store.payload.strides[0];
  if (!store.scale.empty()) run.page_stride[1] = store.scale.strides[0];
  return run;
}

RowRun RunOf(const CompressorStateView& state, int64_t slot, int64_t first_row, int64_t num_rows,
             int64_t width) {
  RowRun run{.num_rows = num_rows};
  AddPart(run, state.kv, slot, first_row, width * int64_t{sizeof(float)});
  AddPart(run, state.score, slot, first_row, width * int64_t{sizeof(float)});
  return run;
}

LayoutDescriptor DescribeLayout(const CacheShape& shape, const LayoutIdentity& identity) {
  return {
      {"wire_version", absl::StrCat(kLayoutWireVersion)},
      {"model_id", identity.model_id},
      {"tokenizer", identity.tokenizer_fingerprint},
      {"numerics", std::string(Name(identity.numerics))},
      {"kv", std::string(Name(shape.kv_format))},
      {"index_k", std::string(Name(shape.index_key_format))},
      {"page_tokens", absl::StrCat(kPageTokens)},
      {"compress_ratios", absl::StrJoin(shape.compress_ratios, ",")},
      {"head_dim", absl::StrCat(shape.head_dim)},
      {"rope_dim", absl::StrCat(shape.rope_dim)},
      {"index_head_dim", absl::StrCat(shape.index_head_dim)},
      {"window", absl::StrCat(shape.window)},
      {"rope_form", "interleaved"},
      {"rope_theta", absl::StrFormat("%.17g", identity.rope_theta)},
      {"compress_rope_theta", absl::StrFormat("%.17g", identity.compress_rope_theta)},
      {"rope_scaling", identity.rope_scaling},
  };
}

uint64_t LayoutFingerprint(const LayoutDescriptor& layout) {
  const std::string text = CanonicalText(layout);
  return XXH64(text.data(), text.size(), 0);
}

std::vector<std::string> DifferingFields(const LayoutDescriptor& here,
                                         const LayoutDescriptor& there) {
  const auto find = [](const LayoutDescriptor& layout, const std::string& name) {
    const auto field = std::find_if(layout.begin(), layout.end(),
                                    [&](const LayoutField& f) { return f.name == name; });
    return field == layout.end() ? std::string("none") : field->value;
  };
  std::vector<std::string> names;
  for (const LayoutDescriptor* layout : {&here, &there}) {
    for (const LayoutField& field : *layout) {
      if (std::find(names.begin(), names.end(), field.name) == names.end()) {
        names.push_back(field.name);
      }
    }
  }
  std::vector<std::string> differences;
  for (const std::string& name : names) {
    const std::string ours = find(here, name);
    const std::string theirs = find(there, name);
    if (ours != theirs) {
      differences.push_back(absl::StrCat(name, ": ", ours, " here, ", theirs, " there"));
    }
  }
  return differences;
}

}  // namespace lodestone
