// Real prefill and decode workers, the bundled model, and one fault at a time: at every named point
// of the protocol, and on the connections between the two. Whatever happens, a request has the
// right tokens or one clear error, in bounded time, and nothing stays behind.

#include <dirent.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/config.h"
#include "base/failpoint.h"
#include "engine/generate.h"
#include "tests/decode/worker_pair.h"
#include "tests/testing/long_tests.h"
#include "tests/testing/time_limits.h"
#include "tests/tools/fault_proxy.h"

namespace lodestone {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr char kProxyHost[] = "127.0.0.2";  // the decode worker, as the prefill worker sees it
constexpr int64_t kPromptLength = 200;
constexpr int32_t kNewTokens = 6;

int NumOpenFiles() {
  DIR* const directory = opendir("/proc/self/fd");
  int count = 0;
  while (readdir(directory) != nullptr) ++count;
  closedir(directory);
  return count;
}

// A prefill and a decode worker with proxies for both connections between them. One for all tests:
// each must leave it as it found it.
class FaultyPair {
 public:
  FaultyPair() {
    // The ports of the decode worker at another address: a worker is told the host only once.
    const int grpc_port = decode.host().grpc_port();
    control = FaultProxy::Start({.listen_host = kProxyHost,
                                 .listen_port = grpc_port,
                                 .target_port = grpc_port})
                  .value();
    data = FaultProxy::Start({.listen_host = kProxyHost,
                              .listen_port = decode.process().data_port(),
                              .target_port = decode.process().data_port(),
                              .frames = true,
                              .next_frame = seconds(2)})  // it has to be computed first
               .value();
    const auto engine = Engine::Create(SmallEngineOptions(SmallWorkerConfig())).value();
    input = {SomePrompt(kPromptLength, 1),
             {.ignore_eos = true, .max_new_tokens = kNewTokens, .logprobs = true}};
    expected = Generate(*engine, std::vector{input}, {.max_sequences = 1}).value().front().tokens;
  }

  static FaultyPair& Get() {
    static auto* const pair = new FaultyPair();
    return *pair;
  }

  // One attempt. Checks what must hold whatever happens: the tokens that came are the right ones.
  absl::Status Ask() {
    ++num_asked;
    ScriptedRequest request(prefill, decode, input.tokens, input.sampling);
    request.RouteToDecodeVia(kProxyHost + decode.address().substr(decode.address().rfind(':')));
    const absl::Status status = request.Answer();
    EXPECT_LE(request.num_terminal_events(), 1);
    EXPECT_LE(request.tokens().size(), expected.size());
    for (size_t i = 0; i < request.tokens().size() && i < expected.size(); ++i) {
      EXPECT_EQ(request.tokens()[i], expected[i]) << "token " << i;
    }
    if (status.ok()) {
      EXPECT_EQ(request.tokens().size(), expected.size());
    }
    if (!status.ok()) {
      EXPECT_FALSE(status.message().empty());
    }
    request.Cancel();  // as a router does when it is done with an attempt
    return status;
  }

  // Attempts until one succeeds; the time that took, or a failure after `limit`.
  milliseconds TimeToAnswer(seconds limit) {
    const TimePoint start = RealClock()->Now();
    const auto passed = [start] {
      return std::chrono::duration_cast<milliseconds>(RealClock()->Now() - start);
    };
    while (true) {
      const absl::Status status = Ask();
      if (status.ok()) return passed();
      if (passed() > limit) {
        ADD_FAILURE() << "no answer for " << passed().count() << " ms, last: " << status;
        return passed();
      }
      std::this_thread::sleep_for(milliseconds(10));
    }
  }

  // Every byte, lease and slot is back, and every hand-off that began has one end.
  void ExpectIdle() {
    const TimePoint start = RealClock()->Now();
    EXPECT_TRUE(prefill.BecomesIdle());
    EXPECT_TRUE(decode.BecomesIdle());
    EXPECT_TRUE(Eventually([&] { return prefill.GetStatus().load().running_requests() == 0; }));
    EXPECT_TRUE(Eventually([&] { return decode.GetStatus().live_leases() == 0; }));
    EXPECT_LE(RealClock()->Now() - start, Allowed(seconds(5)));
  }
  double HandoffEnds() {
    double ends = 0;
    for (const char* result : {"adopted", "aborted", "failed"}) {
      ends += prefill.host().metrics().Counter(MetricId::kHandoffs, {{"result", result}}).Value();
    }
    return ends;
  }

  RunningPrefill prefill{[] {
    PrefillConfig config;
    config.worker = SmallWorkerConfig();
    config.chunk_tokens = "64";
    config.grpc_port = config.metrics_port = 0;
    return config;
  }()};
  RunningDecode decode{[] {
    DecodeConfig config;
    config.worker = SmallWorkerConfig();
    config.grpc_port = config.metrics_port = 0;
    return config;
  }()};
  std::unique_ptr<FaultProxy> control, data;
  GenerateInput input;
  std::vector<GeneratedToken> expected;
  int64_t num_asked = 0;
};

class FaultScenariosTest : public testing::Test {
 protected:
  void SetUp() override { EXPECT_EQ(pair_.Ask(), absl::OkStatus()); }
  void TearDown() override {
    failpoint::DisarmAll();
    pair_.control->SetWeather(Weather::kClear);
    pair_.data->SetWeather(Weather::kClear);
    pair_.data->SetRule({});
    pair_.ExpectIdle();
  }
  FaultyPair& pair_ = FaultyPair::Get();
};

// ---- Named points

// Every state of a request, in its order.
constexpr const char* kStates[] = {
    "decode_reserve",    "prefill_enqueue",   "kvtransfer.pack",  "kvtransfer.offer",
    "kvtransfer.grant",  "kvtransfer.write",  "kvtransfer.commit", "kvtransfer.handoff",
    "kvtransfer.adopt",  "decode_adopt",      "kvtransfer.adopted"};
constexpr const char* kLinkStates[] = {"kvtransfer.link_open", "kvtransfer.link_accept"};

TEST_F(FaultScenariosTest, AnErrorAtEveryStateIsToldAndTheNextAttemptAnswers) {
  std::vector<const char*> codes = {"UNAVAILABLE", "DATA_LOSS"};
  if (LongTests()) codes.insert(codes.end(), {"INTERNAL", "RESOURCE_EXHAUSTED", "CANCELLED"});
  for (const char* code : codes) {
    for (const char* state : kStates) {
      SCOPED_TRACE(std::string(state) + " " + code);
      const double ends = pair_.HandoffEnds();
      const int64_t asked = pair_.num_asked;
      ASSERT_TRUE(failpoint::Arm(state, "1*error(" + std::string(code) + ")").ok());
      const TimePoint start = RealClock()->Now();
      const absl::Status status = pair_.Ask();
      EXPECT_LT(RealClock()->Now() - start, Allowed(seconds(3)));
      EXPECT_EQ(failpoint::NumHits(state), 1);
      // Once decode owns the request, the end of the link does not concern it any more.
      if (std::string_view(state) != "kvtransfer.adopted") {
        EXPECT_FALSE(status.ok());
      }
      EXPECT_LE(pair_.TimeToAnswer(seconds(5)), Allowed(seconds(3)));
      const bool began = std::string_view(state) != "decode_reserve" &&
                         std::string_view(state) != "prefill_enqueue";
      const double begun = static_cast<double>(pair_.num_asked - asked - (began ? 0 : 1));
      EXPECT_TRUE(Eventually([&] { return pair_.HandoffEnds() >= ends + begun; }));
      EXPECT_EQ(pair_.HandoffEnds(), ends + begun);
      pair_.ExpectIdle();
    }
  }
}

TEST_F(FaultScenariosTest, ADelayAtEveryStateChangesNothing) {
  for (const char* state : kStates) {
    SCOPED_TRACE(state);
    ASSERT_TRUE(failpoint::Arm(state, "delay(50ms)").ok());
    EXPECT_EQ(pair_.Ask(), absl::OkStatus());
    EXPECT_GE(failpoint::NumHits(state), 1);
    failpoint::DisarmAll();
  }
}

TEST_F(FaultScenariosTest, ALinkThatDoesNotComeUpIsToldAndComesUpLater) {
  for (const char* state : kLinkStates) {
    SCOPED_TRACE(state);
    pair_.control->SetWeather(Weather::kCut);
    pair_.data->SetWeather(Weather::kCut);
    EXPECT_TRUE(Eventually(
        [&] { return pair_.prefill.GetStatus().load().linked_instance_ids().empty(); }));
    ASSERT_TRUE(failpoint::Arm(state, "1*error(UNAVAILABLE)").ok());
    pair_.control->SetWeather(Weather::kClear);
    pair_.data->SetWeather(Weather::kClear);
    EXPECT_LE(pair_.TimeToAnswer(seconds(10)), Allowed(seconds(3)));
    EXPECT_EQ(failpoint::NumHits(state), 1);
  }
}

// ---- Connections

struct Outage {
  const char* name;
  Weather control, data;
  seconds told_within;  // of an attempt that begins while it lasts
  bool long_only;
};

// What a death, a partition and a slow network do to both connections, or to one of them.
constexpr Outage kOutages[] = {
    {"cut", Weather::kCut, Weather::kCut, seconds(2), false},
    {"data cut", Weather::kClear, Weather::kCut, seconds(2), true},
    {"control cut", Weather::kCut, Weather::kClear, seconds(2), true},
    {"partition", Weather::kBlackHole, Weather::kBlackHole, seconds(4), false},
    {"one way to decode", Weather::kNoForward, Weather::kNoForward, seconds(4), false},
    {"one way to prefill", Weather::kNoBackward, Weather::kNoBackward, seconds(4), true},
    {"control black hole", Weather::kBlackHole, Weather::kClear, seconds(4), true},
    {"data black hole", Weather::kClear, Weather::kBlackHole, seconds(13), true},
};

TEST_F(FaultScenariosTest, AnOutageIsToldInTimeAndServiceIsBackAfterIt) {
  for (const Outage& outage : kOutages) {
    if (outage.long_only && !LongTests()) continue;
    SCOPED_TRACE(outage.name);
    ASSERT_EQ(pair_.Ask(), absl::OkStatus());
    pair_.control->SetWeather(outage.control);
    pair_.data->SetWeather(outage.data);
    const TimePoint start = RealClock()->Now();
    const absl::Status status = pair_.Ask();
    EXPECT_FALSE(status.ok());
    const auto told = std::chrono::duration_cast<milliseconds>(RealClock()->Now() - start);
    EXPECT_LE(told, Allowed(outage.told_within)) << status;
    const TimePoint until = RealClock()->Now() + (LongTests() ? seconds(30) : seconds(1));
    while (RealClock()->Now() < until) {
      pair_.Ask().IgnoreError();
      std::this_thread::sleep_for(milliseconds(100));
    }
    pair_.control->SetWeather(Weather::kClear);
    pair_.data->SetWeather(Weather::kClear);
    const milliseconds back = pair_.TimeToAnswer(seconds(20));
    EXPECT_LE(back, Allowed(seconds(3)));
    std::cout << outage.name << ": told after " << told.count() << " ms, back " << back.count()
              << " ms after its end\n";
    pair_.ExpectIdle();
  }
}

TEST_F(FaultScenariosTest, ASlowNetworkIsNoFault) {
  pair_.data->SetWeather(Weather::kTrickle);
  EXPECT_EQ(pair_.Ask(), absl::OkStatus());
}

// Every kind of damage to frames, at the first frames of a request.
TEST_F(FaultScenariosTest, DamagedFramesNeverReachATokenAndTheNextAttemptAnswers) {
  std::vector<absl::Status> told;
  for (int kind = 1; kind < kNumFrameFaults; ++kind) {
    const auto fault = static_cast<FrameFault>(kind);
    for (int frame : LongTests() ? std::vector<int>{0, 1, 2, 4} : std::vector<int>{1}) {
      SCOPED_TRACE(std::string(Name(fault)) + " at frame " + std::to_string(frame));
      std::atomic<int> before{frame};
      pair_.data->SetRule(
          [&](uint64_t) { return before-- == 0 ? fault : FrameFault::kNone; }, milliseconds(100));
      const TimePoint start = RealClock()->Now();
      told.push_back(pair_.Ask());
      EXPECT_LE(RealClock()->Now() - start, Allowed(seconds(5)));
      pair_.data->SetRule({});
      EXPECT_LE(pair_.TimeToAnswer(seconds(5)), Allowed(seconds(3)));
    }
    EXPECT_GT(pair_.data->num_done(fault), 0) << Name(fault);
  }
  EXPECT_GE(std::ranges::count_if(told, [](const auto& status) { return !status.ok(); }), 9);
}

// ---- Files

TEST_F(FaultScenariosTest, BrokenLinksLeaveNoFileOpen) {
  const auto break_once = [&] {
    pair_.control->SetWeather(Weather::kCut);
    pair_.data->SetWeather(Weather::kCut);
    std::this_thread::sleep_for(milliseconds(50));
    pair_.control->SetWeather(Weather::kClear);
    pair_.data->SetWeather(Weather::kClear);
    EXPECT_LE(pair_.TimeToAnswer(seconds(10)), Allowed(seconds(3)));
  };
  break_once();
  const int before = NumOpenFiles();
  for (int i = 0; i < (LongTests() ? 100 : 4); ++i) break_once();
  EXPECT_TRUE(Eventually([&] { return NumOpenFiles() <= before + 3; })) << NumOpenFiles() << " of "
                                                                        << before;
}

}  // namespace
}  // namespace lodestone
