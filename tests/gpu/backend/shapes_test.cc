#include <gtest/gtest.h>

#include <string>

#include "tests/gpu/backend/layer_comparison.h"
#include "tests/testing/synthetic_shape.h"
#include "tests/testing/temp_dir.h"

// Whole models of other shapes than the official ones, on the GPU against the CPU: the smallest
// that a config.json may describe, odd ones, and the widest.
namespace lodestone {
namespace {

constexpr SyntheticShape kShapes[] = {
    kSmallestShape,
    kOddShape,
    kOddQuantisedShape,
    {"Pro", 7168, 128, 1536, 16, 1024, 64, 1024, 16, 6, 512, false},
    {"ProQuantised", 7168, 128, 1536, 16, 1024, 64, 1024, 16, 6, 512, true},
};

class CudaShapesTest : public ::testing::TestWithParam<SyntheticShape> {};

// `plain`, so that no FP8 rounding of inputs amplifies what sums in other orders differ by.
TEST_P(CudaShapesTest, LayersMatchTheCpu) {
  const TempDir dir;
  EngineOptions options;
  options.model_dir = dir / "model";
  WriteSyntheticModel(GetParam(), options.model_dir);
  options.device = {.cuda = 0};
  options.numerics = Numerics::kPlain;
  options.memory_limit_bytes = int64_t{12} << 30;
  options.max_sequences = 2;
  options.max_context_tokens = 1024;
  ExpectLayersMatchTheCpu(options, {1, 3, 140, 512}, kPlainTolerance);
}

INSTANTIATE_TEST_SUITE_P(Any, CudaShapesTest, ::testing::ValuesIn(kShapes),
                         [](const auto& one) { return one.param.name; });

}  // namespace
}  // namespace lodestone
