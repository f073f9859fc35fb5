// Clients that ask for a long answer and do not read it: they cost bounded memory, hold nobody up,
// and are cut.
#include <sys/socket.h>
#include <unistd.h>

#include <fstream>

#include "base/config.h"
#include "tests/router/router_fixture.h"

namespace lodestone {
namespace {

using std::chrono::milliseconds;

constexpr int64_t kMiB = 1 << 20;
constexpr int kAnswerTokens = 4000;  // about 800 KiB of events

bool IsLong() { return GetEnvironment("LODESTONE_LONG_TESTS") == "1"; }

int64_t ResidentBytes() {
  int64_t pages = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

class SlowClientsTest : public RouterFixture {
 protected:
  void Start(milliseconds stall_timeout) {
    RouterConfig config = Config();
    config.client_stall_timeout = stall_timeout;
    StartRouter(config);
    const int32_t token = Model().tokenizer->EncodeText("north").front();
    script_.output = std::vector<int32_t>(kAnswerTokens, token);
    AddPrefill();
    AddDecode().SetTokensPerStep(50);
    WaitReady();
  }
  static std::string LongChat() {
    return ChatBody("\"stream\":true,\"max_tokens\":" +
                    std::to_string(kAnswerTokens));
  }
  // Clients that send a request and never read.
  std::vector<std::unique_ptr<HttpClient>> AskAndIgnore(int count) {
    std::vector<std::unique_ptr<HttpClient>> clients;
    for (int i = 0; i < count; ++i) {
      clients.push_back(std::make_unique<HttpClient>(http_));
      clients.back()->Send("POST", "/v1/chat/completions", LongChat());
    }
    return clients;
  }
  double SecondsOfAnAnswer() {
    const auto start = std::chrono::steady_clock::now();
    HttpClient client(http_);
    client.Send("POST", "/v1/chat/completions", LongChat());
    EXPECT_EQ(client.ReceiveHead().status, 200);
    int events = 0;
    while (client.ReadEvent().has_value()) ++events;
    EXPECT_GE(events, kAnswerTokens);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  // Until the router has written what it can to those who do not read.
  void AwaitStillness() {
    double before = -1;
    ASSERT_TRUE(Eventually([&] {
      std::this_thread::sleep_for(milliseconds(300));
      const double now = static_cast<double>(ResidentBytes());
      return std::exchange(before, now) == now;
    }, 60));
  }
};

TEST_F(SlowClientsTest, TheyCostBoundedMemoryAndHoldNobodyUp) {
  const int count = IsLong() ? 200 : 12;
  Start(std::chrono::minutes(5));
  const double alone = std::min(SecondsOfAnAnswer(), SecondsOfAnAnswer());
  const int64_t before = ResidentBytes();
  const auto clients = AskAndIgnore(count);
  ASSERT_TRUE(Eventually([&] { return Metric("lodestone_router_open_streams") == count; }, 60));
  AwaitStillness();
  const int64_t growth = ResidentBytes() - before;
  EXPECT_LE(growth, count * kMiB) << "of " << count << " clients";
  const double beside = std::min(SecondsOfAnAnswer(), SecondsOfAnAnswer());
  EXPECT_LE(beside, 1.5 * alone + 0.1) << "alone it takes " << alone << " s";
  EXPECT_EQ(Metric("lodestone_router_open_streams"), count);
}

TEST_F(SlowClientsTest, TheyAreCutAfterTheStallTimeout) {
  constexpr int kCount = 5;
  Start(milliseconds(500));
  const auto clients = AskAndIgnore(kCount);
  EXPECT_TRUE(Eventually([&] {
    return Metric("lodestone_requests_total{code=\"499\",finish_reason=\"cancelled\"}") == kCount;
  }, 30));
  EXPECT_TRUE(Eventually([&] { return Metric("lodestone_router_open_streams") == 0; }));
  EXPECT_TRUE(decodes_[0]->WaitIdle());
}

}  // namespace
}  // namespace lodestone
