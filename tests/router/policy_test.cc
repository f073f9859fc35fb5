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
  EXPECT_EQ(std::get<Placement>(Place(kSmall, workers, TimePoint())).decode->hello.instance_id,
            "d2");
}

TEST(PolicyTest, WaitsWhenTheWorstCaseDoesNotFitNow) {
  const WorkerList workers = {MakeWorker(WorkerRole::kPrefill, "p", 0),
                              MakeWorker(WorkerRole::kDecode, "d", 119)};
  const PlacementOr place = Place(kSmall, workers, TimePoint());
  EXPECT_EQ(std::get<NoPlacement>(place).kind, NoPlacement::Kind::kNoCapacity);
  EXPECT_THAT(std::get<NoPlacement>(place).error.message, HasSubstr("memory for 8 tokens"));
  workers[1]->hello.max_sequences = 4;
  PlacementNeeds three = kSmall;
  three.num_choices = 3;
  EXPECT_THAT(std::get<NoPlacement>(Place(three, workers, TimePoint())).error.message,
              HasSubstr("memory for 3 choices of 8 tokens"));
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
  EXPECT_EQ(std::get<Placement>(Place(kSmall, workers, TimePoint())).decode->hello.instance_id,
            "d2");
  workers[2]->load.state = WorkerState::kUnhealthy;
  EXPECT_EQ(std::get<Placement>(Place(kSmall, workers, TimePoint())).decode->hello.instance_id,
            "d1");
}

TEST(PolicyTest, AvoidsAWorkerUnlessTheOthersAreFull) {
  const WorkerList workers = {MakeWorker(WorkerRole::kPrefill, "p", 0),
                              MakeWorker(WorkerRole::kDecode, "d1", 900),
                              MakeWorker(WorkerRole::kDecode, "d2", 300)};
  PlacementNeeds needs = kSmall;
  needs.avoid = {"d1"};
  EXPECT_EQ(std::get<Placement>(Place(needs, workers, TimePoint())).decode->hello.instance_id,
            "d2");
  workers[2]->load.free_bytes = 0;
  EXPECT_EQ(std::get<Placement>(Place(needs, workers, TimePoint())).decode->hello.instance_id,
            "d1");
  workers[1]->breaker_open_until = TimePoint::max();
  EXPECT_EQ(std::get<NoPlacement>(Place(needs, workers, TimePoint())).kind,
            NoPlacement::Kind::kNoCapacity);
}

TEST(PolicyTest, SaysOfWhichRoleNoWorkerIsReady) {
  WorkerList workers = {MakeWorker(WorkerRole::kDecode, "d", 900)};
  EXPECT_EQ(std::get<NoPlacement>(Place(kSmall, workers, TimePoint())).missing,
            WorkerRole::kPrefill);
  workers.push_back(MakeWorker(WorkerRole::kPrefill, "p", 0));
  workers[0]->load.state = WorkerState::kDraining;
  EXPECT_EQ(std::get<NoPlacement>(Place(kSmall, workers, TimePoint())).missing,
            WorkerRole::kDecode);
  workers[0]->load.state = WorkerState::kReady;
  workers[0]->hello.layout_fingerprint = 7;  // there are both, which do not meet
  EXPECT_EQ(std::get<NoPlacement>(Place(kSmall, workers, TimePoint())).missing, std::nullopt);
}

TEST(PolicyTest, NeverPairsDifferentLayouts) {
  const WorkerList workers = {MakeWorker(WorkerRole::kPrefill, "p", 0),
                              MakeWorker(WorkerRole::kDecode, "d", 200)};
  workers[1]->hello.layout_fingerprint = 7;
  const PlacementOr place = Place(kSmall, workers, TimePoint());
  EXPECT_EQ(std::get<NoPlacement>(place).kind, NoPlacement::Kind::kNoWorkers);
  EXPECT_EQ(std::get<NoPlacement>(place).error.http_status, 503);
}

// The fields that two workers compare, with some values.
const std::vector<std::pair<std::string, std::string>> kLayout = {
    {"wire_version", "1"},    {"model_id", "a1"},      {"tokenizer", "b2"},
    {"numerics", "plain"},    {"kv", "bf16"},          {"index_k", "bf16"},
    {"page_tokens", "256"},   {"compress_ratios", "0,4,128"},
    {"head_dim", "128"},      {"rope_dim", "64"},      {"index_head_dim", "64"},
    {"window", "128"},        {"rope_form", "interleaved"},
    {"rope_theta", "10000"},  {"compress_rope_theta", "160000"},
    {"rope_scaling", "yarn factor=16"}};

TEST(PolicyTest, AnyFieldThatDiffersKeepsRequestsFromThePairAndIsNamed) {
  for (size_t i = 0; i < kLayout.size(); ++i) {
    SCOPED_TRACE(kLayout[i].first);
    WorkerList workers = {MakeWorker(WorkerRole::kPrefill, "p", 0),
                          MakeWorker(WorkerRole::kDecode, "other", 900)};
    for (const std::shared_ptr<Worker>& worker : workers) worker->hello.layout = kLayout;
    workers[1]->hello.layout[i].second += "x";
    workers[1]->hello.layout_fingerprint = 7;
    const PlacementOr refused = Place(kSmall, workers, TimePoint());
    ASSERT_TRUE(std::holds_alternative<NoPlacement>(refused));
    EXPECT_THAT(std::get<NoPlacement>(refused).error.message,
                HasSubstr(kLayout[i].first + " " + kLayout[i].second + " against " +
                          kLayout[i].second + "x"));
    // Where another pair meets, it takes the requests, however much room the first one has.
    workers.push_back(MakeWorker(WorkerRole::kDecode, "same", 200));
    workers[2]->hello.layout = kLayout;
    EXPECT_EQ(std::get<Placement>(Place(kSmall, workers, TimePoint())).decode->hello.instance_id,
              "same");
  }
}

TEST(PolicyTest, AFieldThatOneWorkerLacksIsNamed) {
  WorkerHello here;
  here.layout = {{"kv", "bf16"}, {"old", "1"}};
  WorkerHello there;
  there.layout = {{"new", "2"}, {"kv", "bf16"}};
  EXPECT_EQ(DifferingLayout(here, there), "old 1 against none, new none against 2");
}

}  // namespace
}  // namespace lodestone
