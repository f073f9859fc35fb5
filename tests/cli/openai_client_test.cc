#include "cli/openai_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <vector>

#include "tests/cli/test_server.h"

namespace lodestone {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

constexpr milliseconds kTimeout(10'000);
constexpr char kAnswer[] =
    R"({"choices":[{"message":{"content":"hi"},"finish_reason":"stop"}],"usage":{"prompt_tokens":7,"completion_tokens":2}})";

OpenAiClient ClientOf(const TestServer& server) {
  return OpenAiClient(HttpClient(*ParseHttpUrl(server.url())));
}

TEST(OpenAiClientTest, AskReturnsTextFinishAndUsage) {
  TestServer server([](std::string_view) { return std::vector<std::string>{OkReply(kAnswer)}; });
  const auto answer = ClientOf(server).Ask("m", "q", 5, kTimeout);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->text, "hi");
  EXPECT_EQ(answer->finish_reason, "stop");
  EXPECT_EQ(answer->prompt_tokens, 7);
}

TEST(OpenAiClientTest, FullServerIsAskedAgain) {
  std::atomic<int> asked{0};
  TestServer server([&](std::string_view) {
    return std::vector<std::string>{
        ++asked == 1 ? Reply("429 Full", "", R"({"error":{"message":"full"}})") : OkReply(kAnswer)};
  });
  EXPECT_TRUE(ClientOf(server).Ask("m", "q", 5, kTimeout).ok());
  EXPECT_EQ(asked, 2);
}

TEST(OpenAiClientTest, BadRequestIsNotAskedAgainAndSaysWhy) {
  std::atomic<int> asked{0};
  TestServer server([&](std::string_view) {
    ++asked;
    return std::vector<std::string>{
        Reply("400 Bad", "", R"({"error":{"message":"prompt has 9 tokens, limit is 8"}})")};
  });
  const auto answer = ClientOf(server).Ask("m", "q", 5, kTimeout);
  EXPECT_EQ(asked, 1);
  EXPECT_THAT(std::string(answer.status().message()),
              HasSubstr("HTTP 400: prompt has 9 tokens, limit is 8"));
}

TEST(OpenAiClientTest, StreamJoinsPiecesUntilDone) {
  TestServer server([](std::string_view) {
    return std::vector<std::string>{OkReply(
        "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n"
        "data: {\"choices\":[{\"delta\":{\"content\":\"b\"},\"finish_reason\":\"length\"}]}\n\n"
        "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":2}}\n\n"
        "data: [DONE]\n\n",
        "text/event-stream")};
  });
  std::string shown;
  const auto answer = ClientOf(server).AskStreamed("m", "q", 5, kTimeout,
                                                   [&](std::string_view text) { shown += text; });
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(shown, "ab");
  EXPECT_EQ(answer->finish_reason, "length");
  EXPECT_EQ(answer->prompt_tokens, 3);
}

TEST(OpenAiClientTest, StreamWithoutDoneIsAnError) {
  TestServer server([](std::string_view) {
    return std::vector<std::string>{
        OkReply("data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n", "text/event-stream")};
  });
  EXPECT_FALSE(ClientOf(server).AskStreamed("m", "q", 5, kTimeout, [](std::string_view) {}).ok());
}

TEST(OpenAiClientTest, ErrorWithinAStreamIsReported) {
  TestServer server([](std::string_view) {
    return std::vector<std::string>{
        OkReply("data: {\"error\":{\"message\":\"worker died\"}}\n\n", "text/event-stream")};
  });
  const auto answer = ClientOf(server).AskStreamed("m", "q", 5, kTimeout, [](std::string_view) {});
  EXPECT_THAT(std::string(answer.status().message()), HasSubstr("worker died"));
}

}  // namespace
}  // namespace lodestone
