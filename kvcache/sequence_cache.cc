#include "kvcache/sequence_cache.h"

#include <algorithm>

#include "base/logging.h"
#include "base/out_of_memory.h"
#include "base/status_macros.h"
#include "kvcache/cache_pool.h"

namespace lodestone {

int64_t ExpectedRows(const CacheShape& shape, CacheKind kind, int64_t length) {
  const int64_t indexed_layers = shape.NumLayers(kIndexedRatio);
  const int64_t dense_layers = shape.NumLayers(kDenseRatio);
  switch (kind) {
    case CacheKind::kLatentsIndexed:
    case CacheKind::kIndexKeys:
      return indexed_layers * (length / kIndexedRatio);
    case CacheKind::kLatentsDense:
      return dense_layers * (length / kDenseRatio);
    case CacheKind::kExactIndexKeys:
      return 0;
    case CacheKind::kRingWindows:
      return shape.num_layers() * std::min(shape.window - 1, length);
    case CacheKind::kCompressorStates: {
      const int64_t previous_group = length >= kIndexedRatio ? kIndexedRatio : 0;
      // Two compressors in an indexed layer, one in a dense layer.
      return 2 * indexed_layers * (previous_group + length % kIndexedRatio) +
             dense_layers * (length % kDenseRatio);
    }
  }
  return 0;
}

SequenceCache::SequenceCache(CachePool* pool, LeaseId lease, bool owns_lease, int slot,
                             int64_t max_pages)
    : pool_(pool),
      lease_(lease),
      owns_lease_(owns_lease),
      slot_(slot),
      max_pages_(max_pages),
      table_(&pool->pages_) {}

SequenceCache::~SequenceCache() { pool_->Return(*this); }

absl::Status SequenceCache::Reserve(int64_t num_tokens) {
  const int64_t missing = PagesFor(num_tokens) - table_.num_pages();
  if (missing <= 0) return absl::OkStatus();
  const Reservation growth{missing, 0};
  RETURN_IF_ERROR(pool_->ledger_.Use(lease_, growth));
  const absl::Status reserved = CatchOutOfMemory(
      "for a block table", [&] { return table_.Reserve(num_tokens, max_pages_); });
  if (!reserved.ok()) pool_->ledger_.GiveBack(lease_, growth);
  return reserved;
}

void SequenceCache::SetLength(int64_t length) {
  CHECK(length >= length_ && length <= table_.num_pages() * kPageTokens)
      << "length " << length << " after " << length_ << " with " << table_.num_pages() << " pages";
  length_ = length;
}

void SequenceCache::CopyFrom(const SequenceCache& source) {
  CHECK(length_ == 0 && pool_ == source.pool_) << "copies go into empty sequences of one pool";
  const auto num_pages = static_cast<size_t>(PagesFor(source.length_));
  CHECK_LE(num_pages, pages().size()) << "pages of a copy of " << source.length_ << " tokens";
  for (size_t page = 0; page < num_pages; ++page) {
    pool_->CopyPage(source.pages()[page], pages()[page]);
  }
  pool_->CopySlot(source.slot_, slot_);
  length_ = source.length_;
}

std::vector<RowRun> SequenceCache::AppendRuns(int64_t from, int64_t to) const {
  CHECK(0 <= from && from <= to && to <= table_.num_pages() * kPageTokens)
      << "rows of tokens " << from << " to " << to << " with " << table_.num_pages() << " pages";
  std::vector<RowRun> runs;
  const CacheShape& shape = pool_->layout_.shape();
  for (int layer = 0; layer < shape.num_layers(); ++layer) {
    if (shape.compress_ratios[layer] == kIndexedRatio) {
      AppendEntryRuns(CacheKind::kLatentsIndexed, layer, from, to, runs);
      AppendEntryRuns(CacheKind::kIndexKeys, layer, from, to, runs);
    } else if (shape.compress_ratios[layer] == kDenseRatio) {
      AppendEntryRuns(CacheKind::kLatentsDense, layer, from, to, runs);
    }
  }
  return runs;
}

std::vector<RowRun> SequenceCache::FinalRuns(int64_t length) const {
  CHECK(length >= 0) << "length " << length;
  std::vector<RowRun> runs;
  for (int layer = 0; layer < pool_->layout_.shape().num_layers(); ++layer) {
    AppendRingRuns(layer, length, runs);
    AppendStateRuns(layer, length, runs);
  }
  return runs;
}

void SequenceCache::AppendEntryRuns(CacheKind kind, int layer, int64_t from, int64_t to,
                                    std::vector<RowRun>& runs) const {
  const LayerCacheView& view = pool_->layers_[layer];
  const RowStore& store = kind == CacheKind::kIndexKeys ? view.index_keys : view.entries;
  const int64_t ratio = pool_->layout_.shape().compress_ratios[layer];
  const int64_t entries_per_page = kPageTokens / ratio;
  const int64_t first = from / ratio;
  const int64_t end = to / ratio;
  if (first == end) return;
  RowRun run = RunOf(store, pages().subspan(static_cast<size_t>(first / entries_per_page)),
                     first % entries_per_page, end - first);
  run.kind = kind;
  run.layer = layer;
  run.first_entry = first;
  runs.push_back(run);
}

void SequenceCache::AppendRingRuns(int layer, int64_t length, std::vector<RowRun>& runs) const {
  const int64_t window = pool_->layout_.shape().window;
  for (int64_t position = std::max<int64_t>(0, length - (window - 1)); position < length;) {
    const int64_t row = position % window;
    const int64_t count = std::min(length - position, window - row);
    RowRun run = RunOf(pool_->layers_[layer].ring, slot_, row, count);
    run.kind = CacheKind::kRingWindows;
    run.layer = layer;
    run.first_entry = position;
    runs.push_back(run);
    position += count;
  }
}

void SequenceCache::AppendStateRuns(int layer, int64_t length, std::vector<RowRun>& runs) const {
  const LayerCacheView& view = pool_->layers_[layer];
  const auto append = [&](const CompressorStateView& state, int64_t row, int64_t count,
                          int64_t width, int64_t entry) {
    if (count == 0) return;
    RowRun run = RunOf(state, slot_, row, count, width);
    run.kind = CacheKind::kCompressorStates;
    run.layer = layer;
    run.first_entry = entry + row;
    runs.push_back(run);
  };
  const int64_t ratio = pool_->layout_.shape().compress_ratios[layer];
  if (ratio == kDenseRatio) append(view.state, 0, length % ratio, view.state.kv.shape[2], 0);
  if (ratio != kIndexedRatio) return;
  const int64_t previous_group = length >= ratio ? ratio : 0;
  for (const CompressorStateView* state : {&view.state, &view.index_state}) {
    const int64_t entry = state == &view.index_state ? kIndexStateEntry : 0;
    const int64_t width = state->kv.shape[2];
    append(*state, 0, previous_group, width / 2, entry);  // half B has been consumed
    append(*state, ratio, length % ratio, width, entry);
  }
}

}  // namespace lodestone
