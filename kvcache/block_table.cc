#include "kvcache/block_table.h"

#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "kvcache/cache_shape.h"

namespace lodestone {

BlockTable::BlockTable(PageAllocator* allocator) : allocator_(allocator) {}

BlockTable::~BlockTable() { allocator_->GiveBack(pages_); }

absl::Status BlockTable::Reserve(int64_t num_tokens, int64_t max_pages) {
  CHECK(num_tokens >= 0) << "num_tokens " << num_tokens;
  const int64_t missing = PagesFor(num_tokens) - num_pages();
  if (missing <= 0) return absl::OkStatus();
  if (num_pages() + missing > max_pages) {
    return absl::InternalError(absl::StrCat("sequence of ", num_tokens, " tokens needs ",
                                            num_pages() + missing, " pages, at most are ",
                                            max_pages));
  }
  pages_.reserve(static_cast<size_t>(max_pages));
  const absl::Status taken = allocator_->Take(missing, pages_);
  if (taken.ok()) return taken;
  return absl::InternalError(absl::StrCat("admitted sequence of ", num_tokens,
                                          " tokens has no pages: ", std::string(taken.message())));
}

}  // namespace lodestone
