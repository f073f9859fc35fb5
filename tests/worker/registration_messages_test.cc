#include "worker/registration_messages.h"

#include <gtest/gtest.h>

namespace lodestone {
namespace {

MemoryPlan PlanOf(int64_t bytes_per_page, int64_t bytes_per_slot) {
  MemoryPlan plan;
  plan.bytes_per_page[MemoryPool::kLatentsIndexed] = bytes_per_page;
  plan.bytes_per_slot[MemoryPool::kRingWindows] = bytes_per_slot;
  return plan;
}

int64_t FreeBytes(int64_t free_pages, int64_t free_slots) {
  MemorySnapshot memory;
  memory.free_pages = free_pages;
  memory.free_slots = free_slots;
  return MakeLoad({}, memory, PlanOf(10, 1000)).free_bytes();
}

TEST(MakeLoadTest, FreeSlotsDoNotCountAsPages) {
  EXPECT_EQ(FreeBytes(3, 1), 1030);
  EXPECT_EQ(FreeBytes(3, 16), 1030);
  EXPECT_EQ(FreeBytes(3, 0), 30);
}

}  // namespace
}  // namespace lodestone
