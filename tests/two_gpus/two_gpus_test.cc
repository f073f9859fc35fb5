// The real binaries on two GPUs, caches over NCCL: the answers of one process, workers that are
// killed in mid-hand-off, links that come and go. Runs where the binaries lie beside it, from the
// source root; skipped without two GPUs or NCCL. LODESTONE_LONG_TESTS=1 makes it the numbers of the
// requirements instead of a look.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <thread>

#include "base/config.h"
#include "kvtransfer/nccl_links.h"
#include "runtime/device.h"
#include "tests/cluster/reconcile.h"
#include "tests/cluster/running_cluster.h"
#include "tests/cluster/streams.h"

namespace lodestone {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr int64_t kMiB = int64_t{1} << 20;
// `lodestone up` gives up on a process that dies again and again within 5 s of its start.
constexpr std::chrono::seconds kLife{6};

bool LongTests() { return GetEnvironment("LODESTONE_LONG_TESTS") == "1"; }

int64_t FreeBytes(int gpu) { return DescribeDevice(DeviceId{gpu}).value().free_bytes; }

std::string TextOf(const std::string& path) {
  std::ifstream stream(path);
  std::ostringstream text;
  text << stream.rdbuf();
  return std::move(text).str();
}

int CountOf(const std::string& text, std::string_view what) {
  int count = 0;
  for (size_t at = text.find(what); at != text.npos; at = text.find(what, at + 1)) ++count;
  return count;
}

// How often a link of that worker went down while requests used it: as decode says it, or as
// prefill.
int BrokenUnderRequests(const std::string& log) {
  return CountOf(log, "link is down, with ") - CountOf(log, "link is down, with 0 ") +
         CountOf(log, "hand-off failed");
}

double LinksUp(const RunningMember& member) {
  return MetricSum(MetricsPage(member.metrics_port), "lodestone_link_up");
}
double LinksOverNccl(const RunningMember& member) {
  const std::string page = MetricsPage(member.metrics_port);
  std::istringstream lines(page);
  double links = 0;
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("lodestone_link_up{")) continue;
    if (line.find("transport=\"nccl\"") != line.npos)
      links += std::stod(line.substr(line.rfind(' ')));
  }
  return links;
}

bool WaitFor(const std::function<bool()>& condition, milliseconds limit = milliseconds(20'000)) {
  const auto until = steady_clock::now() + limit;
  while (!condition()) {
    if (steady_clock::now() > until) return false;
    std::this_thread::sleep_for(milliseconds(10));
  }
  return true;
}

class TwoGpusTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto second = DescribeDevice(DeviceId{1});
    if (!second.ok()) GTEST_SKIP() << "needs two GPUs: " << second.status();
    if (const auto nccl = CheckNccl(); !nccl.ok()) GTEST_SKIP() << nccl;
    ASSERT_TRUE(DescribeDevice(DeviceId{0}).ok());
  }

  static std::unique_ptr<RunningCluster> Start(std::vector<std::string> flags) {
    flags.insert(flags.end(), {"--max-context", "12288", "--max-sequences", "32"});
    auto cluster = RunningCluster::Start(flags, std::chrono::minutes(1), ProgramDirectory());
    EXPECT_TRUE(cluster.ok()) << cluster.status();
    return cluster.ok() ? *std::move(cluster) : nullptr;
  }
  static std::vector<GenerateOutput> Expected(const std::vector<GenerateInput>& inputs) {
    ClusterFlags flags;
    flags.model = kNeedleTiny;
    flags.device = "cuda:0";
    flags.max_context = "12288";
    auto expected = SingleProcessAnswers(flags, inputs);
    EXPECT_TRUE(expected.ok()) << expected.status();
    return expected.ok() ? *std::move(expected) : std::vector<GenerateOutput>{};
  }
};

TEST_F(TwoGpusTest, AnswersOverNcclEqualThoseOfOneProcess) {
  std::vector<int64_t> lengths = {1, 2, 3, 4, 127, 128, 129, 255, 256, 257, 511, 512, 513};
  if (LongTests()) {
    for (int64_t length = 5; length <= 300; ++length) lengths.push_back(length);
    lengths.insert(lengths.end(), {508, 509, 510, 514, 515, 516, 1'023, 1'024, 1'025, 4'500});
  }
  lengths.push_back(10'500);
  const std::vector<GenerateInput> inputs = RandomInputs(lengths, 16, 3);
  const std::vector<GenerateOutput> expected = Expected(inputs);
  ASSERT_EQ(expected.size(), inputs.size());
  const auto cluster = Start({"--device", "cuda:0,cuda:1"});
  ASSERT_NE(cluster, nullptr);
  Streams streams(cluster->router_address(), 8, inputs, expected);
  ASSERT_TRUE(
      WaitFor([&] { return streams.answers() >= std::ssize(inputs); }, milliseconds(120'000)));
  streams.End();
  const std::vector<std::string> problems = streams.problems();
  EXPECT_EQ(problems.size(), 0u) << problems.front();
  EXPECT_EQ(LinksOverNccl(cluster->Find("prefill-0")), 1);
  EXPECT_EQ(LinksOverNccl(cluster->Find("decode-0")), 1);
  std::printf("RESULT two GPUs against one process: %lld answers, %zu differences\n",
              static_cast<long long>(streams.answers()), problems.size());
}

// What a cluster adds to the time to the first token: router, reservation, and what packing and
// sending rows takes from the steps. Of the number of tokens in a chunk, which is a step.
class FirstTokenTest : public TwoGpusTest, public testing::WithParamInterface<int> {};
INSTANTIATE_TEST_SUITE_P(Chunks, FirstTokenTest, testing::Values(512, 4'096));

TEST_P(FirstTokenTest, ComesHardlyLaterThanInOneProcess) {
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
    options->max_batch_tokens = GetParam();
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
      {"--device", "cuda:0,cuda:1", "--chunk-tokens", std::to_string(GetParam())});
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
              GetParam(), kRepeats, median(alone), median(together),
              1e3 * MetricSum(page, "lodestone_step_seconds_sum") / (kRepeats + 1));
}

// One of two clusters whose links cross. The workers that are killed, two of a kind, share GPU 0;
// those that survive are alone on GPU 1, so its memory is theirs.
struct Side {
  std::unique_ptr<RunningCluster> cluster;
  std::string victims;   // "prefill-" | "decode-"
  std::string survivor;  // the name
  std::unique_ptr<Streams> streams = {};
  steady_clock::time_point born[2] = {steady_clock::now(), steady_clock::now()};
};

// Kills one worker of each side. How long it took until each had 60 tokens more.
milliseconds KillOneOfEach(Side (&sides)[2], int victim) {
  pid_t pids[2];
  for (Side& side : sides) std::this_thread::sleep_until(side.born[victim] + kLife);
  for (Side& side : sides) {
    EXPECT_TRUE(side.streams->WaitForTokens(30));
    const std::string name = side.victims + std::to_string(victim);
    pids[&side - sides] = side.cluster->Find(name).pid;
    side.cluster->KillMember(name);
  }
  const auto killed = steady_clock::now();
  for (Side& side : sides) EXPECT_TRUE(side.streams->WaitForTokens(60));
  const auto took = std::chrono::duration_cast<milliseconds>(steady_clock::now() - killed);
  for (Side& side : sides) {
    const std::string name = side.victims + std::to_string(victim);
    EXPECT_TRUE(side.cluster->WaitUntilReplaced(name, pids[&side - sides]))
        << side.cluster->Output();
    side.born[victim] = steady_clock::now();
  }
  return took;
}

bool AllLinked(const Side (&sides)[2]) {
  return std::all_of(std::begin(sides), std::end(sides), [](const Side& side) {
    return LinksOverNccl(side.cluster->Find(side.survivor)) == 2;
  });
}

TEST_F(TwoGpusTest, KilledWorkersCostNoTokenAndNoByteOfTheSurvivors) {
  const int rounds = LongTests() ? 10 : 2;
  const std::vector<GenerateInput> inputs =
      RandomInputs({900, 1'500, 2'300, 3'100, 4'500, 6'000, 9'000}, 8, 5);
  const std::vector<GenerateOutput> expected = Expected(inputs);
  ASSERT_EQ(expected.size(), inputs.size());
  // Small slots: a prompt is in transfer for longer.
  const std::vector<std::string> small = {"--prefill-flag=--staging-slot=128KiB",
                                          "--decode-flag=--staging-slot=128KiB"};
  const auto flags = [&](std::vector<std::string> own) {
    own.insert(own.end(), small.begin(), small.end());
    return own;
  };
  Side sides[2] = {
      {Start(flags({"--prefill", "2", "--decode", "1", "--device", "cuda:0,cuda:0,cuda:1"})),
       "prefill-", "decode-0"},
      {Start(flags({"--prefill", "1", "--decode", "2", "--device", "cuda:1,cuda:0,cuda:0"})),
       "decode-", "prefill-0"}};
  for (Side& side : sides) {
    ASSERT_NE(side.cluster, nullptr);
    side.streams = std::make_unique<Streams>(side.cluster->router_address(), 12, inputs, expected);
  }
  ASSERT_TRUE(WaitFor([&] { return AllLinked(sides); })) << "not all links came up over nccl";
  for (Side& side : sides) ASSERT_TRUE(side.streams->WaitForTokens(200));
  const int64_t free_before = FreeBytes(1);

  milliseconds slowest{0};
  for (int round = 0; round < rounds; ++round) {
    slowest = std::max(slowest, KillOneOfEach(sides, round % 2));
    ASSERT_FALSE(HasFailure()) << "in round " << round;
  }
  EXPECT_TRUE(WaitFor([&] { return AllLinked(sides); })) << "not all links came up again over nccl";
  const int64_t lost = free_before - FreeBytes(1);
  int in_use = 0;
  milliseconds longest{0};
  int64_t answers = 0;
  for (Side& side : sides) {
    side.streams->End();
    const std::vector<std::string> problems = side.streams->problems();
    EXPECT_EQ(problems.size(), 0u) << problems.front();
    EXPECT_EQ(Reconcile(*side.cluster), "");
    in_use += BrokenUnderRequests(TextOf(side.cluster->Find(side.survivor).log_path));
    longest = std::max(longest, side.streams->longest_wait());
    answers += side.streams->answers();
  }
  EXPECT_LE(slowest, std::chrono::seconds(3));
  EXPECT_LE(longest, std::chrono::seconds(3));
  EXPECT_LE(std::abs(lost), kMiB);
  std::printf(
      "RESULT %d kills under NCCL, %lld answers, 60 tokens of each cluster after a kill in %lld ms "
      "at most, longest wait of a stream %lld ms, %d times requests used the link, "
      "device memory of survivors %lld bytes less\n",
      2 * rounds, static_cast<long long>(answers), static_cast<long long>(slowest.count()),
      static_cast<long long>(longest.count()), in_use, static_cast<long long>(lost));
}

TEST_F(TwoGpusTest, LinksThatComeAndGoLeaveDeviceMemoryAsItWas) {
  const int wanted = LongTests() ? 60 : 8;
  const std::vector<GenerateInput> inputs = RandomInputs({40, 80, 120, 160}, 4, 7);
  const std::vector<GenerateOutput> expected = Expected(inputs);
  ASSERT_EQ(expected.size(), inputs.size());
  const auto cluster =
      Start({"--prefill", "2", "--decode", "2", "--device", "cuda:0,cuda:0,cuda:1,cuda:1",
             "--prefill-flag=--link-idle=50ms"});
  ASSERT_NE(cluster, nullptr);
  const auto ups = [&] {
    return CountOf(TextOf(cluster->Find("prefill-0").log_path), "link is up over nccl") +
           CountOf(TextOf(cluster->Find("prefill-1").log_path), "link is up over nccl");
  };
  const auto all_down = [&] {
    return LinksUp(cluster->Find("prefill-0")) + LinksUp(cluster->Find("prefill-1")) +
               LinksUp(cluster->Find("decode-0")) + LinksUp(cluster->Find("decode-1")) ==
           0;
  };
  const auto round = [&] {
    Streams streams(cluster->router_address(), 16, inputs, expected);
    EXPECT_TRUE(WaitFor([&] { return streams.answers() > 0; }));
    streams.End();
    EXPECT_TRUE(streams.problems().empty()) << streams.problems().front();
    EXPECT_TRUE(WaitFor(all_down));
    std::this_thread::sleep_for(milliseconds(700));  // both ends have given their memory back
  };
  while (ups() < 8) round();  // each of the four pairs twice
  const int64_t free_before[2] = {FreeBytes(0), FreeBytes(1)};
  const int before = ups();
  const auto start = steady_clock::now();
  while (ups() - before < wanted) round();
  const int64_t lost[2] = {free_before[0] - FreeBytes(0), free_before[1] - FreeBytes(1)};
  EXPECT_LE(lost[0], kMiB);
  EXPECT_LE(lost[1], kMiB);
  std::printf(
      "RESULT %d link-ups and link-downs of real workers in %.1f s: %lld and %lld bytes of device "
      "memory less\n",
      ups() - before, std::chrono::duration<double>(steady_clock::now() - start).count(),
      static_cast<long long>(lost[0]), static_cast<long long>(lost[1]));
}

}  // namespace
}  // namespace lodestone
