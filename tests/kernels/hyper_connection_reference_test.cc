#include <cmath>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/ops.h"
#include "tests/testing/op_inputs.h"

namespace lodestone {
namespace {

constexpr int64_t kTokens = 3, kStreams = 4, kDims = 64;

class HyperConnectionReferenceTest : public ::testing::Test {
 protected:
  const std::unique_ptr<Ops> ops_ = MakeReferenceOps();
  TestStream stream_;
};

// Stream 1 flows into stream 3 only: comb's first index is the source.
TEST_F(HyperConnectionReferenceTest, PostMixesWithCombTransposed) {
  HostTensor streams = Random(DType::kF32, {1, kStreams, kDims}, 1);
  const std::vector<float> before = streams.Floats();
  const HostTensor x = Random(DType::kF32, {1, kDims}, 2);
  HostTensor post(DType::kF32, {1, kStreams}), comb(DType::kF32, {1, kStreams, kStreams});
  comb.Set(1 * kStreams + 3, 1.0f);
  post.Set(0, 0.5f);
  ops_->HcPost({.x = x, .post = post, .comb = comb, .streams = streams}, stream_);
  for (int64_t c = 0; c < kDims; ++c) {
    EXPECT_EQ(streams.At(0 * kDims + c), 0.5f * x.At(c));
    EXPECT_EQ(streams.At(1 * kDims + c), 0.0f);
    EXPECT_EQ(streams.At(3 * kDims + c), before[1 * kDims + c]);
  }
}

struct PreResult {
  HostTensor x{DType::kBf16, {kTokens, kDims}};
  HostTensor post{DType::kF32, {kTokens, kStreams}};
  HostTensor comb{DType::kF32, {kTokens, kStreams, kStreams}};
};

TEST_F(HyperConnectionReferenceTest, CombIsDoublyStochasticForAnyInput) {
  const HostTensor base = Random(DType::kF32, {kStreams * (kStreams + 2)}, 3);
  const HostTensor scale = Random(DType::kF32, {3}, 4);
  const HostTensor norm_weight = Random(DType::kBf16, {kDims}, 5);
  const HostTensor fn = Random(DType::kF32, {kStreams * (kStreams + 2), kStreams * kDims}, 6,
                               InputKind::kNormal, 0.05f);
  const PackedTensor packed = Pack(*ops_, fn);
  for (InputKind kind : kAllInputKinds) {
    const HostTensor streams = Random(DType::kBf16, {kTokens, kStreams, kDims}, 7, kind);
    PreResult result;
    ops_->HcPre({.streams = streams,
                 .fn = packed.weight,
                 .base = base,
                 .scale = scale,
                 .norm_weight = norm_weight,
                 .rms_eps = 1e-6f,
                 .hc_eps = 1e-6f,
                 .sinkhorn_iters = 20,
                 .scratch = {},
                 .x = result.x,
                 .post = result.post,
                 .comb = result.comb},
                stream_);
    for (int64_t t = 0; t < kTokens; ++t) {
      for (int64_t k = 0; k < kStreams; ++k) {
        float column = 0, row = 0;
        for (int64_t j = 0; j < kStreams; ++j) {
          column += result.comb.At((t * kStreams + j) * kStreams + k);
          row += result.comb.At((t * kStreams + k) * kStreams + j);
        }
        EXPECT_NEAR(column, 1, 2e-6) << Name(kind);
        EXPECT_NEAR(row, 1, 5e-2) << Name(kind);
        EXPECT_GE(result.post.At(t * kStreams + k), 0);
        EXPECT_LE(result.post.At(t * kStreams + k), 2);
      }
    }
    for (float x : result.x.Floats()) EXPECT_TRUE(std::isfinite(x)) << Name(kind);
  }
}

// With the pre-part of the same fn, base and scale, HcHead collapses like HcPre.
TEST_F(HyperConnectionReferenceTest, HeadCollapsesChosenRowsLikePre) {
  constexpr int64_t kMixes = kStreams * (kStreams + 2);
  const HostTensor streams = Random(DType::kBf16, {kTokens, kStreams, kDims}, 7);
  const HostTensor base = Random(DType::kF32, {kMixes}, 3);
  const HostTensor scale = Random(DType::kF32, {3}, 4);
  const HostTensor norm_weight = Random(DType::kBf16, {kDims}, 5);
  const HostTensor fn =
      Random(DType::kF32, {kMixes, kStreams * kDims}, 6, InputKind::kNormal, 0.05f);
  const PackedTensor packed = Pack(*ops_, fn);
  PreResult result;
  ops_->HcPre({.streams = streams,
               .fn = packed.weight,
               .base = base,
               .scale = scale,
               .norm_weight = norm_weight,
               .rms_eps = 1e-6f,
               .hc_eps = 1e-6f,
               .sinkhorn_iters = 20,
               .scratch = {},
               .x = result.x,
               .post = result.post,
               .comb = result.comb},
              stream_);
  HostTensor head_fn(DType::kF32, {kStreams, kStreams * kDims});
  for (int64_t i = 0; i < head_fn.size(); ++i) head_fn.Set(i, fn.At(i));
  const PackedTensor head_packed = Pack(*ops_, head_fn);
  HostTensor rows(DType::kI32, {2}), x(DType::kBf16, {2, kDims});
  rows.SetInts({2, 0});
  ops_->HcHead({.streams = streams,
                .rows = rows,
                .fn = head_packed.weight,
                .base = base.view().Rows(0, kStreams),
                .scale = scale.view().Rows(0, 1),
                .norm_weight = norm_weight,
                .rms_eps = 1e-6f,
                .hc_eps = 1e-6f,
                .x = x},
               stream_);
  for (int64_t c = 0; c < kDims; ++c) {
    EXPECT_EQ(x.At(c), result.x.At(2 * kDims + c));
    EXPECT_EQ(x.At(kDims + c), result.x.At(c));
  }
}

}  // namespace
}  // namespace lodestone
