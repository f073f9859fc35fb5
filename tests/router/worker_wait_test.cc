// New requests while the only worker of a role is being started again.
#include <gtest/gtest.h>

#include "proto/lodestone/v1/worker.pb.h"
#include "tests/router/router_fixture.h"
#include "tests/testing/time_limits.h"

namespace lodestone {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using testing::HasSubstr;

constexpr char kAnswer[] = "The secret code for the river is north-1234-stone.";

class WorkerWaitTest : public RouterFixture {
 protected:
  void StartPair(milliseconds worker_wait, int64_t queue_size = 256) {
    RouterConfig config = Config();
    config.worker_wait = worker_wait;
    config.queue_size = queue_size;
    StartRouter(config);
    StartWorkers(kAnswer);
  }
  void KillPrefill() {
    prefills_.back()->Kill();
    ASSERT_TRUE(Eventually([&] { return IsMissing("prefill"); }));
  }
  void KillDecode() {
    decodes_.back()->Kill();
    ASSERT_TRUE(Eventually([&] { return IsMissing("decode"); }));
  }
  bool IsMissing(const std::string& role) {
    const std::string body = Fetch(http_, "GET", "/readyz").body;
    return body.find("no " + role + " worker is ready") != std::string::npos;
  }
  std::unique_ptr<HttpClient> Ask() {
    auto client = std::make_unique<HttpClient>(http_);
    client->Send("POST", "/v1/chat/completions", ChatBody());
    return client;
  }
  bool SomeWait(double count) {
    return Eventually([&] { return Metric("lodestone_router_queue_depth") == count; });
  }
};

TEST_F(WorkerWaitTest, ANewRequestWaitsWhileTheOnlyPrefillWorkerRestarts) {
  StartPair(milliseconds(60'000));
  KillPrefill();
  const auto waiting = Ask();
  ASSERT_TRUE(SomeWait(1));
  AddPrefill();
  EXPECT_EQ(ContentOf(waiting->Receive()), kAnswer);
}

TEST_F(WorkerWaitTest, ANewRequestWaitsWhileTheOnlyDecodeWorkerRestarts) {
  StartPair(milliseconds(60'000));
  KillDecode();
  const auto waiting = Ask();
  ASSERT_TRUE(SomeWait(1));
  AddDecode();
  EXPECT_EQ(ContentOf(waiting->Receive()), kAnswer);
}

TEST_F(WorkerWaitTest, AWorkerThatDrainsCountsAsLeft) {
  StartPair(milliseconds(60'000));
  decodes_[0]->SetState(v1::WORKER_STATE_DRAINING, "told to stop");
  ASSERT_TRUE(Eventually([&] { return IsMissing("decode"); }));
  const auto waiting = Ask();
  ASSERT_TRUE(SomeWait(1));
  KillDecode();
  AddDecode();
  EXPECT_EQ(ContentOf(waiting->Receive()), kAnswer);
}

TEST_F(WorkerWaitTest, AtTheEndOfTheWaitItIs503WithBothValues) {
  StartPair(milliseconds(700));
  KillDecode();
  const ClientResponse refused = Chat();
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(ErrorCode(refused), "no_decode_worker");
  EXPECT_THAT(refused.body, HasSubstr("no decode worker is ready: the last one left "));
  EXPECT_THAT(refused.body, HasSubstr("new requests wait 700 ms for another; this one waited "));
  EXPECT_TRUE(refused.headers.contains("retry-after"));
  EXPECT_EQ(Metric("lodestone_admission_rejections_total{reason=\"no_decode_worker\"}"), 1);
  // The wait counts from the worker's leaving: who comes later than that does not wait.
  const auto start = steady_clock::now();
  EXPECT_EQ(ErrorCode(Chat()), "no_decode_worker");
  EXPECT_LT(steady_clock::now() - start, Allowed(milliseconds(300)));
}

TEST_F(WorkerWaitTest, ARoleThatNeverHadAWorkerIsRefusedAtOnce) {
  RouterConfig config = Config();
  config.worker_wait = milliseconds(60'000);
  StartRouter(config);
  EXPECT_EQ(ErrorCode(Chat()), "no_prefill_worker");
  AddPrefill();
  ASSERT_TRUE(Eventually([&] { return ErrorCode(Chat()) == "no_decode_worker"; }));
}

TEST_F(WorkerWaitTest, ZeroRefusesAtOnce) {
  StartPair(milliseconds(0));
  KillPrefill();
  EXPECT_EQ(ErrorCode(Chat()), "no_prefill_worker");
}

TEST_F(WorkerWaitTest, AClientThatLeavesFreesItsPlace) {
  StartPair(milliseconds(60'000), /*queue_size=*/1);
  KillPrefill();
  const auto waiting = Ask();
  ASSERT_TRUE(SomeWait(1));
  EXPECT_EQ(ErrorCode(Chat()), "queue_full");
  waiting->Close();
  ASSERT_TRUE(SomeWait(0));
  EXPECT_EQ(Metric("lodestone_requests_total{code=\"499\",finish_reason=\"cancelled\"}"), 1);
  const auto next = Ask();
  ASSERT_TRUE(SomeWait(1));
  AddPrefill();
  EXPECT_EQ(ContentOf(next->Receive()), kAnswer);
}

TEST_F(WorkerWaitTest, WhoWaitsIsServedInTurnAndMoreThanTheQueueHoldsAreRefused) {
  StartPair(milliseconds(60'000), /*queue_size=*/3);
  KillDecode();
  std::vector<std::unique_ptr<HttpClient>> waiting;
  for (int i = 0; i < 3; ++i) waiting.push_back(Ask());
  ASSERT_TRUE(SomeWait(3));
  const ClientResponse refused = Chat();
  EXPECT_EQ(refused.status, 429);
  EXPECT_EQ(ErrorCode(refused), "queue_full");
  AddDecode();
  for (const auto& client : waiting) EXPECT_EQ(ContentOf(client->Receive()), kAnswer);
  EXPECT_TRUE(decodes_.back()->WaitIdle());
}

TEST_F(WorkerWaitTest, ItsOwnDeadlineEndsTheWaitWith504) {
  RouterConfig config = Config();
  config.worker_wait = milliseconds(60'000);
  config.request_timeout = milliseconds(400);
  StartRouter(config);
  StartWorkers(kAnswer);
  KillPrefill();
  EXPECT_EQ(Chat().status, 504);
}

}  // namespace
}  // namespace lodestone
