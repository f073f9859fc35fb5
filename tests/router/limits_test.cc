// Walks the limits of router/limits.h in their order: the value just inside is served, the one just
// outside is refused with the right status and a message that has both values.
#include <functional>

#include "router/admission.h"
#include "tests/router/router_fixture.h"

namespace lodestone {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

constexpr int64_t kTestBody = 1 << 20;  // of requests whose body is the limit

std::string Repeat(const std::string& text, int64_t count, const std::string& separator = "") {
  std::string result;
  result.reserve(static_cast<size_t>(count) * (text.size() + separator.size()));
  for (int64_t i = 0; i < count; ++i) {
    if (i > 0) result += separator;
    result += text;
  }
  return result;
}

std::string Completion(const std::string& extra) {
  return std::string(R"({"model":"needle-tiny","prompt":"x","max_tokens":1)") +
         (extra.empty() ? "" : ",") + extra + "}";
}

std::string Chat(const std::string& extra) {
  return std::string(
             R"({"model":"needle-tiny","messages":[{"role":"user","content":"hi"}],"max_tokens":1)") +
         (extra.empty() ? "" : ",") + extra + "}";
}

std::string ChatOfMessages(int64_t count) {
  return R"({"model":"needle-tiny","max_tokens":1,"messages":[)" +
         Repeat(R"({"role":"user","content":"a"})", count, ",") + "]}";
}

std::string Padded(std::string body, int64_t size) {
  body.resize(static_cast<size_t>(size), ' ');
  return body;
}

std::string Bias(int64_t count) {
  std::string text;
  for (int64_t i = 0; i < count; ++i) text += (i > 0 ? ",\"" : "\"") + std::to_string(i) + "\":1";
  return "\"logit_bias\":{" + text + "}";
}

std::string Get(const std::string& target, const std::string& headers = "") {
  return "GET " + target + " HTTP/1.1\r\nHost: t\r\n" + headers + "\r\n";
}

std::string Post(const std::string& path, const std::string& body) {
  return "POST " + path + " HTTP/1.1\r\nHost: t\r\nContent-Length: " + std::to_string(body.size()) +
         "\r\n\r\n" + body;
}

std::string PostChat(const std::string& extra) { return Post("/v1/chat/completions", Chat(extra)); }
std::string PostText(const std::string& extra) {
  return Post("/v1/completions", Completion(extra));
}

// The body as `count` chunks of one byte, each with `extension`.
std::string PostChunked(int64_t count, const std::string& extension) {
  const std::string body = Padded(Completion(""), count);
  std::string text =
      "POST /v1/completions HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (const char byte : body) text += "1" + extension + "\r\n" + byte + "\r\n";
  return text + "0\r\n\r\n";
}

std::string Announcement(int64_t bytes) {
  return "POST /v1/completions HTTP/1.1\r\nHost: t\r\nExpect: 100-continue\r\nContent-Length: " +
         std::to_string(bytes) + "\r\n\r\n";
}

// A limit, with a request for each value.
struct Row {
  const char* name;
  int64_t inside;  // the largest value that is served
  std::function<std::string(int64_t value)> request;  // its bytes
  int served_status;
  int refused_status;
  std::vector<std::string> says;  // in the message of the refusal
};

std::vector<Row> Rows(int64_t context_tokens) {
  const auto both = [](int64_t limit) {
    return std::vector<std::string>{std::to_string(limit + 1), std::to_string(limit)};
  };
  const auto array = [](int64_t depth) {
    return "\"metadata\":" + Repeat("[", depth - 1) + Repeat("]", depth - 1);
  };
  return {
      {"target bytes", kMaxTargetBytes,
       [](int64_t n) { return Get("/" + std::string(static_cast<size_t>(n) - 1, 'a')); }, 404, 414,
       both(kMaxTargetBytes)},
      {"headers", kMaxHeaders, [](int64_t n) { return Get("/livez", Repeat("x: y\r\n", n - 1)); },
       200, 431, both(kMaxHeaders)},
      {"header bytes", kMaxHeaderBytes,
       [](int64_t n) {
         const int64_t others = std::ssize(Get("/livez", "x: \r\n"));
         return Get("/livez", "x: " + std::string(static_cast<size_t>(n - others), 'a') + "\r\n");
       },
       200, 431, both(kMaxHeaderBytes)},
      {"body bytes", kTestBody,
       [](int64_t n) { return Post("/v1/completions", Padded(Completion(""), n)); }, 200, 413,
       both(kTestBody)},
      {"chunks", kMaxChunks, [](int64_t n) { return PostChunked(n - 1, ""); }, 200, 413,
       both(kMaxChunks)},
      {"chunk extension bytes", kMaxChunkExtensionBytes,
       [](int64_t n) {
         return PostChunked(100, ";" + std::string(static_cast<size_t>(n) - 1, 'e'));
       },
       200, 431, both(kMaxChunkExtensionBytes)},
      {"JSON depth",
       static_cast<int64_t>(kMaxBodyJsonDepth),
       [array](int64_t n) { return PostText(array(n)); },
       200,
       400,
       {"metadata", "deeper than 64 levels"}},
      {"JSON keys",
       1,
       [](int64_t n) { return PostText(Repeat("\"user\":\"a\"", n, ",")); },
       200,
       400,
       {"user", "appears twice"}},
      {"messages", static_cast<int64_t>(kMaxMessages),
       [](int64_t n) { return Post("/v1/chat/completions", ChatOfMessages(n)); }, 200, 400,
       both(kMaxMessages)},
      {"stop strings", 4,
       [](int64_t n) { return PostChat("\"stop\":[" + Repeat("\"zq\"", n, ",") + "]"); }, 200, 400,
       both(4)},
      {"stop string bytes", 256,
       [](int64_t n) { return PostChat("\"stop\":\"" + Repeat("q", n) + "\""); }, 200, 400,
       both(256)},
      {"prompts", static_cast<int64_t>(kMaxPrompts),
       [](int64_t n) {
         return Post("/v1/completions", R"({"model":"needle-tiny","max_tokens":1,"prompt":[)" +
                                            Repeat("\"x\"", n, ",") + "]}");
       },
       200, 400, both(kMaxPrompts)},
      {"logit_bias entries", static_cast<int64_t>(kMaxLogitBias),
       [](int64_t n) { return PostChat(Bias(n)); }, 200, 400, both(kMaxLogitBias)},
      {"logit_bias id",
       1023,
       [](int64_t n) { return PostChat("\"logit_bias\":{\"" + std::to_string(n) + "\":1}"); },
       200,
       400,
       {"1024"}},
      {"top_logprobs", kMaxTopLogprobs,
       [](int64_t n) {
         return PostChat("\"logprobs\":true,\"top_logprobs\":" + std::to_string(n));
       },
       200, 400, both(kMaxTopLogprobs)},
      {"logprobs of completions", kMaxCompletionLogprobs,
       [](int64_t n) { return PostText("\"logprobs\":" + std::to_string(n)); }, 200, 400,
       both(kMaxCompletionLogprobs)},
      {"temperature", 2, [](int64_t n) { return PostText("\"temperature\":" + std::to_string(n)); },
       200, 400, both(2)},
      {"prompt and max_tokens",
       context_tokens - 1,
       [](int64_t n) {
         return Post("/v1/completions", R"({"model":"needle-tiny","prompt":[5],"max_tokens":)" +
                                            std::to_string(n) + "}");
       },
       200,
       400,
       {std::to_string(context_tokens), "ask for at most"}},
  };
}

std::string MessageOf(const std::string& body) {
  return std::string(boost::json::parse(body).at("error").at("message").as_string());
}

class LimitsTest : public RouterFixture {
 protected:
  static RouterConfig LimitedConfig() {
    RouterConfig config = Config();
    config.max_body.bytes = kTestBody;
    config.max_held_bodies.bytes = 4 * kTestBody;
    return config;
  }
  // Would a body of this size be let in now?
  bool MayAnnounce(int64_t bytes) {
    HttpClient client(http_);
    client.SendRaw(Announcement(bytes));
    return client.ReceiveLine() == "HTTP/1.1 100 Continue";
  }
  ClientResponse Send(const std::string& bytes) {
    HttpClient client(http_);
    client.SendRaw(bytes);
    return client.Receive();
  }
};

TEST_F(LimitsTest, EveryRowServesTheValueInsideAndRefusesTheOneOutside) {
  StartRouter(LimitedConfig());
  StartWorkers("north");
  for (const Row& row : Rows(Model().max_context_tokens)) {
    SCOPED_TRACE(row.name);
    const ClientResponse served = Send(row.request(row.inside));
    EXPECT_EQ(served.status, row.served_status) << served.body.substr(0, 500);
    const ClientResponse refused = Send(row.request(row.inside + 1));
    ASSERT_EQ(refused.status, row.refused_status) << refused.body.substr(0, 500);
    for (const std::string& text : row.says) EXPECT_THAT(MessageOf(refused.body), HasSubstr(text));
  }
  EXPECT_TRUE(decodes_[0]->WaitIdle());
}

TEST_F(LimitsTest, JsonValuesAreCountedBeforeTheyAreBuilt) {
  StartRouter();  // a body of the default size
  StartWorkers("north");
  const auto ask = [this](int64_t values) {
    return Send(PostText("\"metadata\":[" + Repeat("0", values, ",") + "]"));
  };
  // The document, its four fields and the array are values, too.
  const int64_t inside = static_cast<int64_t>(kMaxBodyJsonNodes) - 5;
  EXPECT_EQ(ask(inside).status, 200);
  const ClientResponse refused = ask(inside + 1);
  EXPECT_EQ(refused.status, 400);
  EXPECT_THAT(MessageOf(refused.body), HasSubstr("has more than 2000000 JSON values"));
}

TEST_F(LimitsTest, ANumberIsFiniteAndAnIntegerWhereOneIsMeant) {
  StartRouter();
  StartWorkers("north");
  for (const char* number : {"1.5", "1e999", "-1", "\"1\"", "true", "9223372036854775808"}) {
    const ClientResponse refused = Send(
        Post("/v1/chat/completions",
             R"({"model":"needle-tiny","messages":[{"role":"user","content":"hi"}],"max_tokens":)" +
                 std::string(number) + "}"));
    EXPECT_EQ(refused.status, 400) << number << refused.body;
    EXPECT_THAT(MessageOf(refused.body), HasSubstr("max_tokens")) << number;
  }
}

TEST_F(LimitsTest, APromptMustSaySomething) {
  StartRouter();
  for (const char* prompt : {"[]", "\"\"", "[[]]", "[\"\"]"}) {
    const ClientResponse refused = Send(Post(
        "/v1/completions", R"({"model":"needle-tiny","prompt":)" + std::string(prompt) + "}"));
    EXPECT_EQ(refused.status, 400) << prompt;
    EXPECT_THAT(MessageOf(refused.body), HasSubstr("empty")) << prompt;
  }
}

TEST_F(LimitsTest, BodiesOfAllRequestsShareABudget) {
  RouterConfig config = LimitedConfig();
  config.max_held_bodies.bytes = kTestBody;
  StartRouter(config);
  StartWorkers("north");
  HttpClient unfinished(http_);
  unfinished.SendRaw("POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: " +
                     std::to_string(kTestBody) + "\r\n\r\n" + std::string(kTestBody - 1000, '{'));
  // Until all of it is held: announcing a body costs nothing, and tells whether it would fit.
  ASSERT_TRUE(Eventually([&] { return !MayAnnounce(1001); }));
  EXPECT_TRUE(MayAnnounce(1000));
  EXPECT_EQ(Send(PostChunked(2000, "")).status, 503);
  // What the refused one sent is held until its connection has ended.
  EXPECT_TRUE(Eventually([&] {
    return Send(Post("/v1/completions", Padded(Completion(""), 1000))).status == 200;
  }));
  const ClientResponse refused = Send(Post("/v1/completions", Padded(Completion(""), 1001)));
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(ErrorCode(refused), "overloaded");
  EXPECT_TRUE(refused.headers.contains("retry-after"));
  EXPECT_THAT(MessageOf(refused.body), HasSubstr("has 1001 bytes"));
  EXPECT_THAT(MessageOf(refused.body), HasSubstr("hold " + std::to_string(kTestBody - 1000)));
  EXPECT_THAT(MessageOf(refused.body), HasSubstr(std::to_string(kTestBody)));
  unfinished.Close();
  EXPECT_TRUE(Eventually([&] {
    return Send(Post("/v1/completions", Padded(Completion(""), kTestBody))).status == 200;
  }));
}

TEST_F(LimitsTest, ABodyCountsAsItArrivesNotAsItIsAnnounced) {
  RouterConfig config = LimitedConfig();
  config.max_held_bodies.bytes = kTestBody;
  StartRouter(config);
  StartWorkers("north");
  std::vector<std::unique_ptr<HttpClient>> announcers;
  for (int i = 0; i < 50; ++i) {
    announcers.push_back(std::make_unique<HttpClient>(http_));
    announcers.back()->SendRaw(Announcement(kTestBody - 100) + "{");
    ASSERT_EQ(announcers.back()->ReceiveLine(), "HTTP/1.1 100 Continue");
  }
  const ClientResponse served =
      Send(Post("/v1/completions", Padded(Completion(""), kTestBody - 100)));
  EXPECT_EQ(served.status, 200) << served.body;
}

TEST_F(LimitsTest, ABodyIsHeldUntilItIsParsed) {
  RouterConfig config = LimitedConfig();
  config.max_held_bodies.bytes = kTestBody;
  StartRouter(config);
  StartWorkers("north");
  prefills_[0]->SetRunPause(milliseconds(1'000));
  HttpClient running(http_);
  running.SendRaw(Post("/v1/completions", Padded(Completion(""), kTestBody)));
  ASSERT_TRUE(Eventually([&] { return decodes_[0]->num_live() == 1; }));
  EXPECT_EQ(Send(Post("/v1/chat/completions", Padded("{}", kTestBody))).status, 400);
  EXPECT_EQ(running.Receive().status, 200);
}

TEST_F(LimitsTest, AConnectionTooManyIsToldSo) {
  RouterConfig config = Config();
  config.max_connections = 2;
  StartRouter(config);
  HttpClient first(http_), second(http_);
  first.SendRaw(Get("/livez"));
  second.SendRaw(Get("/livez"));
  EXPECT_EQ(first.Receive().status, 200);
  EXPECT_EQ(second.Receive().status, 200);
  HttpClient third(http_);
  const ClientResponse refused = third.Receive();
  EXPECT_EQ(refused.status, 503);
  EXPECT_TRUE(refused.headers.contains("retry-after"));
  EXPECT_THAT(MessageOf(refused.body), HasSubstr("2 connections are open, limit is 2"));
  second.Close();
  EXPECT_TRUE(Eventually([&] { return Fetch(http_, "GET", "/livez").status == 200; }));
}

// The rows of the line, without a router around it.
TEST(AdmissionLimitsTest, TheLineIsFullOfRequestsOrOfTokens) {
  asio::io_context loop;
  Admission line(loop, {.max_running = 1, .max_queued = 3, .max_queued_tokens = 100});
  std::vector<Admission::Ticket> tickets;
  const auto enter = [&](int64_t tokens) {
    ApiOr<Admission::Ticket> ticket = line.Enter(tokens);
    if (!ticket.ok()) return ticket.error();
    tickets.push_back(std::move(ticket).value());
    return ApiError{.http_status = 200};
  };
  EXPECT_EQ(enter(1000).http_status, 200);  // the first one may be as large as it is
  const ApiError too_many_tokens = enter(1);
  EXPECT_EQ(too_many_tokens.http_status, 429);
  EXPECT_EQ(too_many_tokens.code, "queue_full");
  EXPECT_THAT(too_many_tokens.message, HasSubstr("1000 tokens are waiting, this one has 1"));
  EXPECT_THAT(too_many_tokens.message, HasSubstr("limit of all is 100"));
  EXPECT_TRUE(too_many_tokens.retry_after.has_value());
  tickets.front().Run();
  EXPECT_EQ(line.queued_tokens(), 0);
  EXPECT_EQ(enter(50).http_status, 200);
  EXPECT_EQ(enter(50).http_status, 200);
  EXPECT_EQ(enter(0).http_status, 200);
  const ApiError too_many = enter(0);
  EXPECT_EQ(too_many.http_status, 429);
  EXPECT_THAT(too_many.message, HasSubstr("3 requests are waiting, limit is 3"));
  {
    Admission::Ticket runs_already = line.EnterRunning(70);
    EXPECT_EQ(line.num_running(), 2);
    EXPECT_EQ(line.num_queued(), 3);
    runs_already.Return(Admission::Ticket::Patience::kNew);
    EXPECT_EQ(line.num_running(), 1);
    EXPECT_EQ(line.num_queued(), 4);
    EXPECT_EQ(line.queued_tokens(), 170);
  }
  tickets.pop_back();
  EXPECT_EQ(enter(1).http_status, 429);
  tickets.front().Return(Admission::Ticket::Patience::kKept);
  EXPECT_EQ(line.queued_tokens(), 1100);
  tickets.clear();
  EXPECT_EQ(line.queued_tokens(), 0);
  EXPECT_EQ(line.num_queued(), 0);
}

}  // namespace
}  // namespace lodestone
