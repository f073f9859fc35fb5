#include "tests/router/router_fixture.h"

namespace lodestone {
namespace {

using testing::HasSubstr;
using RouterTest = RouterFixture;

constexpr char kAnswer[] = "The secret code for the river is north-1234-stone.";

TEST_F(RouterTest, AnswersAChatRequestInOneBody) {
  StartRouter();
  StartWorkers(kAnswer);
  const ClientResponse response = Chat();
  EXPECT_EQ(ContentOf(response), kAnswer);
  const boost::json::value body = Parse(response.body);
  EXPECT_EQ(body.at("object").as_string(), "chat.completion");
  EXPECT_EQ(body.at("choices").at(0).at("finish_reason").as_string(), "stop");
  EXPECT_TRUE(body.at("choices").at(0).at("logprobs").is_null());
  EXPECT_TRUE(body.at("choices").at(0).at("message").at("refusal").is_null());
  EXPECT_EQ(body.at("usage").at("completion_tokens").to_number<size_t>(), script_.output.size());
  EXPECT_TRUE(response.headers.contains("x-request-id"));
  EXPECT_TRUE(response.headers.contains("openai-processing-ms"));
  EXPECT_TRUE(decodes_[0]->WaitIdle());
}

TEST_F(RouterTest, StreamsAChatRequestToItsEnd) {
  StartRouter();
  StartWorkers(kAnswer);
  const Streamed streamed = StreamChat("\"stream_options\":{\"include_usage\":true}");
  EXPECT_EQ(streamed.content, kAnswer);
  EXPECT_EQ(streamed.finish_reason, "stop");
  EXPECT_TRUE(streamed.done);
  ASSERT_GE(streamed.events.size(), 4u);
  const boost::json::value first = Parse(streamed.events.front());
  EXPECT_EQ(first.at("choices").at(0).at("delta").at("role").as_string(), "assistant");
  EXPECT_TRUE(first.at("usage").is_null());
  const boost::json::value usage = Parse(streamed.events[streamed.events.size() - 2]);
  EXPECT_TRUE(usage.at("choices").as_array().empty());
  EXPECT_EQ(usage.at("usage").at("completion_tokens").to_number<size_t>(), script_.output.size());
}

}  // namespace
}  // namespace lodestone
