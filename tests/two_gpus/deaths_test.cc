// The real binaries, caches over NCCL: workers that are killed in mid-hand-off, links that come and
// go; as tests/two_gpus/answers_test.cc.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <thread>

#include "tests/cluster/reconcile.h"
#include "tests/two_gpus/over_nccl.h"

namespace lodestone {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr int64_t kMiB = int64_t{1} << 20;
// `lodestone up` gives up on a process that dies 5 times in a row within 5 s of its start.
constexpr int kShortLives = 4;
constexpr std::chrono::seconds kLife{6};

using DeathsOverNcclTest = OverNcclTest;
INSTANTIATE_TEST_SUITE_P(Placements, DeathsOverNcclTest,
                         testing::Values(kTwoGpus, kTwoHostsOnOneGpu),
                         testing::PrintToStringParamName());

// How often a link of that worker went down while requests used it: as decode says it, or as
// prefill.
int BrokenUnderRequests(const std::string& log) {
  return CountOf(log, "link is down, with ") - CountOf(log, "link is down, with 0 ") +
         CountOf(log, "hand-off failed");
}

// One of two clusters whose links cross. The workers that are killed, two of a kind, share GPU 0;
// those that survive are alone on GPU 1, so its memory is theirs. As two hosts on one GPU all six
// share it, and take turns.
struct Side {
  std::unique_ptr<RunningCluster> cluster;
  std::string victims;   // "prefill-" | "decode-"
  std::string survivor;  // the name
  std::unique_ptr<Streams> streams = {};
  struct Victim {
    steady_clock::time_point born = steady_clock::now();
    int short_lives = 0;  // in a row
    // Waits until it may die, and counts that.
    void Die() {
      if (short_lives == kShortLives) std::this_thread::sleep_until(born + kLife);
      short_lives = steady_clock::now() < born + kLife ? short_lives + 1 : 0;
    }
  };
  Victim victim[2] = {};
};

// Kills one worker of each side. How long it took until each had 60 tokens more.
milliseconds KillOneOfEach(Side (&sides)[2], int victim) {
  pid_t pids[2];
  for (Side& side : sides) side.victim[victim].Die();
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
    side.victim[victim].born = steady_clock::now();
  }
  return took;
}

bool AllLinked(const Side (&sides)[2]) {
  return std::all_of(std::begin(sides), std::end(sides), [](const Side& side) {
    return LinksOverNccl(side.cluster->Find(side.survivor)) == 2;
  });
}

TEST_P(DeathsOverNcclTest, KilledWorkersCostNoTokenAndNoByteOfTheSurvivors) {
  const bool share_gpu = GetParam().two_hosts;
  const int rounds = LongTests() ? 10 : share_gpu ? 1 : 2;
  const std::chrono::seconds limit(share_gpu ? 10 : 3);
  // A link that is not given back costs 100 MiB and more; a worker that was replaced may have other
  // pages of 2 MiB.
  const int64_t most_lost = share_gpu ? 16 * kMiB : kMiB;
  const std::vector<GenerateInput> inputs =
      RandomInputs({900, 1'500, 2'300, 3'100, 4'500, 6'000, 9'000}, 8, 5);
  const std::vector<GenerateOutput> expected = AnswersOfOneProcess(inputs);
  ASSERT_EQ(expected.size(), inputs.size());
  // Small slots: a prompt is in transfer for longer.
  const std::vector<std::string> small = {"--prefill-flag=--staging-slot=128KiB",
                                          "--decode-flag=--staging-slot=128KiB"};
  const auto flags = [&](std::vector<std::string> own) {
    own.insert(own.end(), small.begin(), small.end());
    return own;
  };
  const std::string other = GetParam().other_device();
  Side sides[2] = {
      {Start(flags({"--prefill", "2", "--decode", "1", "--device", "cuda:0,cuda:0," + other})),
       "prefill-", "decode-0"},
      {Start(flags({"--prefill", "1", "--decode", "2", "--device", other + ",cuda:0,cuda:0"})),
       "decode-", "prefill-0"}};
  for (Side& side : sides) {
    ASSERT_NE(side.cluster, nullptr);
    side.streams = std::make_unique<Streams>(side.cluster->router_address(), share_gpu ? 6 : 12,
                                             inputs, expected);
  }
  ASSERT_TRUE(WaitFor([&] { return AllLinked(sides); })) << "not all links came up over nccl";
  for (Side& side : sides) ASSERT_TRUE(side.streams->WaitForTokens(share_gpu ? 50 : 200));
  const int64_t free_before = FreeBytes(GetParam().other_gpu());

  milliseconds slowest{0};
  for (int round = 0; round < rounds; ++round) {
    slowest = std::max(slowest, KillOneOfEach(sides, round % 2));
    ASSERT_FALSE(HasFailure()) << "in round " << round;
  }
  EXPECT_TRUE(WaitFor([&] { return AllLinked(sides); })) << "not all links came up again over nccl";
  const int64_t lost = free_before - FreeBytes(GetParam().other_gpu());
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
  EXPECT_LE(slowest, limit);
  EXPECT_LE(longest, limit);
  EXPECT_LE(std::abs(lost), most_lost);
  std::printf(
      "RESULT %s, %d kills, %lld answers, 60 tokens of each cluster after a kill in %lld ms at "
      "most, longest wait of a stream %lld ms, %d times requests used the link, "
      "device memory of survivors %lld bytes less\n",
      GetParam().name, 2 * rounds, static_cast<long long>(answers),
      static_cast<long long>(slowest.count()),
      static_cast<long long>(longest.count()), in_use, static_cast<long long>(lost));
}

TEST_P(DeathsOverNcclTest, LinksThatComeAndGoLeaveDeviceMemoryAsItWas) {
  const int wanted = LongTests() ? 60 : 8;
  const std::vector<GenerateInput> inputs = RandomInputs({40, 80, 120, 160}, 4, 7);
  const std::vector<GenerateOutput> expected = AnswersOfOneProcess(inputs);
  ASSERT_EQ(expected.size(), inputs.size());
  const std::string other = GetParam().other_device();
  const auto cluster =
      Start({"--prefill", "2", "--decode", "2", "--device", "cuda:0,cuda:0," + other + "," + other,
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
  const int64_t free_before[2] = {FreeBytes(0), FreeBytes(GetParam().other_gpu())};
  const int before = ups();
  const auto start = steady_clock::now();
  while (ups() - before < wanted) round();
  const int64_t lost[2] = {free_before[0] - FreeBytes(0),
                           free_before[1] - FreeBytes(GetParam().other_gpu())};
  EXPECT_LE(lost[0], kMiB);
  EXPECT_LE(lost[1], kMiB);
  std::printf(
      "RESULT %s, %d link-ups and link-downs of real workers in %.1f s: %lld and %lld bytes of "
      "device memory less\n",
      GetParam().name, ups() - before,
      std::chrono::duration<double>(steady_clock::now() - start).count(),
      static_cast<long long>(lost[0]), static_cast<long long>(lost[1]));
}

}  // namespace
}  // namespace lodestone
