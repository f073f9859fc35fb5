// Whichever allocation fails between the bytes of a request and its tokens: a 503, and nothing
// leaks.
#include <string>

#include <boost/asio/buffer.hpp>
#include <gtest/gtest.h>

#include "base/config.h"
#include "router/http_request_parser.h"
#include "router/model_info.h"
#include "router/openai_schema.h"
#include "router/request_builder.h"
#include "tests/router/router_fixture.h"
#include "tests/testing/failing_allocations.h"

namespace lodestone {
namespace {

int64_t Stride(int64_t usual) {
  return GetEnvironment("LODESTONE_LONG_TESTS") == "1" ? 1 : usual;
}

const std::string kBody =
    R"({"model": "m", "messages": [)"
    R"({"role": "system", "content": "You are a helpful assistant, briefly."},)"
    R"({"role": "user", "content": [{"type": "text", "text": "What is this?"}]}],)"
    R"("stop": ["one", "two and more than sixteen bytes"], "temperature": 0.5,)"
    R"("logit_bias": {"5": 1, "6": -1}, "stream": true})";

template <typename T>
void ExpectRefused(const ApiOr<T>& result) {
  if (result.ok()) return;
  EXPECT_EQ(result.error().http_status, 503) << result.error().message;
  EXPECT_EQ(result.error().code, "out_of_memory");
}

TEST(OutOfMemoryTest, AnHttpRequestIsReadOrLeavesNothing) {
  const std::string text = "POST /v1/chat/completions?x=y HTTP/1.1\r\nHost: a\r\nX-Long: " +
                           std::string(200, 'x') + "\r\nTransfer-Encoding: chunked\r\n\r\n" +
                           "40\r\n" + std::string(64, 'b') + "\r\n0\r\n\r\n";
  const HttpLimits limits;
  const int64_t failures = FailEveryAllocation([&](auto arm) {
    bool refused = false;
    HttpRequest request;
    arm([&] {
      try {
        HttpRequestParser parser(limits);
        HttpRequestParser::Error error;
        boost::asio::const_buffer rest = boost::asio::buffer(text);
        rest += parser.parser().put(rest, error);
        while (!error && !parser.parser().is_done()) rest += parser.PutBody(rest, error);
        refused = error.failed();
        if (!refused) request = parser.Take();
      } catch (const std::bad_alloc&) {
        refused = true;
      }
    });
    EXPECT_TRUE(refused || request.body.size() == 64) << request.body.size();
  });
  EXPECT_GT(failures, 5);
}

TEST(OutOfMemoryTest, ABodyIsParsedOrRefused) {
  const SchemaRules rules{.model_names = {"m"}, .vocab_size = 1024};
  const int64_t failures = FailEveryAllocation(
      [&](auto arm) {
        ApiOr<ApiRequest> request = ApiError();
        arm([&] { request = ParseChatRequest(kBody, rules); });
        ExpectRefused(request);
      },
      Stride(3));
  EXPECT_GT(failures * Stride(3), 30);
}

TEST(OutOfMemoryTest, APromptIsTokenizedOrRefused) {
  const auto model = ModelInfo::Load(LODESTONE_SOURCE_DIR "/models/needle-tiny", "m").value();
  const SchemaRules rules{.model_names = {"m"}, .vocab_size = 1024};
  const ApiRequest api = ParseChatRequest(kBody, rules).value();
  const BuildRules build{.largest_request_tokens = 1 << 20};
  const int64_t failures = FailEveryAllocation(
      [&](auto arm) {
        ApiOr<std::vector<Request>> requests = ApiError();
        arm([&] { requests = BuildRequests(api, *model, build, TimePoint()); });
        ExpectRefused(requests);
      },
      Stride(3));
  EXPECT_GT(failures * Stride(3), 10);
}

// A whole router whose answers are larger than what it can allocate.
class AnswerOutOfMemoryTest : public RouterFixture {
 protected:
  static constexpr int64_t kLargeBytes = 128 << 10;
  static constexpr int kAnswerTokens = 4000;

  void Start() {
    StartRouter();
    const int32_t token = Model().tokenizer->EncodeText("north").front();
    StartWorkersWith(std::vector<int32_t>(kAnswerTokens, token));
    decodes_[0]->SetTokensPerStep(50);
  }
  static std::string Long(const std::string& extra = "") {
    return "\"max_tokens\":" + std::to_string(kAnswerTokens) + extra;
  }
  void ExpectAllGivenBackAndServing() {
    EXPECT_TRUE(decodes_[0]->WaitIdle());
    EXPECT_TRUE(Eventually([&] { return Metric("lodestone_router_open_streams") == 0; }));
    EXPECT_TRUE(Eventually([&] { return Metric("lodestone_router_running_requests") == 0; }));
    EXPECT_EQ(Chat("\"max_tokens\":5").status, 200);
  }
};

TEST_F(AnswerOutOfMemoryTest, ABodyThatDoesNotFitIs503) {
  Start();
  for (const char* choices : {"", ",\"n\":3"}) {
    SCOPED_TRACE(choices);
    {
      const FailingLargeAllocations failing(kLargeBytes);
      const ClientResponse refused = Chat(Long(",\"logprobs\":true" + std::string(choices)));
      EXPECT_EQ(refused.status, 503) << refused.body.substr(0, 300);
      EXPECT_EQ(ErrorCode(refused), "out_of_memory");
      EXPECT_GT(failing.num_failures(), 0);
    }
    ExpectAllGivenBackAndServing();
  }
}

TEST_F(AnswerOutOfMemoryTest, AStreamThatDoesNotFitEndsInAnError) {
  Start();
  for (const char* choices : {"", ",\"n\":3"}) {
    SCOPED_TRACE(choices);
    HttpClient client(http_);
    {
      const FailingLargeAllocations failing(kLargeBytes);
      client.Send("POST", "/v1/chat/completions", ChatBody("\"stream\":true," + Long(choices)));
      // It does not read, so that its events have to wait.
      ASSERT_TRUE(Eventually([&] { return failing.num_failures() > 0; }));
      ASSERT_TRUE(decodes_[0]->WaitIdle());
    }
    EXPECT_EQ(client.ReceiveHead().status, 200);
    Streamed streamed;
    while (const std::optional<std::string> event = client.ReadEvent()) Absorb(*event, streamed);
    EXPECT_TRUE(streamed.error);
    EXPECT_FALSE(streamed.done);
    ExpectAllGivenBackAndServing();
  }
}

}  // namespace
}  // namespace lodestone
