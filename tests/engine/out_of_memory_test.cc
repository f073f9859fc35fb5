// Whichever allocation fails while a request is admitted or computed: a status, and nothing is
// kept.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "base/config.h"
#include "engine/engine.h"
#include "tests/testing/checkpoint_writer.h"
#include "tests/testing/failing_allocations.h"
#include "tests/testing/temp_dir.h"

namespace lodestone {
namespace {

class OutOfMemoryTest : public testing::Test {
 protected:
  OutOfMemoryTest() {
    CheckpointFixture().Write(dir_.path());
    options_.model_dir = dir_.path();
    options_.num_threads = 1;  // failures are of this thread
    options_.memory_limit_bytes = int64_t{256} << 20;
    options_.max_sequences = 2;
    options_.max_context_tokens = 1024;
    options_.max_batch_tokens = 64;
  }
  const TempDir dir_;
  EngineOptions options_;
  const std::vector<int32_t> prompt_ = std::vector<int32_t>(40, 5);
  const SamplingParams sampling_{.temperature = 1,
                                 .ignore_eos = true,
                                 .max_new_tokens = 4,
                                 .logprobs = true,
                                 .top_logprobs = 3};
};

TEST_F(OutOfMemoryTest, AnEngineIsMadeOrRefused) {
  const int64_t stride = GetEnvironment("LODESTONE_LONG_TESTS") == "1" ? 1 : 7;
  const int64_t failures = FailEveryAllocation(
      [&](auto arm) {
        absl::Status status;
        arm([&] { status = Engine::Create(options_).status(); });
        EXPECT_TRUE(status.ok() || absl::IsResourceExhausted(status)) << status;
      },
      stride);
  EXPECT_GT(failures * stride, 500);
}

TEST_F(OutOfMemoryTest, ARequestIsAdmittedOrRefusedWithTheLedgerAsBefore) {
  const auto engine = Engine::Create(options_).value();
  const int64_t failures = FailEveryAllocation([&](auto arm) {
    std::vector<int32_t> tokens = prompt_;
    absl::StatusOr<std::unique_ptr<Sequence>> sequence = absl::UnknownError("");
    arm([&] { sequence = engine->NewSequence(std::move(tokens), 0, sampling_, 44); });
    if (sequence.ok()) return;
    EXPECT_TRUE(absl::IsResourceExhausted(sequence.status())) << sequence.status();
    EXPECT_TRUE(engine->cache().ledger().CheckIdle().ok());
  });
  EXPECT_GE(failures, 3);  // the account, the cache and the sequence
}

TEST_F(OutOfMemoryTest, AChunkIsComputedOrTheStepFailsAndNothingIsKept) {
  const int64_t failures = FailEveryAllocation([&](auto arm) {
    const auto engine = Engine::Create(options_).value();
    {
      const auto sequence = engine->NewSequence(prompt_, 0, sampling_, 44).value();
      const StepPart part{sequence.get(), 40};
      absl::StatusOr<std::vector<StepResult>> results = absl::UnknownError("");
      arm([&] { results = engine->Step({&part, 1}); });
      EXPECT_TRUE(results.ok() || absl::IsResourceExhausted(results.status())) << results.status();
    }
    EXPECT_TRUE(engine->cache().ledger().CheckIdle().ok());
  });
  EXPECT_GE(failures, 3);
}

}  // namespace
}  // namespace lodestone
