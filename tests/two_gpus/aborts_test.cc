// The real binaries, caches over NCCL: requests that their clients give up at any moment, while
// others' bytes are on the same link; as tests/two_gpus/answers_test.cc.
#include <gtest/gtest.h>

#include <cstdio>
#include <random>
#include <thread>

#include "tests/cluster/reconcile.h"
#include "tests/two_gpus/over_nccl.h"

namespace lodestone {
namespace {

using std::chrono::milliseconds;

using AbortsOverNcclTest = OverNcclTest;
INSTANTIATE_TEST_SUITE_P(Placements, AbortsOverNcclTest,
                         testing::Values(kTwoGpus, kTwoHostsOnOneGpu),
                         testing::PrintToStringParamName());

// Clients that ask and lose patience, each after another time.
class Impatient {
 public:
  Impatient(const std::string& router, const std::vector<GenerateInput>& inputs, int threads)
      : client_(router), inputs_(inputs) {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this, i] { AskUntilEnd(i); });
  }
  ~Impatient() { End(); }
  void End() {
    end_ = true;
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }
  int given_up() const { return given_up_; }

 private:
  void AskUntilEnd(int seed) {
    std::mt19937 random(static_cast<uint32_t>(seed));
    while (!end_) {
      const GenerateInput& input = inputs_[random() % inputs_.size()];
      // The longest prompts take some 50 ms: most are given up before, in or after their hand-off.
      const auto answer = client_.Generate(input, milliseconds(1 + random() % 80));
      if (!answer.ok()) ++given_up_;
    }
  }

  const GenerateClient client_;
  const std::vector<GenerateInput>& inputs_;
  std::atomic<bool> end_ = false;
  std::atomic<int> given_up_ = 0;
  std::vector<std::thread> threads_;
};

TEST_P(AbortsOverNcclTest, LeaveTheLinksUpAndOtherAnswersRight) {
  const int wanted = LongTests() ? 1'000 : 100;
  const std::vector<GenerateInput> inputs =
      RandomInputs({300, 900, 2'300, 4'500, 9'000}, 8, /*seed=*/11);
  const std::vector<GenerateOutput> expected = AnswersOfOneProcess(inputs);
  ASSERT_EQ(expected.size(), inputs.size());
  // Small slots: many offers of a prompt are under way.
  const auto cluster = Start({"--device", "cuda:0," + GetParam().other_device(),
                              "--prefill-flag=--staging-slot=128KiB",
                              "--decode-flag=--staging-slot=128KiB",
                              "--prefill-flag=--staging-slots=16",
                              "--decode-flag=--staging-slots=16"});
  ASSERT_NE(cluster, nullptr);
  Streams patient(cluster->router_address(), 4, inputs, expected);
  ASSERT_TRUE(patient.WaitForTokens(20));
  const int64_t answers_before = patient.answers();
  {
    Impatient impatient(cluster->router_address(), inputs, 8);
    EXPECT_TRUE(WaitFor([&] { return impatient.given_up() >= wanted; }, milliseconds(120'000)));
  }
  EXPECT_TRUE(WaitFor([&] { return patient.answers() >= answers_before + 8; }));
  patient.End();
  EXPECT_TRUE(patient.problems().empty()) << patient.problems().front();
  EXPECT_EQ(Reconcile(*cluster), "");
  EXPECT_EQ(LinksOverNccl(cluster->Find("prefill-0")), 1);
  int ups = 0;
  int downs = 0;
  for (const char* name : {"prefill-0", "decode-0"}) {
    const std::string log = TextOf(cluster->Find(name).log_path);
    ups += CountOf(log, "link is up over nccl");
    downs += CountOf(log, "link is down");
  }
  EXPECT_EQ(ups, 2) << "the link has not come up again";
  EXPECT_EQ(downs, 0);
  std::printf("RESULT %s, %d requests given up: %lld other answers, all right; links stayed up\n",
              GetParam().name, wanted, static_cast<long long>(patient.answers()));
}

}  // namespace
}  // namespace lodestone
