#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "base/ids.h"
#include "kvcache/block_table.h"
#include "kvcache/cache_shape.h"
#include "runtime/cache_views.h"

namespace lodestone {

class CachePool;

// Rows that a sequence of `length` tokens has of one kind, over all layers: what a complete
// hand-off carries. A formula of its own, so that it can judge runs and manifests.
int64_t ExpectedRows(const CacheShape& shape, CacheKind kind, int64_t length);

// The cache of one sequence: its pages, its slot and how many tokens are in it. Owns both and gives
// them back, with their bytes in the ledger, on destruction. Not thread-safe: worker loop only.
class SequenceCache {
 public:
  SequenceCache(const SequenceCache&) = delete;
  SequenceCache& operator=(const SequenceCache&) = delete;
  ~SequenceCache();

  // Grows until positions [0, num_tokens) have a page; never shrinks. INTERNAL, unchanged, beyond
  // the reservation; NOT_FOUND, unchanged, if the lease was released meanwhile;
  // RESOURCE_EXHAUSTED, unchanged, if the system has no memory for the table.
  absl::Status Reserve(int64_t num_tokens);

  // Tokens whose rows are complete in the cache. The engine advances it after each pass.
  int64_t length() const { return length_; }
  // REQUIRES: length() <= length <= num_pages * kPageTokens (CHECK).
  void SetLength(int64_t length);

  // Takes over all rows of `source`, as if this sequence had computed the same tokens; its length
  // is that of `source` then. Nothing is shared. REQUIRES: this is empty, both are of one pool, and
  // pages for the length were reserved (CHECK).
  void CopyFrom(const SequenceCache& source);

  LeaseId lease() const { return lease_; }
  int slot() const { return slot_; }  // in the ring windows and compressor states
  std::span<const PageId> pages() const { return table_.pages(); }
  int64_t max_tokens() const { return max_pages_ * kPageTokens; }  // by the reservation

  // Entries and index keys that become complete when the length grows from `from` to `to`: by
  // layer, then kind, then entry; one run per layer and kind. Both workers list the same rows in
  // the same order. Their pages are valid as long as this. REQUIRES: 0 <= from <= to <= num_pages *
  // kPageTokens (CHECK).
  std::vector<RowRun> AppendRuns(int64_t from, int64_t to) const;

  // What a hand-off at `length` carries beside the entries, by layer: the last min(W - 1, length)
  // rows of the ring window (entry = position) and the live rows of the compressor states (entry =
  // state row, + kIndexStateEntry for the index-key compressor; a row is its kv, then its score):
  //   ratio 4:   rows 0..3, half A only, if length >= 4; rows 4..4 + length % 4, whole;
  //   ratio 128: rows 0..length % 128.
  // Every other state row of a fresh sequence is kv 0, score -inf already.
  std::vector<RowRun> FinalRuns(int64_t length) const;

 private:
  friend class CachePool;
  SequenceCache(CachePool* pool, LeaseId lease, bool owns_lease, int slot, int64_t max_pages);

  void AppendEntryRuns(CacheKind kind, int layer, int64_t from, int64_t to,
                       std::vector<RowRun>& runs) const;
  void AppendRingRuns(int layer, int64_t length, std::vector<RowRun>& runs) const;
  void AppendStateRuns(int layer, int64_t length, std::vector<RowRun>& runs) const;

  CachePool* const pool_;
  const LeaseId lease_;
  const bool owns_lease_;  // released on destruction
  const int slot_;
  const int64_t max_pages_;
  BlockTable table_;
  int64_t length_ = 0;
};

}  // namespace lodestone
