#include <grpcpp/grpcpp.h>

#include "proto/lodestone/v1/inference.grpc.pb.h"
#include "tests/router/router_fixture.h"

namespace lodestone {
namespace {

using testing::HasSubstr;

constexpr char kAnswer[] = "The secret code for the river is north-1234-stone.";

class GrpcServiceTest : public RouterFixture {
 protected:
  struct Result {
    std::vector<int32_t> ids;
    std::vector<int32_t> indexes;
    std::string text;
    v1::GenerateReply last;
    grpc::Status status;
  };
  Result Generate(const v1::GenerateRequest& request) {
    const auto stub = v1::InferenceService::NewStub(
        grpc::CreateChannel(grpc_address_, grpc::InsecureChannelCredentials()));
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    const auto reader = stub->Generate(&context, request);
    Result result;
    while (reader->Read(&result.last)) {
      for (const v1::Token& token : result.last.tokens()) {
        result.ids.push_back(token.id());
        result.indexes.push_back(token.index());
      }
      result.text += result.last.text();
    }
    result.status = reader->Finish();
    return result;
  }
};

TEST_F(GrpcServiceTest, StreamsTokensOfTokens) {
  StartRouter();
  StartWorkers(kAnswer);
  v1::GenerateRequest request;
  request.mutable_tokens()->add_ids(5);
  const Result result = Generate(request);
  ASSERT_TRUE(result.status.ok()) << result.status.error_message();
  EXPECT_EQ(result.ids, script_.output);
  EXPECT_EQ(result.indexes.back() + 1, static_cast<int32_t>(script_.output.size()));
  EXPECT_EQ(result.last.finish_reason(), v1::FINISH_REASON_STOP);
  EXPECT_EQ(result.last.usage().prompt_tokens(), 1);
  EXPECT_EQ(result.last.decode_worker(), decodes_[0]->instance_id());
  EXPECT_EQ(result.text, "");
  EXPECT_EQ(Metric("lodestone_time_to_first_token_seconds_count"), 1);
  EXPECT_EQ(Metric("lodestone_inter_token_seconds_count"),
            static_cast<double>(script_.output.size() - 1));
}

TEST_F(GrpcServiceTest, StreamsTextUpToAStopString) {
  StartRouter();
  StartWorkers(kAnswer);
  v1::GenerateRequest request;
  request.set_text("hello");
  request.set_return_text(true);
  request.add_stop("4-st");
  const Result result = Generate(request);
  ASSERT_TRUE(result.status.ok()) << result.status.error_message();
  EXPECT_EQ(result.text, "The secret code for the river is north-123");
  EXPECT_EQ(result.last.finish_reason(), v1::FINISH_REASON_STOP);
  EXPECT_TRUE(decodes_[0]->WaitIdle());
}

TEST_F(GrpcServiceTest, BadRequestsNameTheField) {
  StartRouter();
  StartWorkers(kAnswer);
  v1::GenerateRequest request;
  EXPECT_EQ(Generate(request).status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  request.mutable_tokens()->add_ids(1024);
  EXPECT_THAT(Generate(request).status.error_message(), HasSubstr("tokens.ids[0] is 1024"));
  request.mutable_tokens()->set_ids(0, 5);
  request.mutable_sampling()->set_temperature(9);
  EXPECT_THAT(Generate(request).status.error_message(), HasSubstr("temperature is 9"));
  request.mutable_sampling()->set_temperature(0);
  for (int i = 0; i < 257; ++i) request.mutable_sampling()->add_stop_token_ids(5);
  EXPECT_THAT(Generate(request).status.error_message(), HasSubstr("has 257 entries, limit is 256"));
  request.mutable_sampling()->clear_stop_token_ids();
  for (int i = 0; i < 1025; ++i) (*request.mutable_sampling()->mutable_logit_bias())[i] = 1;
  EXPECT_THAT(Generate(request).status.error_message(),
              HasSubstr("has 1025 entries, limit is 1024"));
  request.mutable_sampling()->clear_logit_bias();
  request.set_model("other");
  EXPECT_EQ(Generate(request).status.error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(GrpcServiceTest, WithoutWorkersItIsUnavailable) {
  StartRouter();
  v1::GenerateRequest request;
  request.mutable_tokens()->add_ids(5);
  EXPECT_EQ(Generate(request).status.error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(GrpcServiceTest, CancellingACallInTheQueueTakesItOut) {
  script_.cache_capacity_bytes = 1000 + 256 * 4;
  StartRouter();
  StartWorkers(kAnswer);
  prefills_[0]->SetRunPause(std::chrono::milliseconds(1000));
  HttpClient running(http_);
  running.Send("POST", "/v1/chat/completions", ChatBody("\"max_tokens\":900"));
  ASSERT_TRUE(Eventually([&]() { return decodes_[0]->num_live() == 1; }));
  const auto stub = v1::InferenceService::NewStub(
      grpc::CreateChannel(grpc_address_, grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  v1::GenerateRequest request;
  request.mutable_tokens()->add_ids(5);
  request.mutable_sampling()->set_max_new_tokens(900);
  const auto reader = stub->Generate(&context, request);
  ASSERT_TRUE(Eventually([&]() { return Metric("lodestone_router_queue_depth") == 1; }));
  context.TryCancel();
  EXPECT_TRUE(Eventually([&]() { return Metric("lodestone_router_queue_depth") == 0; }, 0.8));
  v1::GenerateReply reply;
  EXPECT_FALSE(reader->Read(&reply));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_EQ(ContentOf(running.Receive()), kAnswer);
}

TEST_F(GrpcServiceTest, CancellingTheCallCancelsTheWork) {
  StartRouter();
  StartWorkers(kAnswer);
  prefills_[0]->SetRunPause(std::chrono::milliseconds(10'000));
  const auto stub = v1::InferenceService::NewStub(
      grpc::CreateChannel(grpc_address_, grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  v1::GenerateRequest request;
  request.mutable_tokens()->add_ids(5);
  const auto reader = stub->Generate(&context, request);
  ASSERT_TRUE(Eventually([&]() { return decodes_[0]->num_live() == 1; }));
  context.TryCancel();
  v1::GenerateReply reply;
  EXPECT_FALSE(reader->Read(&reply));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(Eventually([&]() { return prefills_[0]->num_cancelled() == 1; }, 2));
  EXPECT_TRUE(decodes_[0]->WaitIdle());
}

}  // namespace
}  // namespace lodestone
