#include "router/policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lodestone {
namespace {

using testing::HasSubstr;

std::shared_ptr<Worker> MakeWorker(WorkerRole role, const std::string& id, int64_t free_bytes) {
  auto worker = std::make_shared<Worker>();
  worker->hello.role = role;
  worker->hello.instance_id = id;
  worker->hello.cache_capacity_bytes = 10'000;
  worker->hello.max_context_tokens = 1 << 20;
  worker->hello.bytes_per_sequence = 100;
  worker->hello.bytes_per_page = 10;
  worker->hello.page_tokens = 4;
  worker->load.state = WorkerState::kReady;
  worker->load.free_bytes = free_bytes;
  worker->load.free_sequences = 4;
  return worker;
}

const PlacementNeeds kSmall{.prompt_tokens = 4, .total_tokens = 8};  // 120 bytes

TEST(PolicyTest, TakesTheDecodeWorkerWithTheMostFreeBytes) {
  const WorkerList workers = {MakeWorker(WorkerRole::kPrefill, "p", 0),
                              MakeWorker(WorkerRole::kDecode, "d1", 200),
                              MakeWorker(WorkerRole::kDecode, "d2", 300)};
  const PlacementOr place = Place(kSmall, workers, TimePoint());
  ASSERT_TRUE(std::holds_alternative<Placement>(place));
  EXPECT_EQ(std::get<Placement>(place).decode->hello.instance_id, "d2");
}

TEST(PolicyTest, TakesThePrefillWorkerWithTheFewestQueuedTokens) {
  const WorkerList workers = {MakeWorker(WorkerRole::kPrefill, "p1", 0),
                              MakeWorker(WorkerRole::kPrefill, "p2", 0),
                              MakeWorker(WorkerRole::kDecode, "d", 200)};
  workers[0]->load.queued_tokens = 10;
  workers[1]->inflight_tokens = 5;
  const PlacementOr place = Place(kSmall, workers, TimePoint());
  EXPECT_EQ(std::get<Placement>(place).prefill->hello.instance_id, "p2");
}

TEST(PolicyTest, PrefersLinkedPairs) {
  const WorkerList workers = {MakeWorker(WorkerRole::kPrefill, "p", 0),
                              MakeWorker(WorkerRole::kDecode, "d1", 900),
                              MakeWorker(WorkerRole::kDecode, "d2", 300)};
  workers[0]->load.linked_instance_ids = {"d2"};
  EXPECT_EQ(std::get<Placement>(Place(kSmall, workers, TimePoint())).decode->hello.instance_id, "d2");
}

TEST(PolicyTest, WaitsWhenTheWorstCaseDoesNotFitNow) {
  const WorkerList workers = {MakeWorker(WorkerRole::kPrefill, "p", 0),
                              MakeWorker(WorkerRole::kDecode, "d", 119)};
  const PlacementOr place = Place(kSmall, workers, TimePoint());
  EXPECT_EQ(std::get<NoPlacement>(place).kind, NoPlacement::Kind::kNoCapacity);
}

TEST(PolicyTest, LargerThanEveryWorkerIsTooLarge) {
  const WorkerList workers = {MakeWorker(WorkerRole::kPrefill, "p", 0),
                              MakeWorker(WorkerRole::kDecode, "d", 200)};
  const PlacementNeeds needs{.prompt_tokens = 4, .total_tokens = 3961};  // 990 pages hold 3960
  const PlacementOr place = Place(needs, workers, TimePoint());
  ASSERT_EQ(std::get<NoPlacement>(place).kind, NoPlacement::Kind::kTooLarge);
  EXPECT_THAT(std::get<NoPlacement>(place).error.message, HasSubstr("3961"));
  EXPECT_THAT(std::get<NoPlacement>(place).error.message, HasSubstr("3960"));
}

TEST(PolicyTest, NeverEjectsTheLastWorkerOfARole) {
  const WorkerList workers = {MakeWorker(WorkerRole::kPrefill, "p", 0),
                              MakeWorker(WorkerRole::kDecode, "d1", 900),
                              MakeWorker(WorkerRole::kDecode, "d2", 300)};
  workers[1]->breaker_open_until = TimePoint::max();
  EXPECT_EQ(std::get<Placement>(Place(kSmall, workers, TimePoint())).decode->hello.instance_id, "d2");
  workers[2]->load.state = WorkerState::kUnhealthy;
  EXPECT_EQ(std::get<Placement>(Place(kSmall, workers, TimePoint())).decode->hello.instance_id, "d1");
}

TEST(PolicyTest, AvoidsAWorkerUnlessTheOthersAreFull) {
  const WorkerList workers = {MakeWorker(WorkerRole::kPrefill, "p", 0),
                              MakeWorker(WorkerRole::kDecode, "d1", 900),
                              MakeWorker(WorkerRole::kDecode, "d2", 300)};
  PlacementNeeds needs = kSmall;
  needs.avoid = {"d1"};
  EXPECT_EQ(std::get<Placement>(Place(needs, workers, TimePoint())).decode->hello.instance_id, "d2");
  workers[2]->load.free_bytes = 0;
  EXPECT_EQ(std::get<Placement>(Place(needs, workers, TimePoint())).decode->hello.instance_id, "d1");
  workers[1]->breaker_open_until = TimePoint::max();
  EXPECT_EQ(std::get<NoPlacement>(Place(needs, workers, TimePoint())).kind,
            NoPlacement::Kind::kNoCapacity);
}

TEST(PolicyTest, NeverPairsDifferentLayouts) {
  const WorkerList workers = {MakeWorker(WorkerRole::kPrefill, "p", 0),
                              MakeWorker(WorkerRole::kDecode, "d", 200)};
  workers[1]->hello.layout_fingerprint = 7;
  const PlacementOr place = Place(kSmall, workers, TimePoint());
  EXPECT_EQ(std::get<NoPlacement>(place).kind, NoPlacement::Kind::kNoWorkers);
  EXPECT_EQ(std::get<NoPlacement>(place).error.http_status, 503);
}

}  // namespace
}  // namespace lodestone
