// Aborts while rows are on their way to a decode worker whose memory holds few requests, so that
// the pages of an aborted one belong to another at once. The others get the right tokens.

#include <gtest/gtest.h>

#include <atomic>
#include <random>

#include "base/config.h"
#include "engine/generate.h"
#include "tests/decode/worker_pair.h"
#include "tests/tools/fault_proxy.h"

namespace lodestone {
namespace {

using std::chrono::milliseconds;

constexpr char kProxyHost[] = "127.0.0.2";  // the decode worker, as the prefill workers see it
constexpr int kClients = 12;
constexpr int64_t kMaxDelayMs = 200;

int NumAborts() { return GetEnvironment("LODESTONE_LONG_TESTS") == "1" ? 10'000 : 1'000; }

class AbortTest : public testing::Test {
 protected:
  static WorkerConfig Config(int64_t max_sequences) {
    WorkerConfig config = SmallWorkerConfig();
    config.max_sequences = max_sequences;
    config.max_context = 512;
    config.staging_slot = {int64_t{64} << 10};
    return config;
  }
  static PrefillConfig Prefill() {
    PrefillConfig config;
    config.worker = Config(8);
    config.chunk_tokens = "64";
    config.grpc_port = config.metrics_port = 0;
    return config;
  }
  static DecodeConfig Decode() {
    DecodeConfig config;
    config.worker = Config(5);  // of 12 clients
    config.grpc_port = config.metrics_port = 0;
    return config;
  }

  AbortTest() {
    const int grpc_port = decode_.host().grpc_port(), data_port = decode_.process().data_port();
    control_ = FaultProxy::Start({.listen_host = kProxyHost,
                                  .listen_port = grpc_port,
                                  .target_port = grpc_port})
                   .value();
    data_ = FaultProxy::Start({.listen_host = kProxyHost,
                               .listen_port = data_port,
                               .target_port = data_port,
                               .frames = true})
                .value();
    decode_address_ = kProxyHost + (":" + std::to_string(grpc_port));
    for (int64_t length : {20, 70, 130, 200}) {
      inputs_.push_back({SomePrompt(length, static_cast<uint64_t>(length)),
                         {.ignore_eos = true, .max_new_tokens = 3, .logprobs = true}});
    }
    const auto engine = Engine::Create(SmallEngineOptions(SmallWorkerConfig())).value();
    expected_ = Generate(*engine, inputs_, {.max_sequences = 1}).value();
  }

  // Asks until there have been enough aborts; most are aborted at some moment, by one side or both.
  void AskAndAbort(uint64_t seed) {
    std::mt19937_64 random(seed);
    while (aborts_ < NumAborts()) {
      const size_t i = random() % inputs_.size();
      const RunningPrefill& prefill = random() % 2 == 0 ? prefill_ : other_prefill_;
      ScriptedRequest request(prefill, decode_, inputs_[i].tokens, inputs_[i].sampling);
      request.RouteToDecodeVia(decode_address_);
      if (!request.Reserve().ok()) {  // full: as it should be
        ++refused_;
        std::this_thread::sleep_for(milliseconds(10));
        continue;
      }
      request.Subscribe();
      const bool abort = random() % 10 < 7;
      absl::Status status;
      std::thread run([&] { status = request.Run(); });
      if (abort) {
        std::this_thread::sleep_for(milliseconds(random() % 40));
        const uint64_t how = random() % 3;
        if (how != 0) request.CancelRun();
        if (how != 1) request.Cancel();
        ++aborts_;
      }
      run.join();
      if (!abort && status.ok()) request.ReadToEnd();
      request.Cancel();
      Check(i, request, abort, status);
    }
  }
  void Check(size_t i, const ScriptedRequest& request, bool aborted, const absl::Status& status) {
    const std::vector<GeneratedToken>& expected = expected_[i].tokens;
    bool right = request.tokens().size() <= expected.size();
    for (size_t t = 0; right && t < request.tokens().size(); ++t) {
      right = request.tokens()[t] == expected[t];
    }
    wrong_ += !right;
    if (aborted) return;
    const bool whole = status.ok() && request.error().ok() &&
                       request.tokens().size() == expected.size();
    ++(whole ? whole_ : failed_);
    if (!whole) ADD_FAILURE() << "not aborted, but: " << status << ", " << request.error();
  }

  RunningPrefill prefill_{Prefill()}, other_prefill_{Prefill()};
  RunningDecode decode_{Decode()};
  std::unique_ptr<FaultProxy> control_, data_;
  std::string decode_address_;
  std::vector<GenerateInput> inputs_;
  std::vector<GenerateOutput> expected_;
  std::atomic<int> aborts_{0}, whole_{0}, failed_{0}, wrong_{0}, refused_{0};
};

TEST_F(AbortTest, PagesOfAnAbortedRequestAreNotWrittenOnceTheyAreAnothers) {
  std::mt19937_64 random(1);
  std::mutex mutex;
  data_->SetRule(
      [&](uint64_t) {
        const std::lock_guard lock(mutex);
        return random() % 40 == 0 ? FrameFault::kDelay : FrameFault::kNone;
      },
      milliseconds(kMaxDelayMs));
  const TimePoint start = RealClock()->Now();
  std::vector<std::thread> clients;
  for (int i = 0; i < kClients; ++i) {
    clients.emplace_back([this, i] { AskAndAbort(static_cast<uint64_t>(i) + 1); });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(wrong_, 0);
  EXPECT_EQ(failed_, 0);
  EXPECT_GT(whole_, NumAborts() / 10);
  EXPECT_GT(refused_, 0) << "the pool was not small";
  EXPECT_GT(data_->num_done(FrameFault::kDelay), NumAborts() / 50);
  EXPECT_TRUE(prefill_.BecomesIdle());
  EXPECT_TRUE(other_prefill_.BecomesIdle());
  EXPECT_TRUE(decode_.BecomesIdle());
  const std::chrono::duration<double> time = RealClock()->Now() - start;
  std::cout << aborts_ << " aborts, " << whole_ << " whole answers, " << wrong_ << " wrong, "
            << refused_ << " refused, " << data_->num_done(FrameFault::kDelay)
            << " delayed frames of " << data_->num_frames() << " in " << time.count() << " s\n";
}

}  // namespace
}  // namespace lodestone
