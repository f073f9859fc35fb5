#include "kvcache/planner.h"

#include <algorithm>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "kvcache/layout.h"

namespace lodestone {
namespace {

constexpr int64_t kMaxPages = std::numeric_limits<int32_t>::max();

absl::Status CheckInput(const PlanInput& input) {
  RETURN_IF_ERROR(input.shape.Validate());
  const struct {
    const char* name;
    int64_t value;
    int64_t least;
  } fields[] = {
      {"memory_limit_bytes", input.memory_limit_bytes, 0},
      {"weight_bytes", input.weight_bytes, 0},
      {"scratch_bytes", input.scratch_bytes, 0},
      {"staging_bytes", input.staging_bytes, 0},
      {"transport_bytes", input.transport_bytes, 0},
      {"graph_bytes", input.graph_bytes, 0},
      {"max_sequences", input.max_sequences, 1},
      {"max_context", input.max_context, 1},
      {"required_context", input.required_context, 1},
  };
  for (const auto& field : fields) {
    if (field.value < field.least) {
      return absl::InvalidArgumentError(absl::StrCat("memory plan: ", field.name, " is ",
                                                     field.value, ", at least ", field.least,
                                                     " is needed"));
    }
  }
  if (input.required_context > input.max_context) {
    return absl::InvalidArgumentError(absl::StrCat("memory plan: required_context is ",
                                                   input.required_context, ", max_context is ",
                                                   input.max_context));
  }
  return absl::OkStatus();
}

PoolBytes NonCacheBytes(const PlanInput& input) {
  PoolBytes bytes;
  bytes[MemoryPool::kWeights] = input.weight_bytes;
  bytes[MemoryPool::kScratch] = input.scratch_bytes;
  bytes[MemoryPool::kStaging] = input.staging_bytes;
  bytes[MemoryPool::kTransport] = input.transport_bytes;
  bytes[MemoryPool::kGraphs] = input.graph_bytes;
  return bytes;
}

// As many slots as wanted, but only so many that every one gets at least a page and that one
// sequence has the pages it requires.
int64_t SlotsWithin(int64_t budget, int64_t slot, int64_t page, int64_t required_pages,
                    int64_t max_slots) {
  const int64_t beside_required = (budget - required_pages * page) / slot;
  const int64_t with_a_page_each = std::max(required_pages, budget / (slot + page));
  return std::min({max_slots, beside_required, with_a_page_each});
}

}  // namespace

int64_t MemoryPlan::Concurrency(int64_t context) const {
  if (context > max_context) return 0;
  return std::min(num_slots, num_pages / std::max<int64_t>(1, PagesFor(context)));
}

std::string MemoryPlan::AffineLaw() const {
  return absl::StrFormat("%d bytes per request + %.2f bytes per token", bytes_per_request_fixed,
                         bytes_per_token);
}

absl::StatusOr<MemoryPlan> PlanMemory(const PlanInput& input) {
  RETURN_IF_ERROR(CheckInput(input));
  const CacheLayout layout(input.shape);
  MemoryPlan plan;
  plan.shape = input.shape;
  plan.memory_limit_bytes = input.memory_limit_bytes;
  plan.max_context = input.max_context;
  plan.capacity = NonCacheBytes(input);
  plan.bytes_per_page = layout.BytesPerPage();
  plan.bytes_per_slot = layout.BytesPerSlot();
  const int64_t page = plan.bytes_per_page.total();
  const int64_t slot = plan.bytes_per_slot.total();
  plan.bytes_per_request_fixed = slot;
  plan.bytes_per_token = static_cast<double>(page) / kPageTokens;

  const int64_t required_pages = PagesFor(input.required_context);
  const int64_t budget = input.memory_limit_bytes - plan.capacity.total();
  const int64_t least = slot + required_pages * page;
  if (budget < least) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "a worker needs at least ", plan.capacity.total() + least, " bytes (",
        plan.capacity.total(), " besides the cache, ", least, " for one sequence of ",
        input.required_context, " tokens), the memory limit is ", input.memory_limit_bytes));
  }
  plan.num_slots = SlotsWithin(budget, slot, page, required_pages, input.max_sequences);
  const int64_t useful = plan.num_slots * std::min(PagesFor(input.max_context), kMaxPages);
  plan.num_pages = std::min(useful, kMaxPages);
  if (page > 0) plan.num_pages = std::min(plan.num_pages, (budget - plan.num_slots * slot) / page);
  plan.largest_context = std::min(input.max_context, plan.num_pages * kPageTokens);
  plan.capacity.Add(plan.bytes_per_page, plan.num_pages);
  plan.capacity.Add(plan.bytes_per_slot, plan.num_slots);
  return plan;
}

}  // namespace lodestone
