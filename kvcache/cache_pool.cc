#include "kvcache/cache_pool.h"

#include <algorithm>
#include <limits>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "base/out_of_memory.h"
#include "base/status_macros.h"

namespace lodestone {
namespace {

constexpr int kPoison = 0xff;

MemoryPool PoolOf(CacheKind kind) {
  switch (kind) {
    case CacheKind::kLatentsIndexed:
      return MemoryPool::kLatentsIndexed;
    case CacheKind::kLatentsDense:
      return MemoryPool::kLatentsDense;
    case CacheKind::kIndexKeys:
      return MemoryPool::kIndexKeys;
    case CacheKind::kExactIndexKeys:
      return MemoryPool::kExactIndexKeys;
    case CacheKind::kRingWindows:
      return MemoryPool::kRingWindows;
    case CacheKind::kCompressorStates:
      return MemoryPool::kCompressorStates;
  }
  return MemoryPool::kLatentsIndexed;
}

// A block's bytes lie together: from its first payload to the next block.
void FillBlock(Stream& stream, const TensorView& first_part, int64_t block, int value) {
  if (first_part.empty()) return;
  const int64_t stride = first_part.strides[0] * BytesPerElement(first_part.dtype);
  stream.FillBytes(static_cast<std::byte*>(first_part.data) + block * stride, value, stride);
}

void CopyBlock(Stream& stream, const TensorView& first_part, int64_t from, int64_t to) {
  if (first_part.empty()) return;
  const int64_t bytes = first_part.strides[0] * BytesPerElement(first_part.dtype);
  auto* const base = static_cast<std::byte*>(first_part.data);
  stream.Copy(base + to * bytes, base + from * bytes, bytes);
}

void CopyRows(Stream& stream, const TensorView& state, int64_t from, int64_t to) {
  if (state.empty()) return;
  stream.Copy(state.row<float>(to), state.row<float>(from),
              state.shape[1] * state.shape[2] * int64_t{sizeof(float)});
}

void FillRows(Stream& stream, const TensorView& state, int64_t slot, float value) {
  if (state.empty()) return;
  stream.FillFloats(state.row<float>(slot), value, state.shape[1] * state.shape[2]);
}

}  // namespace

absl::StatusOr<std::unique_ptr<CachePool>> CachePool::Create(const MemoryPlan& plan,
                                                             FreedPages freed, Stream* stream) {
  return CatchOutOfMemory("for a cache pool", [&]() -> absl::StatusOr<std::unique_ptr<CachePool>> {
    std::unique_ptr<CachePool> pool(new CachePool(plan, freed, stream));
    RETURN_IF_ERROR(pool->Allocate());
    pool->MakeViews();
    return pool;
  });
}

CachePool::CachePool(const MemoryPlan& plan, FreedPages freed, Stream* stream)
    : plan_(plan),
      layout_(plan.shape),
      freed_(freed),
      host_stream_(nullptr),
      stream_(stream != nullptr ? *stream : host_stream_),
      ledger_(plan),
      pages_(plan.num_pages,
             freed == FreedPages::kPoison
                 ? std::function<void(PageId)>([this](PageId page) { Poison(page); })
                 : nullptr) {
  for (int slot = static_cast<int>(plan.num_slots) - 1; slot >= 0; --slot) {
    free_slots_.push_back(slot);
  }
}

CachePool::~CachePool() {
  CHECK(pages_.num_used() == 0 && static_cast<int64_t>(free_slots_.size()) == plan_.num_slots)
      << "the cache pool ends with " << pages_.num_used() << " pages and "
      << plan_.num_slots - static_cast<int64_t>(free_slots_.size()) << " slots in use";
}

absl::Status CachePool::Allocate() {
  const MemoryPlace place = WorkMemory(stream_.device());
  for (int i = 0; i < kNumCacheKinds; ++i) {
    const MemoryPool pool = PoolOf(static_cast<CacheKind>(i));
    absl::StatusOr<Buffer> allocated = Buffer::Allocate(plan_.capacity[pool], place);
    if (!allocated.ok()) {
      return absl::ResourceExhaustedError(absl::StrCat("cache pool ", std::string(Name(pool)), ": ",
                                                       std::string(allocated.status().message())));
    }
    buffers_[i] = *std::move(allocated);
    if (freed_ == FreedPages::kPoison && buffers_[i].size() > 0) {
      stream_.FillBytes(buffers_[i].data(), kPoison, buffers_[i].size());
    }
  }
  return absl::OkStatus();
}

void CachePool::MakeViews() {
  const CacheShape& shape = layout_.shape();
  std::byte* const states = Memory(CacheKind::kCompressorStates);
  const auto rows = [&](CacheKind kind, int layer, int64_t num_blocks) {
    return layout_.Rows(kind, layer, Memory(kind), num_blocks);
  };
  for (int layer = 0; layer < shape.num_layers(); ++layer) {
    LayerCacheView view;
    view.ring = rows(CacheKind::kRingWindows, layer, plan_.num_slots);
    const int64_t ratio = shape.compress_ratios[layer];
    if (ratio == kIndexedRatio) {
      view.entries = rows(CacheKind::kLatentsIndexed, layer, plan_.num_pages);
      view.index_keys = rows(CacheKind::kIndexKeys, layer, plan_.num_pages);
      view.index_state = layout_.IndexStates(layer, states, plan_.num_slots);
    } else if (ratio == kDenseRatio) {
      view.entries = rows(CacheKind::kLatentsDense, layer, plan_.num_pages);
    }
    if (ratio != 0) view.state = layout_.LatentStates(layer, states, plan_.num_slots);
    layers_.push_back(view);
  }
}

absl::StatusOr<std::unique_ptr<SequenceCache>> CachePool::MakeSequence(LeaseId lease) {
  return Make(lease, false);
}

absl::StatusOr<std::unique_ptr<SequenceCache>> CachePool::MakeSequenceFor(int64_t max_tokens) {
  LeaseId lease = RandomLeaseId();
  RETURN_IF_ERROR(ledger_.Reserve(lease, ReservationFor(max_tokens)));
  absl::StatusOr<std::unique_ptr<SequenceCache>> sequence = Make(lease, true);
  if (!sequence.ok()) RETURN_IF_ERROR(ledger_.Release(lease));
  return sequence;
}

absl::StatusOr<std::unique_ptr<SequenceCache>> CachePool::Make(LeaseId lease, bool owns_lease) {
  ASSIGN_OR_RETURN(const Reservation reservation, ledger_.Find(lease));
  RETURN_IF_ERROR(ledger_.Use(lease, {.num_pages = 0, .num_slots = 1}));
  CHECK(!free_slots_.empty()) << "the ledger granted a slot, none is free";
  const int slot = free_slots_.back();
  free_slots_.pop_back();
  InitialiseSlot(slot);
  auto* const sequence =
      new (std::nothrow) SequenceCache(this, lease, owns_lease, slot, reservation.num_pages);
  if (sequence != nullptr) return std::unique_ptr<SequenceCache>(sequence);
  free_slots_.push_back(slot);
  ledger_.GiveBack(lease, {.num_pages = 0, .num_slots = 1});
  return OutOfMemory("for a sequence");
}

void CachePool::InitialiseSlot(int slot) {
  for (const LayerCacheView& layer : layers_) {
    FillBlock(stream_, layer.ring.payload, slot, 0);
    for (const CompressorStateView* state : {&layer.state, &layer.index_state}) {
      FillRows(stream_, state->kv, slot, 0.0f);
      FillRows(stream_, state->score, slot, -std::numeric_limits<float>::infinity());
    }
  }
}

void CachePool::Return(SequenceCache& sequence) {
  if (freed_ == FreedPages::kPoison) {
    for (const LayerCacheView& layer : layers_) {
      FillBlock(stream_, layer.ring.payload, sequence.slot_, kPoison);
      FillBlock(stream_, layer.state.kv, sequence.slot_, kPoison);
    }
  }
  free_slots_.push_back(sequence.slot_);
  ledger_.GiveBack(sequence.lease_, {sequence.table_.num_pages(), 1});
  if (sequence.owns_lease_) CHECK(ledger_.Release(sequence.lease_).ok());
}

void CachePool::Poison(PageId page) {
  for (const LayerCacheView& layer : layers_) {
    FillBlock(stream_, layer.entries.payload, page.value(), kPoison);
    FillBlock(stream_, layer.index_keys.payload, page.value(), kPoison);
  }
}

void CachePool::CopyPage(PageId from, PageId to) {
  for (const LayerCacheView& layer : layers_) {
    CopyBlock(stream_, layer.entries.payload, from.value(), to.value());
    CopyBlock(stream_, layer.index_keys.payload, from.value(), to.value());
  }
}

void CachePool::CopySlot(int from, int to) {
  for (const LayerCacheView& layer : layers_) {
    CopyBlock(stream_, layer.ring.payload, from, to);
    for (const CompressorStateView* state : {&layer.state, &layer.index_state}) {
      CopyRows(stream_, state->kv, from, to);
      CopyRows(stream_, state->score, from, to);
    }
  }
}

PoolBytes CachePool::AllocatedBytes() const {
  PoolBytes bytes;
  for (int i = 0; i < kNumCacheKinds; ++i) {
    bytes[PoolOf(static_cast<CacheKind>(i))] = buffers_[i].size();
  }
  return bytes;
}

CacheStats CachePool::Stats() const {
  CacheStats stats;
  stats.num_pages = pages_.num_pages();
  stats.used_pages = pages_.num_used();
  stats.high_water_pages = pages_.high_water();
  stats.num_slots = plan_.num_slots;
  stats.used_slots = plan_.num_slots - static_cast<int64_t>(free_slots_.size());
  return stats;
}

}  // namespace lodestone
