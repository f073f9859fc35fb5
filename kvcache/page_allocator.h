#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "base/ids.h"

namespace lodestone {

// The free pages of a worker. A page is taken whole and by one owner. The lowest free page that
// was given back last is taken first, so that a run's places can be repeated. Not thread-safe:
// worker loop only.
class PageAllocator {
 public:
  // `on_free`, if set, is called with every page that is given back.
  explicit PageAllocator(int64_t num_pages, std::function<void(PageId)> on_free = {});

  // Appends `count` pages to `pages`. RESOURCE_EXHAUSTED, nothing taken, if fewer are free.
  absl::Status Take(int64_t count, std::vector<PageId>& pages);
  // REQUIRES: each was taken and not given back since (CHECK).
  void GiveBack(std::span<const PageId> pages);

  int64_t num_pages() const { return static_cast<int64_t>(taken_.size()); }
  int64_t num_free() const { return static_cast<int64_t>(free_.size()); }
  int64_t num_used() const { return num_pages() - num_free(); }
  int64_t high_water() const { return high_water_; }  // most pages ever in use at once

 private:
  std::vector<PageId> free_;  // taken from the back
  std::vector<bool> taken_;   // by page
  int64_t high_water_ = 0;
  const std::function<void(PageId)> on_free_;
};

}  // namespace lodestone
