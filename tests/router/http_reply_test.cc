// What a stream makes of much text at once: events of bounded size, few bytes that wait, the same
// text however the bytes arrive.
#include "router/http_reply.h"

#include <algorithm>

#include "router/limits.h"
#include "tests/router/router_fixture.h"

namespace lodestone {
namespace {

// A client that takes bytes only when the router has to wait for it, and then as few as it must.
class ReluctantClient final : public HttpExchange {
 public:
  Task<void> Send(HttpResponse) override { co_return; }
  void StartStream(HttpResponse) override {}
  void ReleaseBody() override {}
  void Write(std::string_view bytes) override {
    stream_ += bytes;
    waiting_ += std::ssize(bytes);
    most_waiting_ = std::max(most_waiting_, waiting_);
  }
  Task<absl::Status> Drain(int64_t max_bytes) override {
    waiting_ = std::min(waiting_, max_bytes);
    co_return absl::OkStatus();
  }
  Task<void> EndStream(bool) override { co_return; }
  CancelSource& client() override { return client_; }

  const std::string& stream() const { return stream_; }
  int64_t most_waiting() const { return most_waiting_; }

 private:
  CancelSource client_;
  std::string stream_;
  int64_t waiting_ = 0;
  int64_t most_waiting_ = 0;
};

class StreamTest : public RouterFixture {
 protected:
  static ApiRequest StreamedCompletion() {
    ApiRequest api;
    api.api = ApiKind::kCompletions;
    api.stream = true;
    return api;
  }
  void Stream(const ApiRequest& api, const Request& request,
              const std::vector<GeneratedToken>& tokens) {
    const auto run = [&]() -> Task<void> {
      ReplyContext context;
      context.service = &service_;
      context.api = &api;
      context.exchange = &client_;
      const std::unique_ptr<HttpReply> reply = HttpReply::Create(std::move(context));
      TokenSink& sink = *reply->AddPrompt(request).front();
      const absl::StatusOr<TokenSink::Written> written = co_await sink.Write(tokens);
      EXPECT_TRUE(written.ok());
      Outcome outcome;
      outcome.finish_reason = FinishReason::kLength;
      co_await sink.End(outcome);
      reply->EndPrompt(outcome);
      co_await reply->Finish();
    };
    Spawn(loop_, run());
    loop_.run();
  }
  // The text of all events; checks the size of each.
  static std::string TextOf(const std::string& stream) {
    std::string text;
    size_t at = 0;
    for (size_t end; (end = stream.find("\n\n", at)) != std::string::npos; at = end + 2) {
      EXPECT_LE(static_cast<int64_t>(end + 2 - at), kMaxEventBytes);
      const std::string data = stream.substr(at + 6, end - at - 6);
      if (data == "[DONE]") continue;
      const boost::json::value chunk = Parse(data);
      for (const boost::json::value& choice : chunk.at("choices").as_array()) {
        text += choice.at("text").as_string();
      }
    }
    EXPECT_EQ(at, stream.size());
    return text;
  }

  const RouterConfig config_ = Config();
  asio::io_context loop_;
  Metrics metrics_{kRoleRouter};
  RouterMetrics router_metrics_{&metrics_};
  const ServiceContext service_{.loop = &loop_,
                                .config = &config_,
                                .model = &Model(),
                                .router_metrics = &router_metrics_,
                                .metrics = &metrics_};
  ReluctantClient client_;
};

TEST_F(StreamTest, HoweverMuchComesAtOnceLittleWaitsForTheClient) {
  ApiRequest api = StreamedCompletion();
  api.logprobs = true;
  api.top_logprobs = 5;
  GeneratedToken token{.id = Model().tokenizer->EncodeText("north").front(), .logprob = -1};
  token.top_logprobs.assign(5, {token.id, -1.0f});
  const std::vector<GeneratedToken> tokens(20'000, token);
  Stream(api, Request{}, tokens);
  EXPECT_EQ(TextOf(client_.stream()).size(),
            20'000 * Model().tokenizer->TokenBytes(token.id).size());
  EXPECT_GT(std::ssize(client_.stream()), 8 * kMaxOutputBytes);
  EXPECT_LE(client_.most_waiting(), kMaxOutputBytes);
}

TEST_F(StreamTest, ATextThatIsTooLongForOneEventComesInSeveral) {
  // Each character is three bytes, or six as JSON: parts end between characters.
  std::string text;
  for (int i = 0; i < 9'000; ++i) text += i % 3 == 0 ? "\x01" : "\u20ac";
  ApiRequest api = StreamedCompletion();
  api.echo = true;
  Request request;
  request.prompt = Model().tokenizer->EncodeText(text);
  Stream(api, request, {});
  EXPECT_EQ(TextOf(client_.stream()), text);
  EXPECT_GT(std::count(client_.stream().begin(), client_.stream().end(), '\n') / 2, 4);
  EXPECT_LE(client_.most_waiting(), kMaxOutputBytes);
}

// Over a real connection, where an event leaves in several writes and arrives in many pieces.
TEST_F(StreamTest, AnEventThatIsWrittenInPiecesArrivesWhole) {
  StartRouter();
  StartWorkers("north");
  std::string prompt;
  for (int i = 0; i < 4'000; ++i) prompt += "the river ";
  const std::string body = R"({"model":"needle-tiny","stream":true,"echo":true,"max_tokens":0,)"
                           R"("prompt":")" + prompt + "\"}";
  HttpClient client(http_, {.receive_bytes = 7, .receive_buffer_bytes = 2048});
  client.Send("POST", "/v1/completions", body);
  ASSERT_EQ(client.ReceiveHead().status, 200);
  std::string text;
  bool done = false;
  while (const std::optional<std::string> event = client.ReadEvent()) {
    done = *event == "[DONE]";
    if (done) continue;
    const boost::json::value chunk = Parse(*event);
    for (const boost::json::value& choice : chunk.at("choices").as_array()) {
      text += choice.at("text").as_string();
    }
  }
  EXPECT_TRUE(done);
  EXPECT_EQ(text, prompt);
}

}  // namespace
}  // namespace lodestone
