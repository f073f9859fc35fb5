// The real binaries, caches over NCCL: the answers of one process, and how long the first token
// takes. Runs where the binaries lie beside it, from the source root; skipped where a placement or
// NCCL is not to be had. LODESTONE_LONG_TESTS=1 makes it the numbers of the requirements instead of
// a look.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>

#include "tests/cluster/reconcile.h"
#include "tests/two_gpus/over_nccl.h"

namespace lodestone {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

using AnswersOverNcclTest = OverNcclTest;
INSTANTIATE_TEST_SUITE_P(Placements, AnswersOverNcclTest,
                         testing::Values(kTwoGpus, kTwoHostsOnOneGpu),
                         testing::PrintToStringParamName());

TEST_P(AnswersOverNcclTest, EqualThoseOfOneProcess) {
  std::vector<int64_t> lengths = {1, 2, 3, 4, 127, 128, 129, 255, 256, 257, 511, 512, 513};
  if (LongTests()) {
    for (int64_t length = 5; length <= 300; ++length) lengths.push_back(length);
    lengths.insert(lengths.end(), {508, 509, 510, 514, 515, 516, 1'023, 1'024, 1'025, 4'500});
  }
  lengths.push_back(10'500);
  const std::vector<GenerateInput> inputs = RandomInputs(lengths, 16, 3);
  const std::vector<GenerateOutput> expected = AnswersOfOneProcess(inputs);
  ASSERT_EQ(expected.size(), inputs.size());
  const auto cluster = Start({"--device", "cuda:0," + GetParam().other_device()});
  ASSERT_NE(cluster, nullptr);
  Streams streams(cluster->router_address(), 8, inputs, expected);
  ASSERT_TRUE(
      WaitFor([&] { return streams.answers() >= std::ssize(inputs); }, milliseconds(120'000)));
  streams.End();
  const std::vector<std::string> problems = streams.problems();
  EXPECT_EQ(problems.size(), 0u) << problems.front();
  EXPECT_EQ(LinksOverNccl(cluster->Find("prefill-0")), 1);
  EXPECT_EQ(LinksOverNccl(cluster->Find("decode-0")), 1);
  std::printf("RESULT %s against one process: %lld answers, %zu differences\n",
              GetParam().name, static_cast<long long>(streams.answers()), problems.size());
}

// What a cluster adds to the time to the first token: router, reservation, and what packing and
// sending rows takes from the steps. Of the number of tokens in a chunk, which is a step.
class FirstTokenTest : public OverNcclTest {
 protected:
  static void Measure(int chunk_tokens);
};
// On one GPU the workers would take each other's time.
INSTANTIATE_TEST_SUITE_P(Placements, FirstTokenTest, testing::Values(kTwoGpus),
                         testing::PrintToStringParamName());

TEST_P(FirstTokenTest, ComesHardlyLaterThanInOneProcess) { Measure(4'096); }
TEST_P(FirstTokenTest, ComesHardlyLaterThanInOneProcessWithSmallChunks) { Measure(512); }

void FirstTokenTest::Measure(int chunk_tokens) {
  constexpr int kRepeats = 7;
  const std::vector<GenerateInput> prompts =
      RandomInputs(std::vector<int64_t>(kRepeats, 10'500), 1, 9);
  const auto median = [](std::vector<double> times) {
    std::nth_element(times.begin(), times.begin() + kRepeats / 2, times.end());
    return 1e3 * times[kRepeats / 2];
  };
  const auto since = [](steady_clock::time_point start) {
    return std::chrono::duration<double>(steady_clock::now() - start).count();
  };
  std::vector<double> alone, together;
  {
    ClusterFlags flags;
    flags.model = kNeedleTiny;
    flags.device = "cuda:0";
    flags.max_context = "12288";
    auto options = SingleProcessOptions(flags);
    ASSERT_TRUE(options.ok()) << options.status();
    options->max_batch_tokens = chunk_tokens;
    const auto engine = Engine::Create(*options);
    ASSERT_TRUE(engine.ok()) << engine.status();
    for (int i = -1; i < kRepeats; ++i) {
      const auto start = steady_clock::now();
      const auto answer =
          Generate(**engine, {&prompts[static_cast<size_t>(std::max(0, i))], 1}, {});
      ASSERT_TRUE(answer.ok()) << answer.status();
      if (i >= 0) alone.push_back(since(start));
    }
  }
  const auto cluster = Start(
      {"--device", "cuda:0,cuda:1", "--chunk-tokens", std::to_string(chunk_tokens)});
  ASSERT_NE(cluster, nullptr);
  const GenerateClient client(cluster->router_address());
  for (int i = -1; i < kRepeats; ++i) {
    GenerateInput input = prompts[static_cast<size_t>(std::max(0, i))];
    input.sampling.max_new_tokens = 4;
    double first = 0;
    const auto start = steady_clock::now();
    const auto answer =
        client.Generate(input, std::chrono::seconds(30), [&](const GeneratedToken&) {
          if (first == 0) first = since(start);
          return true;
        });
    ASSERT_TRUE(answer.ok()) << answer.status();
    if (i >= 0) together.push_back(first);
  }
  EXPECT_EQ(LinksOverNccl(cluster->Find("prefill-0")), 1);
  const std::string page = MetricsPage(cluster->Find("prefill-0").metrics_port);
  std::printf("RESULT first token of 10,500 tokens, chunks of %d, medians of %d: one process "
              "%.2f ms, cluster %.2f ms, of which steps %.2f\n",
              chunk_tokens, kRepeats, median(alone), median(together),
              1e3 * MetricSum(page, "lodestone_step_seconds_sum") / (kRepeats + 1));
}

}  // namespace
}  // namespace lodestone
