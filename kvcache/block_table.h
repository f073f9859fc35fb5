#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "base/ids.h"
#include "kvcache/page_allocator.h"

namespace lodestone {

// The pages of one sequence: element i holds the entries and index keys of tokens
// [i * kPageTokens, (i + 1) * kPageTokens) of every layer. Owns its pages and gives them back on
// destruction. Not thread-safe: worker loop only.
class BlockTable {
 public:
  explicit BlockTable(PageAllocator* allocator);  // not owned; must outlive this
  BlockTable(const BlockTable&) = delete;
  BlockTable& operator=(const BlockTable&) = delete;
  ~BlockTable();

  // Grows until positions [0, num_tokens) have a page; never shrinks. REQUIRES: the lease covers
  // them (admission is worst case, so a lack of pages here is a bug: INTERNAL, unchanged), and the
  // table never has more than `max_pages` pages. So what pages() has given stays where it is.
  absl::Status Reserve(int64_t num_tokens, int64_t max_pages);

  std::span<const PageId> pages() const { return pages_; }
  int64_t num_pages() const { return static_cast<int64_t>(pages_.size()); }

 private:
  PageAllocator* const allocator_;
  std::vector<PageId> pages_;
};

}  // namespace lodestone
