#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "tests/testing/golden_models.h"
#include "tests/testing/pass_comparison.h"
#include "tests/testing/synthetic_shape.h"
#include "tests/testing/temp_dir.h"

// Passes of the CPU ops and of the reference ops, compared as those of a GPU are
// (tests/gpu/backend).
namespace lodestone {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using GoesOn = PairedOps::GoesOn;

// The same model for both backends; `other` may be a wrapper around the reference ops.
class Pair {
 public:
  explicit Pair(const SyntheticShape& shape) : directory_(Write(shape)) {}

  PairedPass Run(PairedOps& ops, GoesOn which, const PassChoices* choices, int64_t length,
                 Numerics numerics = Numerics::kPlain) {
    return RunPaired(ops, {.numerics = numerics}, which, choices,
                     RandomPrompt(length, cpu.config.vocab_size), 2);
  }

 private:
  std::string Write(const SyntheticShape& shape) {
    WriteSyntheticModel(shape, dir_ / "model");
    return dir_ / "model";
  }
  const TempDir dir_;
  const std::string directory_;

 public:
  const LoadedModel cpu{directory_, TestBackend("cpu")};
  const LoadedModel reference{directory_, TestBackend("reference")};
};

TEST(PairedPassesTest, EveryOpAndEveryTokenAgree) {
  const bool all = std::getenv("LODESTONE_LONG_TESTS") != nullptr;
  for (const SyntheticShape& shape : {kSmallestShape, kOddQuantisedShape}) {
    for (const Numerics numerics : {Numerics::kPlain, Numerics::kReference}) {
      SCOPED_TRACE(std::string(shape.name) + " " + std::string(Name(numerics)));
      Pair pair(shape);
      PairedOps ops(pair.cpu, pair.reference.ops, pair.reference.weights);
      const bool quick = numerics == Numerics::kPlain && !shape.quantised;
      const int64_t length = all ? 300 : quick ? 140 : 20;
      const PairedPass cpu = pair.Run(ops, GoesOn::kBase, nullptr, length, numerics);
      const PairedPass other = pair.Run(ops, GoesOn::kOther, &cpu.choices, length, numerics);
      EXPECT_THAT(
          PassDifferences(pair.cpu.config, other, cpu,
                          numerics == Numerics::kPlain ? kPlainTolerance : kReferenceTolerance),
          IsEmpty());
      EXPECT_THAT(OpFaults(ops.TakeDifferences()), IsEmpty());
    }
  }
}

// Token 342 has two experts that are nearly equal: it goes to another one, and comes out another.
TEST(PairedPassesTest, ANearTieMakesATokenAnotherUnlessItsChoiceIsImposed) {
  if (std::getenv("LODESTONE_LONG_TESTS") == nullptr) GTEST_SKIP() << "takes 10 s";
  Pair pair(kSmallestShape);
  PairedOps ops(pair.cpu, pair.reference.ops, pair.reference.weights);
  const PairedPass cpu = pair.Run(ops, GoesOn::kBase, nullptr, 512);
  const PairedPass own = pair.Run(ops, GoesOn::kOtherAlone, nullptr, 512);
  EXPECT_THAT(PassDifferences(pair.cpu.config, own, cpu, kPlainTolerance),
              Contains(HasSubstr("the worst token's error")));
  const PairedPass imposed = pair.Run(ops, GoesOn::kOtherAlone, &cpu.choices, 512);
  EXPECT_THAT(PassDifferences(pair.cpu.config, imposed, cpu, kPlainTolerance), IsEmpty());
}

// Wrong in one element of one row, and by little.
class SpoiledAttention : public ForwardingOps {
 public:
  using ForwardingOps::ForwardingOps;
  void SparseAttention(const SparseAttentionParams& params, Stream& stream) const override {
    ForwardingOps::SparseAttention(params, stream);
    ASSERT_TRUE(stream.Synchronize().ok());
    uint16_t& value = params.out.as<uint16_t>()[7];
    value = static_cast<uint16_t>(value ^ 0x40);  // by a third at least
  }
};

// Takes the second best expert where there are two.
class SpoiledRoute : public ForwardingOps {
 public:
  using ForwardingOps::ForwardingOps;
  void MoeRoute(const MoeRouteParams& params, Stream& stream) const override {
    ForwardingOps::MoeRoute(params, stream);
    ASSERT_TRUE(stream.Synchronize().ok());
    int32_t& expert = params.experts.as<int32_t>()[0];
    expert = (expert + 1) % static_cast<int32_t>(params.gate.n);
  }
};

template <typename Spoiled>
std::vector<std::string> FaultsOf() {
  Pair pair(kSmallestShape);
  const Spoiled spoiled(pair.reference.ops);
  PairedOps ops(pair.cpu, spoiled, pair.reference.weights);
  pair.Run(ops, GoesOn::kBase, nullptr, 20);
  return OpFaults(ops.TakeDifferences());
}

TEST(PairedPassesTest, AWrongElementIsFound) {
  EXPECT_THAT(FaultsOf<SpoiledAttention>(), Contains(HasSubstr("SparseAttention")));
}

TEST(PairedPassesTest, AWrongExpertIsFound) {
  EXPECT_THAT(FaultsOf<SpoiledRoute>(), Contains(HasSubstr("MoeRoute")));
}

}  // namespace
}  // namespace lodestone
