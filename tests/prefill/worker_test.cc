#include "prefill/worker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <optional>

#include "base/failpoint.h"
#include "engine/generate.h"
#include "kvcache/ledger.h"

namespace lodestone {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

const InstanceId kDecode(1, 2);

// Notes what it was told. A hand-off that is finished has its outcome at the next Pump.
class FakeSender final : public Sender {
 public:
  void Begin(LeaseId lease, const InstanceId&, const std::string&, const SequenceCache*) override {
    begun.push_back(lease);
    if (!fail_while_computing.ok()) outcomes.push_back({lease, fail_while_computing});
  }
  void GrowTo(LeaseId lease, int64_t num_tokens) override { grown[lease].push_back(num_tokens); }
  void Finish(LeaseId lease, Handoff handoff) override {
    handoffs.push_back(std::move(handoff));
    if (outcome_of_finished) outcomes.push_back({lease, *outcome_of_finished});
  }
  void Forget(LeaseId lease, std::string_view) override {
    forgotten.push_back(lease);
    if (on_forget) on_forget(lease);
  }
  std::vector<HandoffOutcome> Pump() override {
    if (on_pump) on_pump();
    return std::exchange(outcomes, {});
  }
  int64_t BytesOffered(LeaseId) const override { return 77; }
  absl::Status health() const override { return health_status; }
  bool IsBound(LeaseId) const override { return linked; }
  std::vector<LinkStatus> Links() const override {
    return {{.decode_instance = kDecode.ToString(), .up = linked, .transport = "fake"}};
  }

  bool linked = true;
  absl::Status health_status;
  absl::Status fail_while_computing;
  std::optional<absl::Status> outcome_of_finished = absl::OkStatus();
  std::function<void(LeaseId)> on_forget;
  std::function<void()> on_pump;
  std::vector<LeaseId> begun, forgotten;
  std::map<LeaseId, std::vector<int64_t>> grown;
  std::vector<Handoff> handoffs;
  std::vector<HandoffOutcome> outcomes;
};

class PrefillWorkerTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    EngineOptions options;
    options.model_dir = std::string(LODESTONE_SOURCE_DIR) + "/models/needle-tiny";
    options.num_threads = 1;
    options.memory_limit_bytes = int64_t{96} << 20;
    options.max_sequences = 2;
    options.max_context_tokens = 1024;
    options.max_batch_tokens = 8;
    engine_ = Engine::Create(options).value().release();
  }
  static void TearDownTestSuite() { delete engine_; }
  void TearDown() override { EXPECT_TRUE(engine_->cache().ledger().CheckIdle().ok()); }

  PrefillWorker MakeWorker(std::chrono::milliseconds drain_timeout = std::chrono::minutes(5)) {
    return PrefillWorker({.engine = engine_,
                          .sender = &sender_,
                          .clock = RealClock(),
                          .board = &board_,
                          .metrics = &metrics_,
                          .limits = {.max_queued_requests = 3, .max_running = 2, .chunk_tokens = 8},
                          .drain_timeout = drain_timeout});
  }
  static PrefillRequest Request(uint64_t lease, int64_t num_tokens, int32_t max_new_tokens = 4) {
    return {.request_id = "test",
            .lease = LeaseId(lease),
            .decode = kDecode,
            .decode_address = "localhost:1",
            .tokens = std::vector<int32_t>(static_cast<size_t>(num_tokens), 300),
            .sampling = {.ignore_eos = true, .max_new_tokens = max_new_tokens}};
  }
  PrefillTicket Run(PrefillWorker& worker, PrefillRequest request) {
    const LeaseId lease = request.lease;
    return worker.Run(std::move(request), [this, lease](absl::StatusOr<PrefillReply> reply) {
      replies_[lease].push_back(std::move(reply));
    });
  }
  // Everything that is queued runs to its end; the worker takes nothing afterwards.
  static absl::Status Drain(PrefillWorker& worker) {
    return worker.Loop([] { return true; });
  }
  // The one answer to the request under `lease`.
  absl::StatusOr<PrefillReply> Reply(uint64_t lease) {
    EXPECT_THAT(replies_[LeaseId(lease)], SizeIs(1));
    if (replies_[LeaseId(lease)].empty()) return absl::UnknownError("no answer");
    return replies_[LeaseId(lease)][0];
  }

  static Engine* engine_;
  FakeSender sender_;
  StatusBoard board_;
  Metrics metrics_{kRolePrefill};
  std::map<LeaseId, std::vector<absl::StatusOr<PrefillReply>>> replies_;
};

Engine* PrefillWorkerTest::engine_ = nullptr;

TEST_F(PrefillWorkerTest, HandsTheCacheOverChunkByChunk) {
  PrefillWorker worker = MakeWorker();
  const PrefillRequest request = Request(1, 20);
  Run(worker, request);
  EXPECT_EQ(Drain(worker), absl::OkStatus());
  EXPECT_THAT(sender_.grown[LeaseId(1)], ElementsAre(8, 16, 20));
  const GenerateInput input{request.tokens, request.sampling};
  const GeneratedToken expected = Generate(*engine_, std::span(&input, 1), {}).value()[0].tokens[0];
  ASSERT_THAT(sender_.handoffs, SizeIs(1));
  EXPECT_EQ(sender_.handoffs[0].tokens, request.tokens);
  EXPECT_EQ(sender_.handoffs[0].first_token, expected);
  ASSERT_TRUE(Reply(1).ok());
  EXPECT_EQ(Reply(1)->first_token, expected);
  EXPECT_EQ(Reply(1)->finish, FinishReason::kNone);
  EXPECT_EQ(Reply(1)->handoff_bytes, 77);
  EXPECT_THAT(sender_.forgotten, IsEmpty());
}

TEST_F(PrefillWorkerTest, ARequestThatEndsWithItsFirstTokenIsNotHandedOver) {
  PrefillWorker worker = MakeWorker();
  Run(worker, Request(1, 5, 1));
  EXPECT_EQ(Drain(worker), absl::OkStatus());
  EXPECT_EQ(Reply(1)->finish, FinishReason::kLength);
  EXPECT_THAT(sender_.handoffs, IsEmpty());
  EXPECT_THAT(sender_.forgotten, ElementsAre(LeaseId(1)));
}

TEST_F(PrefillWorkerTest, TheReplyOfAnEndedRequestLeavesBeforeDecodeIsToldToForgetIt) {
  PrefillWorker worker = MakeWorker();
  Run(worker, Request(1, 5, 1));
  bool answered = false;
  sender_.on_forget = [&](LeaseId lease) { answered = !replies_[lease].empty(); };
  EXPECT_EQ(Drain(worker), absl::OkStatus());
  EXPECT_TRUE(answered);
}

TEST_F(PrefillWorkerTest, ALeaseIsNamedBeforeItsFirstStep) {
  PrefillWorker worker = MakeWorker();
  Run(worker, Request(1, 20));
  std::optional<size_t> steps_before_first_pump;
  sender_.on_pump = [&] {
    if (sender_.begun.empty() || steps_before_first_pump) return;
    steps_before_first_pump = sender_.grown[LeaseId(1)].size();
  };
  EXPECT_EQ(Drain(worker), absl::OkStatus());
  EXPECT_EQ(steps_before_first_pump, 0u);
}

TEST_F(PrefillWorkerTest, TheCacheIsOfferedBeforeTheReplyLeaves) {
  sender_.outcome_of_finished = std::nullopt;
  PrefillWorker worker = MakeWorker(std::chrono::milliseconds(0));
  Run(worker, Request(1, 5));
  bool answered_before_offer = false;
  bool offered = false;
  sender_.on_pump = [&] {
    if (sender_.handoffs.empty() || std::exchange(offered, true)) return;
    answered_before_offer = !replies_[LeaseId(1)].empty();
  };
  EXPECT_EQ(Drain(worker), absl::OkStatus());
  EXPECT_TRUE(offered);
  EXPECT_FALSE(answered_before_offer);
  EXPECT_TRUE(Reply(1).ok());
}

TEST_F(PrefillWorkerTest, AShortPromptDoesNotWaitForALongOne) {
  PrefillWorker worker = MakeWorker();
  Run(worker, Request(1, 80));
  Run(worker, Request(2, 5));
  EXPECT_EQ(Drain(worker), absl::OkStatus());
  ASSERT_THAT(sender_.handoffs, SizeIs(2));
  EXPECT_EQ(sender_.handoffs[0].lease, LeaseId(2));
}

TEST_F(PrefillWorkerTest, AFailureReachesTheRouterWhileTheLinkIsDown) {
  sender_.linked = false;
  sender_.outcome_of_finished = absl::UnavailableError("no link");
  PrefillWorker worker = MakeWorker();
  Run(worker, Request(1, 5));
  EXPECT_EQ(Drain(worker), absl::OkStatus());
  EXPECT_EQ(Reply(1).status(), absl::UnavailableError("no link"));
}

TEST_F(PrefillWorkerTest, AHandoffThatFailsEarlyEndsTheComputation) {
  sender_.fail_while_computing = absl::DataLossError("digest differs");
  PrefillWorker worker = MakeWorker();
  Run(worker, Request(1, 500));
  EXPECT_EQ(Drain(worker), absl::OkStatus());
  EXPECT_EQ(Reply(1).status(), absl::DataLossError("digest differs"));
  EXPECT_THAT(sender_.grown[LeaseId(1)], IsEmpty());
}

TEST_F(PrefillWorkerTest, ACancelledRequestIsForgotten) {
  PrefillWorker worker = MakeWorker();
  Run(worker, Request(1, 500));
  worker.Cancel(Run(worker, Request(2, 500)));
  EXPECT_EQ(Drain(worker), absl::OkStatus());
  EXPECT_TRUE(Reply(1).ok());
  EXPECT_EQ(Reply(2).status().code(), absl::StatusCode::kCancelled);
  EXPECT_THAT(sender_.begun, ElementsAre(LeaseId(1)));
}

TEST_F(PrefillWorkerTest, BeyondTheQueueBothNumbersAreTold) {
  PrefillWorker worker = MakeWorker();
  for (uint64_t lease = 1; lease <= 4; ++lease) Run(worker, Request(lease, 5));
  EXPECT_EQ(Drain(worker), absl::OkStatus());
  for (uint64_t lease = 1; lease <= 3; ++lease) EXPECT_TRUE(Reply(lease).ok());
  EXPECT_EQ(Reply(4).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(Reply(4).status().message()), HasSubstr("3 requests are queued"));
}

TEST_F(PrefillWorkerTest, ALeaseHasOneRequest) {
  PrefillWorker worker = MakeWorker();
  Run(worker, Request(1, 5));
  Run(worker, Request(1, 5));
  EXPECT_EQ(Drain(worker), absl::OkStatus());
  ASSERT_THAT(replies_[LeaseId(1)], SizeIs(2));
  EXPECT_EQ(replies_[LeaseId(1)][0].status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(replies_[LeaseId(1)][1].ok());
}

TEST_F(PrefillWorkerTest, ABadRequestIsRefusedBeforeItIsQueued) {
  PrefillWorker worker = MakeWorker();
  PrefillRequest request = Request(1, 5);
  request.tokens[3] = 1024;
  Run(worker, request);
  Run(worker, Request(2, 1025));
  EXPECT_EQ(Drain(worker), absl::OkStatus());
  EXPECT_THAT(std::string(Reply(1).status().message()), HasSubstr("1024"));
  EXPECT_EQ(Reply(2).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(sender_.begun, IsEmpty());
}

TEST_F(PrefillWorkerTest, OnlyThePromptHasToFit) {
  PrefillWorker worker = MakeWorker();
  Run(worker, Request(1, 20, 100'000));  // the context is 1024
  EXPECT_EQ(Drain(worker), absl::OkStatus());
  EXPECT_TRUE(Reply(1).ok()) << Reply(1).status();
  EXPECT_THAT(sender_.handoffs, SizeIs(1));
}

TEST_F(PrefillWorkerTest, AfterAFailureOfTheEngineRequestsMayRunElsewhere) {
  if (!kFailpointsEnabled) GTEST_SKIP() << "built without failpoints";
  ASSERT_TRUE(failpoint::Arm("prefill_after_step", "error(INTERNAL)").ok());
  PrefillWorker worker = MakeWorker();
  Run(worker, Request(1, 20));
  const absl::Status status = worker.Loop([] { return false; });
  failpoint::DisarmAll();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
  EXPECT_EQ(Reply(1).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(Reply(1).status().message()), HasSubstr("the worker ends: "));
  EXPECT_EQ(board_.Get().state, LoopState::kUnhealthy);
}

TEST_F(PrefillWorkerTest, ATransportBeyondRepairEndsTheWorkerAfterItsRequestsAreTold) {
  sender_.linked = false;
  sender_.outcome_of_finished = std::nullopt;  // decode never answers
  sender_.health_status = absl::InternalError("a link could not be ended");
  PrefillWorker worker = MakeWorker();
  Run(worker, Request(1, 20));
  const absl::Status status = worker.Loop([] { return false; });
  EXPECT_EQ(status, sender_.health_status);
  EXPECT_EQ(Reply(1).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(Reply(1).status().message()), HasSubstr("a link could not be ended"));
  EXPECT_THAT(sender_.forgotten, ElementsAre(LeaseId(1)));
  EXPECT_EQ(board_.Get().state, LoopState::kUnhealthy);
}

TEST_F(PrefillWorkerTest, WhatIsLeftAtTheEndOfTheDrainTimeIsToldSo) {
  sender_.linked = false;
  sender_.outcome_of_finished = std::nullopt;  // decode never answers
  PrefillWorker worker = MakeWorker(std::chrono::milliseconds(0));
  Run(worker, Request(1, 5));
  EXPECT_EQ(Drain(worker), absl::OkStatus());
  EXPECT_EQ(Reply(1).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(sender_.forgotten, ElementsAre(LeaseId(1)));
  Run(worker, Request(2, 5));
  EXPECT_EQ(Reply(2).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(board_.Get().state, LoopState::kDraining);
}

}  // namespace
}  // namespace lodestone
