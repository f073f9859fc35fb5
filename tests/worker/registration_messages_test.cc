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

TEST(MakeLoadTest, ARouterHearsOfLinksThatAreUp) {
  WorkerStatus prefill;
  prefill.links = {{.decode_instance = "d0", .up = true, .transport = "tcp"},
                   {.decode_instance = "d1", .transport = "tcp"}};
  const v1::WorkerLoad load = MakeLoad(prefill, {}, PlanOf(10, 1000));
  ASSERT_EQ(load.linked_instance_ids_size(), 1);
  EXPECT_EQ(load.linked_instance_ids(0), "d0");
  WorkerStatus decode;
  decode.linked_instances = {"p0"};
  EXPECT_EQ(MakeLoad(decode, {}, PlanOf(10, 1000)).linked_instance_ids(0), "p0");
}

}  // namespace
}  // namespace lodestone
