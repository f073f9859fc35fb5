#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kvcache/layout.h"
#include "kvcache/ledger.h"
#include "kvcache/page_allocator.h"
#include "kvcache/planner.h"
#include "kvcache/sequence_cache.h"
#include "runtime/cache_views.h"
#include "runtime/memory.h"
#include "runtime/stream.h"

namespace lodestone {

// What happens to cache memory that nobody owns.
enum class FreedPages : uint8_t {
  kKeep,    // left as it is
  kPoison,  // filled with 0xff, which is NaN in every format, so that a stale read shows (tests)
};

struct CacheStats {
  int64_t num_pages = 0;
  int64_t used_pages = 0;
  int64_t high_water_pages = 0;
  int64_t num_slots = 0;
  int64_t used_slots = 0;  // sequences
};

// All cache memory of a worker, as its plan divides it, where the ops of its stream work. Makes the
// caches of sequences, which must be gone before the pool is. Worker loop only, except ledger(),
// which any thread may use.
class CachePool {
 public:
  // Allocates everything at once. Writes of its own (fresh slots, poison, copies) are queued on
  // `stream`, which is not owned and must outlive the pool; null: memory of the host. Errors:
  // RESOURCE_EXHAUSTED if the system does not have the memory.
  static absl::StatusOr<std::unique_ptr<CachePool>> Create(const MemoryPlan& plan,
                                                           FreedPages freed = FreedPages::kKeep,
                                                           Stream* stream = nullptr);
  CachePool(const CachePool&) = delete;
  CachePool& operator=(const CachePool&) = delete;
  ~CachePool();

  // An empty sequence under a lease that Ledger::Reserve has granted: its slot is taken and
  // initialised (ring 0, kv 0, score -inf), its pages are taken as it grows. NOT_FOUND without the
  // lease; INTERNAL if the lease has a sequence already. The lease stays the caller's to release.
  absl::StatusOr<std::unique_ptr<SequenceCache>> MakeSequence(LeaseId lease);
  // The same under a lease of its own, for `max_tokens` tokens, released with the sequence.
  // RESOURCE_EXHAUSTED if they are not free now; INVALID_ARGUMENT if they never will be.
  absl::StatusOr<std::unique_ptr<SequenceCache>> MakeSequenceFor(int64_t max_tokens);

  // One per layer; valid as long as the pool.
  std::span<const LayerCacheView> layers() const { return layers_; }
  const CacheLayout& layout() const { return layout_; }
  const MemoryPlan& plan() const { return plan_; }
  Ledger& ledger() { return ledger_; }
  PageAllocator& page_allocator() { return pages_; }
  // Bytes really allocated, by pool; equal to the plan's.
  PoolBytes AllocatedBytes() const;
  CacheStats Stats() const;

 private:
  friend class SequenceCache;
  CachePool(const MemoryPlan& plan, FreedPages freed, Stream* stream);

  absl::Status Allocate();
  void MakeViews();
  absl::StatusOr<std::unique_ptr<SequenceCache>> Make(LeaseId lease, bool owns_lease);
  void InitialiseSlot(int slot);
  // Slot and ledger of a sequence that ends; its block table returns the pages itself.
  void Return(SequenceCache& sequence);
  void Poison(PageId page);
  void CopyPage(PageId from, PageId to);
  void CopySlot(int from, int to);
  std::byte* Memory(CacheKind kind) const { return buffers_[static_cast<int>(kind)].data(); }

  const MemoryPlan plan_;
  const CacheLayout layout_;
  const FreedPages freed_;
  Stream host_stream_;
  Stream& stream_;
  Ledger ledger_;
  Buffer buffers_[kNumCacheKinds];
  std::vector<LayerCacheView> layers_;
  PageAllocator pages_;
  std::vector<int> free_slots_;  // taken from the back
};

}  // namespace lodestone
