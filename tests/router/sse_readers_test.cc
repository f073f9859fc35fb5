// The parse rules of the load tools that people point at a router, one small reader each: what they
// would measure from our stream (keep-alives included).
#include <sstream>

#include "tests/router/router_fixture.h"

namespace lodestone {
namespace {

constexpr char kAnswer[] = "The river is north of the stone.";

// What a reader made of a stream; `failed` where the real tool would have raised.
struct Reading {
  std::string text;
  int64_t completion_tokens = -1;
  bool failed = false;
};

std::string TextOf(const boost::json::value& choice) {
  const boost::json::object& delta = choice.at("delta").as_object();
  const auto* content = delta.if_contains("content");
  return content == nullptr || content->is_null() ? "" : std::string(content->as_string());
}

// vllm bench serve: chunks with choices are tokens, usage only from the chunk without choices.
Reading ReadAsVllmBench(const std::string& body) {
  Reading reading;
  size_t at = 0;
  for (size_t end; (end = body.find("\n\n", at)) != std::string::npos; at = end + 2) {
    std::string message = body.substr(at, end - at);
    if (message.starts_with(":")) continue;
    message = message.substr(std::string("data: ").size());
    if (message == "[DONE]") continue;
    const boost::json::value chunk = boost::json::parse(message);
    const boost::json::array& choices = chunk.at("choices").as_array();
    if (!choices.empty()) {
      reading.text += TextOf(choices.at(0));
    } else if (chunk.as_object().contains("usage")) {
      reading.completion_tokens = chunk.at("usage").at("completion_tokens").to_number<int64_t>();
    }
  }
  return reading;
}

// sglang.bench_serving: every line is data with choices[0].
Reading ReadAsSglangBench(const std::string& body) {
  Reading reading;
  std::istringstream lines(body);
  for (std::string line; std::getline(lines, line);) {
    if (line.empty()) continue;
    if (!line.starts_with("data: ")) {
      reading.failed = true;
      return reading;
    }
    const std::string data = line.substr(6);
    if (data == "[DONE]") continue;
    const boost::json::value chunk = boost::json::parse(data);
    if (chunk.at("choices").as_array().empty()) {
      reading.failed = true;
      return reading;
    }
    reading.text += TextOf(chunk.at("choices").at(0));
  }
  return reading;
}

// GuideLLM: the last usage that is not null counts.
Reading ReadAsGuideLlm(const std::string& body) {
  Reading reading;
  std::istringstream lines(body);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("data:")) continue;
    const std::string data = line.substr(6);
    if (data == "[DONE]") break;
    const boost::json::value chunk = boost::json::parse(data);
    if (chunk.as_object().contains("error")) reading.failed = true;
    if (chunk.as_object().contains("usage") && chunk.at("usage").is_object()) {
      reading.completion_tokens = chunk.at("usage").at("completion_tokens").to_number<int64_t>();
    }
    for (const boost::json::value& choice : chunk.at("choices").as_array())
      reading.text += TextOf(choice);
  }
  return reading;
}

class SseReadersTest : public RouterFixture {
 protected:
  std::string StreamBody(const std::string& extra) {
    const ClientResponse response = Chat("\"stream\":true" + extra);
    EXPECT_EQ(response.headers.at("content-type"), "text/event-stream");
    EXPECT_EQ(response.headers.at("cache-control"), "no-cache");
    EXPECT_EQ(response.headers.at("x-accel-buffering"), "no");
    return response.body;
  }
};

TEST_F(SseReadersTest, EveryReaderGetsTheWholeText) {
  RouterConfig config = Config();
  config.sse_keepalive_after = std::chrono::milliseconds(30);
  config.sse_keepalive_every = std::chrono::milliseconds(30);
  StartRouter(config);
  StartWorkers(kAnswer);
  prefills_[0]->SetRunPause(std::chrono::milliseconds(100));
  const int64_t num_tokens = static_cast<int64_t>(script_.output.size());

  const std::string with_usage =
      StreamBody(R"(,"stream_options":{"include_usage":true,"continuous_usage_stats":true})");
  const Reading vllm = ReadAsVllmBench(with_usage);
  EXPECT_EQ(vllm.text, kAnswer);
  EXPECT_EQ(vllm.completion_tokens, num_tokens);
  const Reading guide = ReadAsGuideLlm(with_usage);
  EXPECT_EQ(guide.text, kAnswer);
  EXPECT_EQ(guide.completion_tokens, num_tokens);
  EXPECT_FALSE(guide.failed);

  const Reading sglang = ReadAsSglangBench(StreamBody(""));
  EXPECT_FALSE(sglang.failed);
  EXPECT_EQ(sglang.text, kAnswer);
}

TEST_F(SseReadersTest, EventsAreOneDataLineAndABlankLine) {
  StartRouter();
  StartWorkers(kAnswer);
  std::istringstream lines(StreamBody(""));
  bool expect_data = true;
  for (std::string line; std::getline(lines, line); expect_data = !expect_data) {
    EXPECT_EQ(line.starts_with("data: "), expect_data) << line;
    if (!expect_data) {
      EXPECT_EQ(line, "");
    }
  }
}

}  // namespace
}  // namespace lodestone
