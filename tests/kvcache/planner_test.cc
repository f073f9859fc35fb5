#include "kvcache/planner.h"

#include <random>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kvcache/layout.h"
#include "tests/kvcache/shapes.h"

namespace lodestone {
namespace {

using ::testing::HasSubstr;

PlanInput FlashInput() {
  PlanInput input;
  input.shape = FlashShape();
  input.memory_limit_bytes = int64_t{20} << 30;
  input.weight_bytes = int64_t{4} << 30;
  input.max_sequences = 16;
  input.max_context = 1 << 20;
  return input;
}

TEST(PlannerTest, AffineLawIsThatOfTheFormats) {
  const MemoryPlan plan = PlanMemory(FlashInput()).value();
  EXPECT_EQ(plan.bytes_per_token, 6880);
  EXPECT_EQ(plan.bytes_per_request_fixed, 5636096 + 12206080);
  EXPECT_EQ(plan.AffineLaw(), "17842176 bytes per request + 6880.00 bytes per token");
}

TEST(PlannerTest, EveryByteOfTheLimitIsUsedOrTooSmallForAPage) {
  const MemoryPlan plan = PlanMemory(FlashInput()).value();
  EXPECT_EQ(plan.num_slots, 16);
  const int64_t left = plan.memory_limit_bytes - plan.capacity.total();
  EXPECT_GE(left, 0);
  EXPECT_LT(left, plan.bytes_per_page.total());
  EXPECT_EQ(plan.largest_context, 1 << 20);
  EXPECT_EQ(plan.Concurrency(1 << 20), 2);
  EXPECT_EQ(plan.Concurrency(1000), 16);
  EXPECT_EQ(plan.Concurrency((1 << 20) + 1), 0);
}

TEST(PlannerTest, CacheNeverExceedsWhatTheSequencesCanUse) {
  PlanInput input = FlashInput();
  input.max_context = 1000;
  const MemoryPlan plan = PlanMemory(input).value();
  EXPECT_EQ(plan.num_pages, 16 * 4);
  EXPECT_EQ(plan.largest_context, 1000);
}

TEST(PlannerTest, SlotsAreGivenUpForTheRequiredContext) {
  PlanInput input = FlashInput();
  input.memory_limit_bytes = (int64_t{4} << 30) + 1'000'000'000;
  input.max_sequences = 1000;
  input.required_context = 100'000;
  const MemoryPlan plan = PlanMemory(input).value();
  EXPECT_GE(plan.num_slots, 1);
  EXPECT_LT(plan.num_slots, 20);
  EXPECT_GE(plan.largest_context, 100'000);
}

TEST(PlannerTest, EverySlotGetsAPage) {
  PlanInput input = FlashInput();
  input.memory_limit_bytes = (int64_t{4} << 30) + 100'000'000;
  input.max_sequences = 1000;
  const MemoryPlan plan = PlanMemory(input).value();
  EXPECT_EQ(plan.num_slots, 5);
  EXPECT_GE(plan.num_pages, plan.num_slots);
}

TEST(PlannerTest, TooLittleMemoryIsRefusedWithBothNumbers) {
  PlanInput input = FlashInput();
  const int64_t least = (int64_t{4} << 30) + 17842176 + 6880 * kPageTokens;
  input.memory_limit_bytes = least - 1;
  const absl::Status status = PlanMemory(input).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr(std::to_string(least)));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("the memory limit is " + std::to_string(least - 1)));
  input.memory_limit_bytes = least;
  const MemoryPlan plan = PlanMemory(input).value();
  EXPECT_EQ(plan.num_slots, 1);
  EXPECT_EQ(plan.num_pages, 1);
  EXPECT_EQ(plan.capacity.total(), least);
}

TEST(PlannerTest, NonsenseIsRefusedByName) {
  PlanInput input = FlashInput();
  input.max_sequences = 0;
  EXPECT_THAT(std::string(PlanMemory(input).status().message()), HasSubstr("max_sequences is 0"));
  input = FlashInput();
  input.weight_bytes = -5;
  EXPECT_THAT(std::string(PlanMemory(input).status().message()), HasSubstr("weight_bytes is -5"));
  input = FlashInput();
  input.required_context = (1 << 20) + 1;
  EXPECT_EQ(PlanMemory(input).status().code(), absl::StatusCode::kInvalidArgument);
  input = FlashInput();
  input.shape.window = 0;
  EXPECT_EQ(PlanMemory(input).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(PlannerTest, WindowOnlyModelsHaveNoBytesPerToken) {
  PlanInput input = FlashInput();
  input.shape.compress_ratios = {0, 0};
  input.max_context = 10'000;
  const MemoryPlan plan = PlanMemory(input).value();
  EXPECT_EQ(plan.bytes_per_token, 0);
  EXPECT_EQ(plan.largest_context, 10'000);
  EXPECT_EQ(plan.Concurrency(10'000), 16);
}

TEST(PlannerTest, RandomInputsFitTheirLimitOrAreRefused) {
  std::mt19937_64 random(3);
  int planned = 0;
  for (int i = 0; i < 20'000; ++i) {
    PlanInput input;
    input.shape = i % 2 == 0 ? SmallShape() : FlashShape();
    input.memory_limit_bytes = static_cast<int64_t>(random() % (uint64_t{1} << (20 + i % 20)));
    input.weight_bytes = static_cast<int64_t>(random() % 1'000'000);
    input.max_sequences = 1 + static_cast<int64_t>(random() % 300);
    input.max_context = 1 + static_cast<int64_t>(random() % 100'000);
    input.required_context = 1 + static_cast<int64_t>(random() % input.max_context);
    const absl::StatusOr<MemoryPlan> plan = PlanMemory(input);
    if (!plan.ok()) {
      ASSERT_EQ(plan.status().code(), absl::StatusCode::kResourceExhausted);
      continue;
    }
    ++planned;
    ASSERT_LE(plan->capacity.total(), input.memory_limit_bytes);
    ASSERT_GE(plan->num_slots, 1);
    ASSERT_GE(plan->num_pages, plan->num_slots);
    ASSERT_GE(plan->largest_context, input.required_context);
    ASSERT_GE(plan->Concurrency(input.required_context), 1);
  }
  EXPECT_GT(planned, 1000);
}

}  // namespace
}  // namespace lodestone
