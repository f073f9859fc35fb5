// Prompts that come as token ids: what ends a text ends these too, or is refused.
#include <grpcpp/grpcpp.h>

#include "proto/lodestone/v1/inference.grpc.pb.h"
#include "tests/router/router_fixture.h"

namespace lodestone {
namespace {

using testing::HasSubstr;

constexpr char kAnswer[] = "The secret code for the river is north-1234-stone.";
constexpr char kUpToStop[] = "The secret code for the river is north-123";

class TokensPathTest : public RouterFixture {
 protected:
  // The text of the answer.
  grpc::Status Generate(const v1::GenerateRequest& request, std::string& text) {
    const auto stub = v1::InferenceService::NewStub(
        grpc::CreateChannel(grpc_address_, grpc::InsecureChannelCredentials()));
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    const auto reader = stub->Generate(&context, request);
    v1::GenerateReply reply;
    while (reader->Read(&reply)) text += reply.text();
    return reader->Finish();
  }
};

TEST_F(TokensPathTest, StopStringsEndTheAnswerOverHttp) {
  StartRouter();
  StartWorkers(kAnswer);
  for (const char* prompt : {"[5,6,7]", "[[5,6,7]]"}) {
    const ClientResponse response =
        Fetch(http_, "POST", "/v1/completions",
              std::string(R"({"model":"needle-tiny","max_tokens":100,"stop":"4-st","prompt":)") +
                  prompt + "}");
    ASSERT_EQ(response.status, 200) << response.body;
    const boost::json::value choice = Parse(response.body).at("choices").at(0);
    EXPECT_EQ(choice.at("text").as_string(), kUpToStop);
    EXPECT_EQ(choice.at("finish_reason").as_string(), "stop");
  }
  EXPECT_TRUE(decodes_[0]->WaitIdle());
}

TEST_F(TokensPathTest, StopStringsEndTheAnswerOverGrpc) {
  StartRouter();
  StartWorkers(kAnswer);
  v1::GenerateRequest request;
  request.mutable_tokens()->add_ids(5);
  request.add_stop("4-st");
  request.set_return_text(true);
  std::string text;
  const grpc::Status status = Generate(request, text);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(text, kUpToStop);
  EXPECT_TRUE(decodes_[0]->WaitIdle());
}

TEST_F(TokensPathTest, StopStringsWithoutTextAreRefusedNotIgnored) {
  StartRouter();
  StartWorkers(kAnswer);
  v1::GenerateRequest request;
  request.mutable_tokens()->add_ids(5);
  request.add_stop("4-st");
  std::string text;
  const grpc::Status status = Generate(request, text);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("return_text"));
}

}  // namespace
}  // namespace lodestone
