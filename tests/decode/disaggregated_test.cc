// Prefill and decode processes of this test binary, over real gRPC and TCP on loopback, with the
// bundled model.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/failpoint.h"
#include "tests/decode/worker_pair.h"

namespace lodestone {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::SizeIs;

// Chunks of 64 tokens, so that a prompt of a few hundred takes many steps.
PrefillConfig SmallPrefill(const std::string& chunk_tokens = "64") {
  PrefillConfig config;
  config.worker = SmallWorkerConfig();
  config.chunk_tokens = chunk_tokens;
  config.grpc_port = config.metrics_port = 0;
  return config;
}

DecodeConfig SmallDecode() {
  DecodeConfig config;
  config.worker = SmallWorkerConfig();
  config.grpc_port = config.metrics_port = 0;
  return config;
}

SamplingParams Greedy(int32_t max_new_tokens) {
  return {.ignore_eos = true, .max_new_tokens = max_new_tokens, .logprobs = true};
}

class DisaggregatedTest : public testing::Test {
 protected:
  RunningPrefill prefill_{SmallPrefill()};
  RunningDecode decode_{SmallDecode()};
};

TEST_F(DisaggregatedTest, AnswersEqualThoseOfOneProcess) {
  std::vector<GenerateInput> inputs;
  for (int64_t length : {1, 5, 64, 127, 128, 129, 255, 300, 513, 700}) {
    inputs.push_back({SomePrompt(length, static_cast<uint64_t>(length)), Greedy(12)});
  }
  inputs.back().sampling.temperature = 0.8;
  inputs.back().sampling.seed = 7;
  inputs.back().sampling.top_logprobs = 3;
  std::vector<std::unique_ptr<ScriptedRequest>> requests;
  std::vector<std::thread> threads;
  for (const GenerateInput& input : inputs) {
    requests.push_back(
        std::make_unique<ScriptedRequest>(prefill_, decode_, input.tokens, input.sampling));
  }
  // Two at a time: they share steps, and fit into the 8 sequences of a worker.
  for (size_t first : {size_t{0}, size_t{1}}) {
    threads.emplace_back([&, first] {
      for (size_t i = first; i < requests.size(); i += 2) {
        EXPECT_EQ(requests[i]->Answer(), absl::OkStatus());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();

  const auto engine = Engine::Create(SmallEngineOptions(SmallWorkerConfig())).value();
  const std::vector<GenerateOutput> expected =
      Generate(*engine, inputs, {.max_sequences = 1}).value();
  for (size_t i = 0; i < inputs.size(); ++i) {
    EXPECT_EQ(requests[i]->tokens(), expected[i].tokens) << inputs[i].tokens.size() << " tokens";
    EXPECT_EQ(requests[i]->finish(), FinishReason::kLength);
  }
  EXPECT_TRUE(prefill_.BecomesIdle());
  EXPECT_TRUE(decode_.BecomesIdle());
}

TEST_F(DisaggregatedTest, ARequestThatEndsWithItsFirstTokenIsNotHandedOver) {
  ScriptedRequest request(prefill_, decode_, SomePrompt(100, 1), Greedy(1));
  ASSERT_EQ(request.Answer(), absl::OkStatus());
  EXPECT_EQ(request.finish(), FinishReason::kLength);
  EXPECT_THAT(request.tokens(), SizeIs(1));
  request.Cancel();  // as a router does with a lease that it has no use for
  EXPECT_TRUE(prefill_.BecomesIdle());
  EXPECT_TRUE(decode_.BecomesIdle());
}

TEST_F(DisaggregatedTest, CancelWhileThePromptIsComputedFreesBothSides) {
  ScriptedRequest request(prefill_, decode_, SomePrompt(3500, 1), Greedy(10));
  ASSERT_EQ(request.Reserve(), absl::OkStatus());
  request.Subscribe();
  absl::Status status;
  std::thread run([&] { status = request.Run(); });
  EXPECT_TRUE(Eventually([&] { return prefill_.GetStatus().load().running_requests() == 1; }));
  request.CancelRun();
  run.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
  // Decode hears of it from prefill, or here.
  request.Cancel();
  request.ReadToEnd();
  EXPECT_EQ(request.num_terminal_events(), 1);
  EXPECT_TRUE(prefill_.BecomesIdle());
  EXPECT_TRUE(decode_.BecomesIdle());
}

TEST_F(DisaggregatedTest, CancelWhileDecodingReleasesTheReservationOnce) {
  ScriptedRequest request(prefill_, decode_, SomePrompt(100, 1), Greedy(3900));
  ASSERT_EQ(request.Reserve(), absl::OkStatus());
  request.Subscribe();
  ASSERT_EQ(request.Run(), absl::OkStatus());
  while (request.tokens().size() < 5) ASSERT_TRUE(request.ReadEvent());
  EXPECT_EQ(request.Cancel(), request.reserved_bytes());
  EXPECT_EQ(request.Cancel(), 0);
  request.ReadToEnd();
  EXPECT_EQ(request.finish(), FinishReason::kCancelled);
  EXPECT_EQ(request.num_terminal_events(), 1);
  EXPECT_TRUE(decode_.BecomesIdle());
  EXPECT_TRUE(prefill_.BecomesIdle());
}

TEST_F(DisaggregatedTest, ABrokenTokenStreamEndsItsRequests) {
  {
    ScriptedRequest request(prefill_, decode_, SomePrompt(100, 1), Greedy(3900));
    ASSERT_EQ(request.Reserve(), absl::OkStatus());
    request.Subscribe();
    ASSERT_EQ(request.Run(), absl::OkStatus());
    ASSERT_TRUE(request.ReadEvent());
  }
  EXPECT_TRUE(decode_.BecomesIdle());
}

TEST_F(DisaggregatedTest, AnotherLayoutIsRefusedNamingTheField) {
  PrefillConfig config = SmallPrefill();
  config.worker.index_k = "fp8";
  const RunningPrefill other(config);
  ScriptedRequest request(other, decode_, SomePrompt(40, 1), Greedy(4));
  const absl::Status status = request.Answer();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("index_k"));
  EXPECT_THAT(std::string(status.message()), ContainsRegex("bf16.*fp8|fp8.*bf16"));
  EXPECT_TRUE(other.BecomesIdle());
  request.Cancel();
  EXPECT_TRUE(decode_.BecomesIdle());
}

TEST_F(DisaggregatedTest, DeathOfDecodeWhileThePromptIsComputedEndsTheRequest) {
  DecodeConfig config = SmallDecode();
  config.worker.drain_timeout = std::chrono::milliseconds(0);
  RunningDecode dying(config);
  ScriptedRequest request(prefill_, dying, SomePrompt(3500, 1), Greedy(10));
  ASSERT_EQ(request.Reserve(), absl::OkStatus());
  request.Subscribe();
  absl::Status status;
  std::thread run([&] { status = request.Run(); });
  EXPECT_TRUE(Eventually([&] { return prefill_.GetStatus().load().running_requests() == 1; }));
  EXPECT_EQ(dying.Stop(), absl::OkStatus());
  run.join();
  EXPECT_FALSE(status.ok());
  EXPECT_TRUE(prefill_.BecomesIdle());
}

TEST_F(DisaggregatedTest, AfterAFailureOfTheEngineRequestsMayRunElsewhere) {
  if (!kFailpointsEnabled) GTEST_SKIP() << "built without failpoints";
  ScriptedRequest request(prefill_, decode_, SomePrompt(50, 1), Greedy(200));
  ASSERT_TRUE(failpoint::Arm("decode_step", "error(INTERNAL)").ok());
  const absl::Status answer = request.Answer();
  failpoint::DisarmAll();
  EXPECT_EQ(answer.code(), absl::StatusCode::kUnavailable) << answer;
  EXPECT_THAT(std::string(answer.message()), HasSubstr("the worker ends: "));
  EXPECT_EQ(decode_.Stop().code(), absl::StatusCode::kInternal);
}

TEST_F(DisaggregatedTest, DrainingFinishesWhatRunsAndTakesNothingNew) {
  ScriptedRequest request(prefill_, decode_, SomePrompt(50, 1), Greedy(200));
  ASSERT_EQ(request.Reserve(), absl::OkStatus());
  request.Subscribe();
  ASSERT_EQ(request.Run(), absl::OkStatus());
  ASSERT_TRUE(request.ReadEvent());
  decode_.RequestStop();
  EXPECT_TRUE(
      Eventually([&] { return decode_.GetStatus().load().state() != v1::WORKER_STATE_READY; }));
  ScriptedRequest late(prefill_, decode_, SomePrompt(50, 2), Greedy(4));
  EXPECT_EQ(late.Reserve().code(), absl::StatusCode::kUnavailable);
  request.ReadToEnd();
  EXPECT_EQ(request.finish(), FinishReason::kLength);
  EXPECT_THAT(request.tokens(), SizeIs(200));
  EXPECT_EQ(decode_.Stop(), absl::OkStatus());
}

// A router that names a lease after a drained worker has done its last step must not cost the
// tokens that wait behind a write: here, because the router has not read for a while.
TEST_F(DisaggregatedTest, TheLastTokensOfADrainedWorkerArriveWhateverIsNamed) {
  constexpr int32_t kTokens = 1000;
  SamplingParams sampling = Greedy(kTokens);
  sampling.top_logprobs = 20;  // more bytes than gRPC holds for a client that does not read
  ScriptedRequest request(prefill_, decode_, SomePrompt(20, 1), sampling);
  ASSERT_EQ(request.Reserve(), absl::OkStatus());
  request.NameEvery(std::chrono::milliseconds(5));
  request.Subscribe();
  ASSERT_EQ(request.Run(), absl::OkStatus());
  decode_.RequestStop();
  EXPECT_TRUE(Eventually([&] { return decode_.GetStatus().live_leases() == 0; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // and it is named
  request.ReadToEnd();
  EXPECT_EQ(request.finish(), FinishReason::kLength);
  EXPECT_THAT(request.tokens(), SizeIs(kTokens));
  EXPECT_EQ(decode_.Stop(), absl::OkStatus());
}

}  // namespace
}  // namespace lodestone
