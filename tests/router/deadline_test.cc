// Requests that run out of time, and who is to blame for it: nobody.
#include <grpcpp/grpcpp.h>

#include "proto/lodestone/v1/worker.grpc.pb.h"
#include "tests/router/router_fixture.h"

namespace lodestone {
namespace {

using testing::HasSubstr;
using DeadlineTest = RouterFixture;
using std::chrono::milliseconds;

constexpr char kAnswer[] = "It was sold on Monday.";  // short, as the times are

// Three failures in a row have a worker avoided, but not when it was the clients who did not wait.
TEST_F(DeadlineTest, TheEndOfARequestsTimeIsNoWorkersFault) {
  RouterConfig config = Config();
  config.request_timeout = milliseconds(300);
  StartRouter(config);
  script_.output = Model().tokenizer->EncodeText(kAnswer);
  AddPreferredDecode();
  StartWorkers(kAnswer, 1, 1);
  prefills_[0]->LoseHandOffs(3);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(Chat().status, 504);
    EXPECT_TRUE(decodes_[0]->WaitIdle());
  }
  const ClientResponse response = Chat();
  EXPECT_EQ(ContentOf(response), kAnswer);
  EXPECT_EQ(response.headers.at("x-lodestone-decode"), decodes_[0]->instance_id());
}

TEST_F(DeadlineTest, APromptThatOutlivesItsRequestIsNoFaultOfThePrefillWorker) {
  RouterConfig config = Config();
  config.request_timeout = milliseconds(300);
  StartRouter(config);
  StartWorkers(kAnswer, 2, 1);
  const std::string preferred = Chat().headers.at("x-lodestone-prefill");
  for (const auto& prefill : prefills_) prefill->SetRunPause(milliseconds(2'000));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Chat().status, 504);
  for (const auto& prefill : prefills_) prefill->SetRunPause(milliseconds(0));
  EXPECT_TRUE(decodes_[0]->WaitIdle());
  const ClientResponse response = Chat();
  EXPECT_EQ(ContentOf(response), kAnswer);
  EXPECT_EQ(response.headers.at("x-lodestone-prefill"), preferred);
}

TEST_F(DeadlineTest, ADeadlineInTheQueueIs504) {
  script_.cache_capacity_bytes = 1000 + 256 * 4;
  RouterConfig config = Config();
  config.request_timeout = milliseconds(500);
  StartRouter(config);
  StartWorkers(kAnswer);
  const auto decode = v1::DecodeService::NewStub(
      grpc::CreateChannel(decodes_[0]->address(), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  v1::ReserveRequest everything;
  everything.set_max_new_tokens(900);
  v1::ReserveReply reserved;
  ASSERT_TRUE(decode->Reserve(&context, everything, &reserved).ok());
  const ClientResponse late = Chat("\"max_tokens\":900");
  EXPECT_EQ(late.status, 504);
  EXPECT_EQ(ErrorCode(late), "deadline_exceeded");
  EXPECT_THAT(late.body, HasSubstr("in the queue"));
}

TEST_F(DeadlineTest, ADeadlineWhileAReplayAwaitsAWorkerIs504) {
  RouterConfig config = Config();
  config.request_timeout = milliseconds(700);
  config.replay_wait = milliseconds(5000);
  StartRouter(config);
  StartWorkers(kAnswer);
  prefills_[0]->DieAtRun(1);
  const auto started_at = std::chrono::steady_clock::now();
  EXPECT_EQ(Chat().status, 504);
  EXPECT_LT(std::chrono::steady_clock::now() - started_at, milliseconds(3000));
}

}  // namespace
}  // namespace lodestone
