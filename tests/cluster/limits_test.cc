// A request that nobody waits for any more stops within a chunk, and its memory is free within a
// second: clients that leave, in prefill and in decode, and deadlines that pass.

#include <gtest/gtest.h>

#include <thread>

#include "tests/cluster/reconcile.h"
#include "tests/cluster/running_cluster.h"
#include "tests/testing/time_limits.h"

namespace lodestone {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr int64_t kChunk = 128;
constexpr std::chrono::seconds kLong(120);
constexpr milliseconds kFreeWithin(1'000);

class CancelTest : public testing::Test {
 protected:
  void Start(std::vector<std::string> more = {}) {
    std::vector<std::string> flags = {"--max-context", "16384", "--threads", "1",
                                      "--chunk-tokens", std::to_string(kChunk)};
    flags.insert(flags.end(), more.begin(), more.end());
    auto cluster = RunningCluster::Start(flags);
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    cluster_ = *std::move(cluster);
  }
  double Counted(const std::string& member, const std::string& metric) const {
    return MetricSum(MetricsPage(cluster_->Find(member).metrics_port), metric);
  }
  // From now on: at most `most` more of the metric, and nothing held after kFreeWithin.
  void ExpectStops(const std::string& member, const std::string& metric, double most) const {
    const double before = Counted(member, metric);
    const auto deadline = steady_clock::now() + Allowed(kFreeWithin);
    while (!IsFree() && steady_clock::now() < deadline) {
      std::this_thread::sleep_for(milliseconds(10));
    }
    EXPECT_TRUE(IsFree()) << "memory is held 1 s after the request ended";
    std::this_thread::sleep_for(milliseconds(300));
    EXPECT_LE(Counted(member, metric) - before, most) << metric << " of " << member;
  }
  bool IsFree() const {
    for (const char* name : {"prefill-0", "decode-0"}) {
      const auto status = RunningCluster::StatusOf(cluster_->Find(name));
      if (!status || status->live_leases() > 0 || status->reserved_bytes() > 0 ||
          status->orphan_bytes() > 0 || status->used_pages() > 0) {
        return false;
      }
    }
    return true;
  }

  std::unique_ptr<RunningCluster> cluster_;
};

TEST_F(CancelTest, AClientThatLeavesInPrefillStopsItWithinAChunk) {
  Start();
  const GenerateClient client(cluster_->router_address());
  const auto answer = client.Generate(RandomInputs({12'000}, 4, 1).front(), milliseconds(400));
  EXPECT_FALSE(answer.ok()) << "the prompt was computed in 0.4 s";
  // One chunk is under way, and one may have ended between the end of the call and the count.
  ExpectStops("prefill-0", "lodestone_prompt_tokens_total", 2 * kChunk);
  EXPECT_EQ(Reconcile(*cluster_), "");
}

TEST_F(CancelTest, AClientThatLeavesInDecodeStopsItAtOnce) {
  Start();
  const GenerateClient client(cluster_->router_address());
  int tokens = 0;
  const auto answer = client.Generate(RandomInputs({40}, 4000, 2).front(), kLong,
                                      [&](const GeneratedToken&) { return ++tokens < 20; });
  EXPECT_TRUE(absl::IsCancelled(answer.status())) << answer.status();
  // Steps go on until the router has heard of it and told the worker.
  ExpectStops("decode-0", "lodestone_generation_tokens_total", 200);
  EXPECT_EQ(Reconcile(*cluster_), "");
}

TEST_F(CancelTest, NothingRunsMoreThanAChunkPastItsDeadline) {
  Start({"--router-flag=--request-timeout=500ms"});
  const GenerateClient client(cluster_->router_address());
  const auto in_prefill = client.Generate(RandomInputs({12'000}, 4, 3).front(), kLong);
  EXPECT_TRUE(absl::IsDeadlineExceeded(in_prefill.status())) << in_prefill.status();
  ExpectStops("prefill-0", "lodestone_prompt_tokens_total", 2 * kChunk);
  const auto in_decode = client.Generate(RandomInputs({40}, 8000, 4).front(), kLong);
  EXPECT_TRUE(absl::IsDeadlineExceeded(in_decode.status())) << in_decode.status();
  ExpectStops("decode-0", "lodestone_generation_tokens_total", 200);
  EXPECT_EQ(Reconcile(*cluster_), "");
}

}  // namespace
}  // namespace lodestone
