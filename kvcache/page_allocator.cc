#include "kvcache/page_allocator.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/logging.h"

namespace lodestone {

PageAllocator::PageAllocator(int64_t num_pages, std::function<void(PageId)> on_free)
    : taken_(num_pages, false), on_free_(std::move(on_free)) {
  free_.reserve(num_pages);
  for (int64_t page = num_pages - 1; page >= 0; --page) {
    free_.push_back(PageId(static_cast<int32_t>(page)));
  }
}

absl::Status PageAllocator::Take(int64_t count, std::vector<PageId>& pages) {
  CHECK(count >= 0) << "count " << count;
  if (count > num_free()) {
    return absl::ResourceExhaustedError(
        absl::StrCat(count, " pages are needed, ", num_free(), " of ", num_pages(), " are free"));
  }
  // Before any page is taken: there may be no memory for it.
  if (const size_t needed = pages.size() + static_cast<size_t>(count); needed > pages.capacity()) {
    pages.reserve(std::max(needed, 2 * pages.capacity()));
  }
  for (int64_t i = 0; i < count; ++i) {
    const PageId page = free_.back();
    free_.pop_back();
    taken_[page.value()] = true;
    pages.push_back(page);
  }
  high_water_ = std::max(high_water_, num_used());
  return absl::OkStatus();
}

void PageAllocator::GiveBack(std::span<const PageId> pages) {
  for (auto page = pages.rbegin(); page != pages.rend(); ++page) {
    CHECK(page->value() >= 0 && page->value() < num_pages()) << "no such page: " << *page;
    CHECK(taken_[page->value()]) << "page " << *page << " is given back twice";
    taken_[page->value()] = false;
    free_.push_back(*page);
    if (on_free_) on_free_(*page);
  }
}

}  // namespace lodestone
