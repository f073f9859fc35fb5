// Clients that ask for a long answer and do not read it: they cost bounded memory, hold nobody up,
// and are cut.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iostream>
#include <thread>
#include <utility>

#include "base/config.h"
#include "tests/router/router_fixture.h"
#include "tests/testing/time_limits.h"

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

double Median(std::vector<double> values) {
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Every second one, in turn: up to 1 KiB a second each.
void ReadALittle(const std::vector<std::unique_ptr<HttpClient>>& clients,
                 const std::stop_token& stop) {
  const auto pause = std::chrono::microseconds(2'000'000 / std::ssize(clients));
  for (size_t i = 0; !stop.stop_requested(); i = (i + 2) % clients.size()) {
    clients[i]->SkipSome();
    std::this_thread::sleep_for(pause);
  }
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
    return ChatBody("\"stream\":true,\"max_tokens\":" + std::to_string(kAnswerTokens));
  }
  // Clients that send a request and never read.
  std::vector<std::unique_ptr<HttpClient>> AskAndIgnore(int count) {
    std::vector<std::unique_ptr<HttpClient>> clients;
    for (int i = 0; i < count; ++i) {
      clients.push_back(std::make_unique<HttpClient>(http_, ClientPace{.receive_bytes = 1024}));
      clients.back()->Send("POST", "/v1/chat/completions", LongChat());
    }
    return clients;
  }
  // The p99 of the seconds between two tokens of an answer that a client reads as it comes.
  double TailOfAnAnswer(int num_tokens) {
    HttpClient client(http_);
    client.Send("POST", "/v1/chat/completions",
                ChatBody("\"stream\":true,\"max_tokens\":" + std::to_string(num_tokens)));
    EXPECT_EQ(client.ReceiveHead().status, 200);
    std::vector<double> gaps;
    for (auto last = std::chrono::steady_clock::now(); client.ReadEvent().has_value();) {
      const auto now = std::chrono::steady_clock::now();
      gaps.push_back(std::chrono::duration<double>(now - std::exchange(last, now)).count());
    }
    EXPECT_GE(std::ssize(gaps), num_tokens);
    const auto tail = gaps.end() - 1 - std::ssize(gaps) / 100;
    std::nth_element(gaps.begin(), tail, gaps.end());
    return *tail;
  }
  // Until the router has written what it can to those who do not read: no token more in a second.
  void AwaitStillness() {
    double before = -1;
    auto since = std::chrono::steady_clock::now();
    ASSERT_TRUE(Eventually([&] {
      const double written = Metric("lodestone_generation_tokens_total");
      const auto now = std::chrono::steady_clock::now();
      if (std::exchange(before, written) != written) since = now;
      return now - since >= std::chrono::seconds(1);
    }, 60));
  }
};

TEST_F(SlowClientsTest, TheyCostBoundedMemory) {
  if (kSanitized) GTEST_SKIP() << "sanitizers keep freed memory, so what is resident says nothing";
  const int count = IsLong() ? 200 : 12;
  Start(std::chrono::minutes(5));
  const int64_t before = ResidentBytes();
  const auto clients = AskAndIgnore(count);
  ASSERT_TRUE(Eventually([&] { return Metric("lodestone_router_open_streams") == count; }, 60));
  AwaitStillness();
  const int64_t growth = ResidentBytes() - before;
  EXPECT_LE(growth, count * kMiB) << "of " << count << " clients";
  EXPECT_EQ(Metric("lodestone_router_open_streams"), count);
}

// Half of them read nothing, the others a little now and then. What else the machine does moves a
// p99 far more than they may, so rounds without them and with them take turns, medians are
// compared, and a difference must last over more rounds to count.
TEST_F(SlowClientsTest, TheyHoldNobodyUp) {
  const int count = IsLong() ? 200 : 8;
  const int num_tokens = IsLong() ? 1000 : 150;
  const size_t first_look = IsLong() ? 7 : 2;
  const size_t last_look = IsLong() ? 35 : 15;
  const double most = IsLong() ? 1.1 : 1.5;
  Start(std::chrono::minutes(5));
  std::vector<double> alone, beside;
  double ratio = 0;
  while (alone.size() < last_look) {
    decodes_[0]->SetTokensPerStep(1);
    decodes_[0]->SetTokenPause(milliseconds(2));
    alone.push_back(TailOfAnAnswer(num_tokens));
    decodes_[0]->SetTokensPerStep(50);
    decodes_[0]->SetTokenPause(milliseconds(0));
    auto clients = AskAndIgnore(count);
    ASSERT_TRUE(Eventually([&] { return Metric("lodestone_router_open_streams") == count; }, 60));
    AwaitStillness();
    decodes_[0]->SetTokensPerStep(1);
    decodes_[0]->SetTokenPause(milliseconds(2));
    {
      const std::jthread reader([&](std::stop_token stop) { ReadALittle(clients, stop); });
      beside.push_back(TailOfAnAnswer(num_tokens));
    }
    clients.clear();
    ASSERT_TRUE(Eventually([&] { return Metric("lodestone_router_open_streams") == 0; }, 60));
    ratio = Median(beside) / Median(alone);
    if (alone.size() >= first_look && ratio <= most) break;
  }
  std::cout << "p99 between tokens: " << Median(beside) * 1e3 << " ms beside " << count
            << " slow clients, " << Median(alone) * 1e3 << " ms alone; medians of " << alone.size()
            << " rounds\n";
  EXPECT_LE(ratio, most);
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
