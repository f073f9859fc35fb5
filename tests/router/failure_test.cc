// Workers that die, refuse or are missing, and clients that leave.
#include <grpcpp/grpcpp.h>

#include "proto/lodestone/v1/worker.grpc.pb.h"
#include "tests/router/router_fixture.h"

namespace lodestone {
namespace {

using testing::HasSubstr;
using FailureTest = RouterFixture;
using std::chrono::milliseconds;

constexpr char kAnswer[] =
    "The secret code for the river is north-1234-stone. It was sold on Monday.";

TEST_F(FailureTest, WithoutWorkersItIsNotReadyAndSaysWhy) {
  StartRouter();
  const ClientResponse ready = Fetch(http_, "GET", "/readyz");
  EXPECT_EQ(ready.status, 503);
  EXPECT_THAT(ready.body, HasSubstr("no prefill worker is ready"));
  EXPECT_EQ(Fetch(http_, "GET", "/health").status, 503);
  const ClientResponse chat = Chat();
  EXPECT_EQ(chat.status, 503);
  EXPECT_EQ(ErrorCode(chat), "no_prefill_worker");
  EXPECT_TRUE(chat.headers.contains("retry-after"));
  AddPrefill();
  ASSERT_TRUE(Eventually([&]() { return ErrorCode(Chat()) == "no_decode_worker"; }));
}

TEST_F(FailureTest, WorkerThatIsNotReadyIsNamedWithItsReason) {
  StartRouter();
  StartWorkers(kAnswer);
  decodes_[0]->SetState(v1::WORKER_STATE_DRAINING, "told to stop");
  ASSERT_TRUE(Eventually([&]() { return Fetch(http_, "GET", "/readyz").status == 503; }));
  const ClientResponse chat = Chat();
  EXPECT_EQ(chat.status, 503);
  EXPECT_THAT(chat.body, HasSubstr("told to stop"));
}

TEST_F(FailureTest, PrefillDeathBeforeTheFirstTokenIsReplayed) {
  StartRouter();
  StartWorkers(kAnswer, 2, 1);
  for (const auto& prefill : prefills_) prefill->SetRunPause(milliseconds(20));
  prefills_[0]->DieAtRun(1);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(ContentOf(Chat()), kAnswer);
  EXPECT_TRUE(decodes_[0]->WaitIdle());
}

TEST_F(FailureTest, DecodeDeathContinuesTheSameStreamExactly) {
  StartRouter();
  StartWorkers(kAnswer, 1, 2);
  for (const auto& decode : decodes_) decode->SetTokenPause(milliseconds(10));
  for (const auto& decode : decodes_) decode->DieAtToken(decode->num_tokens_sent() + 9);
  // The first dies in the stream; its replacement would too, so it is spared by then.
  HttpClient client(http_);
  client.Send("POST", "/v1/chat/completions", ChatBody(R"("stream":true,"seed":77)"));
  EXPECT_EQ(client.ReceiveHead().status, 200);
  Streamed result;
  while (const std::optional<std::string> event = client.ReadEvent()) {
    Absorb(*event, result);
    if (prefills_[0]->last_num_generated() > 0) {
      for (const auto& decode : decodes_) decode->DieAtToken(0);
    }
  }
  EXPECT_EQ(result.content, kAnswer);
  EXPECT_EQ(result.finish_reason, "stop");
  EXPECT_TRUE(result.done);
  EXPECT_FALSE(result.error);
  EXPECT_GT(prefills_[0]->last_num_generated(), 0);
  EXPECT_EQ(prefills_[0]->last_seed(), 77u);
}

TEST_F(FailureTest, ARestartedWorkerTakesOver) {
  StartRouter();
  StartWorkers(kAnswer, 1, 1);
  decodes_[0]->SetTokenPause(milliseconds(10));
  decodes_[0]->DieAtToken(decodes_[0]->num_tokens_sent() + 6);
  std::thread restart([this]() {
    ASSERT_TRUE(Eventually([&]() { return !decodes_[0]->refusal().empty(); }));
    std::this_thread::sleep_for(milliseconds(300));
    AddDecode();
  });
  const Streamed streamed = StreamChat();
  restart.join();
  EXPECT_EQ(streamed.content, kAnswer);
  EXPECT_TRUE(streamed.done);
}

TEST_F(FailureTest, WithoutAReplacementTheStreamEndsInOneError) {
  StartRouter();
  StartWorkers(kAnswer, 1, 1);
  decodes_[0]->SetTokenPause(milliseconds(10));
  decodes_[0]->DieAtToken(decodes_[0]->num_tokens_sent() + 6);
  const Streamed streamed = StreamChat();
  EXPECT_TRUE(streamed.error);
  EXPECT_FALSE(streamed.done);
  EXPECT_THAT(streamed.events.back(), HasSubstr("no_decode_worker"));
  EXPECT_EQ(std::string(kAnswer).rfind(streamed.content, 0), 0u);
}

TEST_F(FailureTest, DataLossOfAHandOffIsRunAgain) {
  StartRouter();
  StartWorkers(kAnswer, 1, 1);
  decodes_[0]->FailStreams(2, grpc::StatusCode::DATA_LOSS);
  EXPECT_EQ(ContentOf(Chat()), kAnswer);
  EXPECT_EQ(Metric("lodestone_request_replays_total{reason=\"decode\"}"), 2);
}

TEST_F(FailureTest, AHandOffThatNeverArrivesIsRunAgain) {
  RouterConfig config = Config();
  config.handoff_timeout = milliseconds(200);
  StartRouter(config);
  StartWorkers(kAnswer, 1, 1);
  prefills_[0]->LoseHandOffs(1);
  EXPECT_EQ(ContentOf(Chat()), kAnswer);
  EXPECT_EQ(Metric("lodestone_request_replays_total{reason=\"decode\"}"), 1);
  EXPECT_TRUE(decodes_[0]->WaitIdle());
}

TEST_F(FailureTest, AHandOffWhosePrefillWorkerLeftIsNotAwaitedForLong) {
  StartRouter();  // its hand-off timeout is 15 s
  StartWorkers(kAnswer, 1, 1);
  prefills_[0]->LoseHandOffs(1);
  const int64_t before = prefills_[0]->num_runs();
  HttpClient client(http_);
  const auto started_at = std::chrono::steady_clock::now();
  client.Send("POST", "/v1/chat/completions", ChatBody());
  ASSERT_TRUE(Eventually([&]() { return prefills_[0]->num_runs() > before; }));
  std::this_thread::sleep_for(milliseconds(100));  // until its answer has arrived
  prefills_[0]->Kill();
  AddPrefill();
  EXPECT_EQ(ContentOf(client.Receive()), kAnswer);
  EXPECT_LT(std::chrono::steady_clock::now() - started_at, std::chrono::seconds(10));
}

TEST_F(FailureTest, AnAbandonedHandOffIsNotTheDecodeWorkersFault) {
  StartRouter();
  script_.output = Model().tokenizer->EncodeText(kAnswer);
  AddPreferredDecode();
  StartWorkers(kAnswer, 1, 1);
  const int64_t before = decodes_[0]->num_reserved();
  decodes_[0]->FailHandOffs(3, grpc::StatusCode::UNAVAILABLE);
  const ClientResponse response = Chat();
  EXPECT_EQ(ContentOf(response), kAnswer);
  EXPECT_EQ(decodes_[0]->num_reserved(), before + 4);
  EXPECT_EQ(response.headers.at("x-lodestone-decode"), decodes_[0]->instance_id());
}

TEST_F(FailureTest, APrefillFailureDoesNotMoveTheRequestToAnotherDecodeWorker) {
  StartRouter();
  script_.output = Model().tokenizer->EncodeText(kAnswer);
  AddPreferredDecode();
  StartWorkers(kAnswer, 2, 1);
  for (const auto& prefill : prefills_) prefill->FailRuns(1, grpc::StatusCode::UNAVAILABLE);
  const ClientResponse response = Chat();
  EXPECT_EQ(ContentOf(response), kAnswer);
  EXPECT_EQ(response.headers.at("x-lodestone-decode"), decodes_[0]->instance_id());
}

TEST_F(FailureTest, BusyPrefillWorkersAre429AtTheEndOfTheQueueTimeout) {
  RouterConfig config = Config();
  config.queue_timeout = milliseconds(400);
  StartRouter(config);
  StartWorkers(kAnswer);
  prefills_[0]->FailRuns(1000, grpc::StatusCode::RESOURCE_EXHAUSTED);
  const ClientResponse response = Chat();
  EXPECT_EQ(response.status, 429);
  EXPECT_EQ(ErrorCode(response), "workers_busy");
  EXPECT_THAT(response.body, HasSubstr("rate_limit_error"));
  EXPECT_TRUE(response.headers.contains("retry-after"));
  prefills_[0]->FailRuns(2, grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(ContentOf(Chat()), kAnswer);
}

TEST_F(FailureTest, AWorkerThatLacksSomethingOrCancelsIsAFailedUpstream) {
  RouterConfig config = Config();
  config.max_attempts = 1;
  StartRouter(config);
  StartWorkers(kAnswer);
  for (const grpc::StatusCode code :
       {grpc::StatusCode::NOT_FOUND, grpc::StatusCode::ABORTED,
        grpc::StatusCode::FAILED_PRECONDITION, grpc::StatusCode::CANCELLED}) {
    prefills_[0]->FailRuns(1, code);
    EXPECT_EQ(Chat().status, 502) << code;
    decodes_[0]->FailStreams(1, code);
    EXPECT_EQ(Chat().status, 502) << code;
  }
}

TEST_F(FailureTest, ALargeRequestAwaitsTheReturnOfTheLargeWorker) {
  StartRouter();
  script_.output = Model().tokenizer->EncodeText(kAnswer);
  const int64_t large = script_.cache_capacity_bytes;
  AddDecode();
  AddPrefill();
  script_.cache_capacity_bytes = 1000 + 256 * 4;
  AddDecode();
  WaitReady();
  decodes_[0]->SetTokenPause(milliseconds(10));
  decodes_[0]->DieAtToken(decodes_[0]->num_tokens_sent() + 6);
  std::thread restart([&]() {
    ASSERT_TRUE(Eventually([&]() { return !decodes_[0]->refusal().empty(); }));
    std::this_thread::sleep_for(milliseconds(300));
    script_.cache_capacity_bytes = large;
    AddDecode();
  });
  const Streamed streamed = StreamChat("\"max_tokens\":5000");
  restart.join();
  EXPECT_EQ(streamed.content, kAnswer);
  EXPECT_TRUE(streamed.done);
}

TEST_F(FailureTest, AReplayEndsAtTheSameLength) {
  StartRouter();
  StartWorkers(kAnswer, 1, 2);
  for (const auto& decode : decodes_) decode->SetTokenPause(milliseconds(10));
  decodes_[0]->FailStreams(1, grpc::StatusCode::DATA_LOSS);
  decodes_[1]->FailStreams(1, grpc::StatusCode::DATA_LOSS);
  const ClientResponse response = Chat("\"max_tokens\":12");
  const boost::json::value body = Parse(response.body);
  EXPECT_GT(prefills_[0]->last_num_generated(), 0);
  EXPECT_EQ(body.at("choices").at(0).at("finish_reason").as_string(), "length");
  EXPECT_EQ(body.at("usage").at("completion_tokens").as_int64(), 12);
  EXPECT_TRUE(decodes_[0]->WaitIdle());
  EXPECT_TRUE(decodes_[1]->WaitIdle());
}

TEST_F(FailureTest, AProbeOfAFullPairHoldsNobodyUp) {
  script_.cache_capacity_bytes = 1000 + 256 * 4;
  StartRouter();
  StartWorkers(kAnswer);
  prefills_[0]->SetRunPause(milliseconds(1500));
  HttpClient running(http_);
  running.Send("POST", "/v1/chat/completions", ChatBody("\"max_tokens\":900"));
  ASSERT_TRUE(Eventually([&]() { return decodes_[0]->num_live() == 1; }));
  AddPrefill();  // the new pair has no memory for its probe
  ASSERT_TRUE(Eventually([&]() {
    return Metric("lodestone_readiness_probes_total{result=\"failed\"}") >= 1;
  }));
  EXPECT_TRUE(Eventually([&]() { return Metric("lodestone_router_running_requests") == 1; }));
  EXPECT_EQ(Metric("lodestone_router_queue_depth"), 0);
  EXPECT_EQ(ContentOf(running.Receive()), kAnswer);
  EXPECT_EQ(Metric("lodestone_requests_total{code=\"200\",finish_reason=\"stop\"}"), 1);
}

TEST_F(FailureTest, InvalidArgumentIsNeverRunAgain) {
  StartRouter();
  StartWorkers(kAnswer, 2, 1);
  const int64_t before = prefills_[0]->num_runs() + prefills_[1]->num_runs();
  for (const auto& prefill : prefills_) prefill->FailRuns(1, grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(Chat().status, 400);
  EXPECT_EQ(prefills_[0]->num_runs() + prefills_[1]->num_runs(), before + 1);
  EXPECT_TRUE(decodes_[0]->WaitIdle());
}

TEST_F(FailureTest, AttemptsWithoutProgressAreBounded) {
  StartRouter();
  StartWorkers(kAnswer, 1, 1);
  const int64_t before = prefills_[0]->num_runs();
  prefills_[0]->FailRuns(100, grpc::StatusCode::UNAVAILABLE);
  const ClientResponse response = Chat();
  EXPECT_EQ(response.status, 502);
  EXPECT_EQ(ErrorCode(response), "upstream_failed");
  EXPECT_EQ(response.headers.at("x-should-retry"), "true");
  EXPECT_EQ(prefills_[0]->num_runs(), before + 4);
  EXPECT_TRUE(decodes_[0]->WaitIdle());
}

// Requests on prefill workers that die and are replaced, one after the other.
class DeathsTest : public FailureTest {
 protected:
  void Ask(int num_requests) {
    RouterConfig config = Config();
    config.max_attempts = 2;
    StartRouter(config);
    StartWorkers(kAnswer, 1, 1);
    prefills_.back()->SetRunPause(milliseconds(60'000));
    for (int i = 0; i < num_requests; ++i) {
      clients_.push_back(std::make_unique<HttpClient>(http_));
      clients_.back()->Send("POST", "/v1/chat/completions", ChatBody());
    }
  }
  // The newest worker, once it runs all requests beside its probe.
  void Kill() {
    const int64_t num_runs = std::ssize(clients_) + 1;
    ASSERT_TRUE(Eventually([&] { return prefills_.back()->num_runs() == num_runs; }));
    prefills_.back()->Kill();
  }
  void Replace(milliseconds run_pause) { AddPrefill().SetRunPause(run_pause); }

  std::vector<std::unique_ptr<HttpClient>> clients_;
};

TEST_F(DeathsTest, AreSharedByTheRequestsThatTheyTake) {
  Ask(4);
  Kill();
  for (int death = 0; death < 3; ++death) {
    Replace(milliseconds(60'000));
    Kill();
  }
  Replace(milliseconds(0));
  for (const auto& client : clients_) EXPECT_EQ(ContentOf(client->Receive()), kAnswer);
  EXPECT_TRUE(decodes_[0]->WaitIdle());
}

TEST_F(DeathsTest, OfWorkersWithOneRequestEndIt) {
  Ask(1);
  Kill();
  Replace(milliseconds(60'000));
  Kill();
  const ClientResponse response = clients_[0]->Receive();
  EXPECT_EQ(response.status, 502);
  EXPECT_EQ(ErrorCode(response), "upstream_failed");
}

TEST_F(FailureTest, RepeatedTokensAreDropped) {
  StartRouter();
  StartWorkers(kAnswer);
  decodes_[0]->RepeatTokens(true);
  EXPECT_EQ(ContentOf(Chat()), kAnswer);
}

TEST_F(FailureTest, AMissingTokenIsAnInternalError) {
  StartRouter();
  StartWorkers(kAnswer);
  decodes_[0]->SkipToken(3);
  const ClientResponse response = Chat();
  EXPECT_EQ(response.status, 500);
  EXPECT_THAT(response.body, HasSubstr("expected token 3"));
}

TEST_F(FailureTest, SilentWorkerIsRemoved) {
  StartRouter();
  StartWorkers(kAnswer);
  decodes_[0]->FallSilent();
  ASSERT_TRUE(Eventually([&]() { return !decodes_[0]->refusal().empty(); }));
  EXPECT_THAT(decodes_[0]->refusal(), HasSubstr("silent for"));
  EXPECT_EQ(Fetch(http_, "GET", "/readyz").status, 503);
}

TEST_F(FailureTest, AnotherModelIsRefusedWithTheDifferingFields) {
  StartRouter();
  StartWorkers(kAnswer);
  script_.vocab_size = 2048;
  script_.tokenizer = "0123456789abcdef";
  ScriptedDecode& other = AddDecode();
  ASSERT_TRUE(Eventually([&]() { return !other.refusal().empty(); }));
  EXPECT_THAT(other.refusal(), HasSubstr("vocab_size: router 1024, worker 2048"));
  EXPECT_THAT(other.refusal(), HasSubstr("tokenizer: router"));
  EXPECT_EQ(ContentOf(Chat()), kAnswer);
}

TEST_F(FailureTest, WorkersOfDifferentLayoutsNeverPair) {
  StartRouter();
  script_.output = Model().tokenizer->EncodeText(kAnswer);
  AddPrefill();
  script_.index_k = "fp8";
  AddDecode();
  ASSERT_TRUE(Eventually([&]() {
    return Parse(Fetch(http_, "GET", "/readyz").body).at("workers").as_array().size() == 2;
  }));
  EXPECT_THAT(Fetch(http_, "GET", "/readyz").body, HasSubstr("same cache layout"));
  const ClientResponse response = Chat();
  EXPECT_EQ(response.status, 503);
  EXPECT_THAT(response.body, HasSubstr("index_k bf16 against fp8"));
}

TEST_F(FailureTest, ARequestLargerThanEveryWorkerIsTooLong) {
  script_.cache_capacity_bytes = 1000 + 256 * 4;  // 1024 tokens
  StartRouter();
  StartWorkers(kAnswer);
  const ClientResponse response = Chat("\"max_tokens\":5000");
  EXPECT_EQ(response.status, 400);
  EXPECT_EQ(ErrorCode(response), "context_length_exceeded");
  EXPECT_THAT(response.body, HasSubstr("5005 tokens"));
  EXPECT_THAT(response.body, HasSubstr("holds 1024"));
  EXPECT_EQ(ContentOf(Chat()), kAnswer);  // the default is cut to what fits
}

TEST_F(FailureTest, AFullQueueIs429WithRetryAfter) {
  script_.cache_capacity_bytes = 1000 + 256 * 4;
  RouterConfig config = Config();
  config.queue_size = 1;
  config.queue_timeout = milliseconds(800);
  StartRouter(config);
  StartWorkers(kAnswer);
  prefills_[0]->SetRunPause(milliseconds(2000));
  HttpClient running(http_);
  running.Send("POST", "/v1/chat/completions", ChatBody("\"max_tokens\":900"));
  ASSERT_TRUE(Eventually([&]() { return decodes_[0]->num_live() == 1; }));
  HttpClient waiting(http_);
  waiting.Send("POST", "/v1/chat/completions", ChatBody("\"max_tokens\":900"));
  ASSERT_TRUE(Eventually([&]() { return Metric("lodestone_router_queue_depth") == 1; }));
  const ClientResponse refused = Chat("\"max_tokens\":900");
  EXPECT_EQ(refused.status, 429);
  EXPECT_EQ(ErrorCode(refused), "queue_full");
  EXPECT_TRUE(refused.headers.contains("retry-after"));
  EXPECT_TRUE(refused.headers.contains("retry-after-ms"));
  const ClientResponse timed_out = waiting.Receive();
  EXPECT_EQ(timed_out.status, 429);
  EXPECT_EQ(ErrorCode(timed_out), "no_memory");
  EXPECT_EQ(ContentOf(running.Receive()), kAnswer);
}

TEST_F(FailureTest, WaitingRequestsRunWhenMemoryComesFree) {
  script_.cache_capacity_bytes = 1000 + 256 * 4;
  StartRouter();
  StartWorkers(kAnswer);
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (int i = 0; i < 8; ++i) {
    clients.push_back(std::make_unique<HttpClient>(http_));
    clients.back()->Send("POST", "/v1/chat/completions", ChatBody("\"max_tokens\":900"));
  }
  for (const auto& client : clients) EXPECT_EQ(ContentOf(client->Receive()), kAnswer);
  EXPECT_TRUE(decodes_[0]->WaitIdle());
}

TEST_F(FailureTest, AClientThatLeavesInPrefillCancelsItEverywhere) {
  StartRouter();
  StartWorkers(kAnswer);
  prefills_[0]->SetRunPause(milliseconds(10'000));
  HttpClient client(http_);
  const int64_t runs = prefills_[0]->num_runs();  // of the router's probe
  client.Send("POST", "/v1/chat/completions", ChatBody());
  ASSERT_TRUE(Eventually([&]() { return prefills_[0]->num_runs() == runs + 1; }));
  client.Close();
  EXPECT_TRUE(Eventually([&]() { return prefills_[0]->num_cancelled() == 1; }, 1));
  EXPECT_TRUE(decodes_[0]->WaitIdle());
  EXPECT_TRUE(Eventually([&]() {
    return Metric("lodestone_requests_total{code=\"499\",finish_reason=\"cancelled\"}") == 1;
  }));
}

TEST_F(FailureTest, AClientThatLeavesInDecodeCancelsIt) {
  StartRouter();
  StartWorkers(kAnswer);
  decodes_[0]->SetTokenPause(milliseconds(200));
  HttpClient client(http_);
  client.Send("POST", "/v1/chat/completions", ChatBody("\"stream\":true"));
  EXPECT_EQ(client.ReceiveHead().status, 200);
  client.Close();
  EXPECT_TRUE(Eventually([&]() { return decodes_[0]->num_cancelled() == 1; }, 2));
  EXPECT_TRUE(decodes_[0]->WaitIdle());
}

TEST_F(FailureTest, AClientThatLeavesTheQueueIsForgotten) {
  script_.cache_capacity_bytes = 1000 + 256 * 4;
  StartRouter();
  StartWorkers(kAnswer);
  prefills_[0]->SetRunPause(milliseconds(700));
  HttpClient running(http_);
  running.Send("POST", "/v1/chat/completions", ChatBody("\"max_tokens\":900"));
  ASSERT_TRUE(Eventually([&]() { return decodes_[0]->num_live() == 1; }));
  {
    HttpClient waiting(http_);
    waiting.Send("POST", "/v1/chat/completions", ChatBody("\"max_tokens\":900"));
    ASSERT_TRUE(Eventually([&]() { return Metric("lodestone_router_queue_depth") == 1; }));
  }
  EXPECT_TRUE(Eventually([&]() { return Metric("lodestone_router_queue_depth") == 0; }, 1));
  EXPECT_EQ(ContentOf(running.Receive()), kAnswer);
}

}  // namespace
}  // namespace lodestone
