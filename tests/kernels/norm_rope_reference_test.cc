#include <cmath>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/numeric/fp8.h"
#include "kernels/numeric/rope.h"
#include "kernels/numeric/row_codec.h"
#include "kernels/ops.h"
#include "tests/testing/op_inputs.h"

namespace lodestone {
namespace {

class NormRopeReferenceTest : public ::testing::Test {
 protected:
  const std::unique_ptr<Ops> ops_ = MakeReferenceOps();
  TestStream stream_;
};

TEST_F(NormRopeReferenceTest, EmbeddingFillsEveryStream) {
  const HostTensor table = Random(DType::kBf16, {5, 8}, 1);
  HostTensor ids(DType::kI32, {2}), streams(DType::kBf16, {2, 4, 8});
  ids.SetInts({4, 0});
  ops_->EmbedTokens({.ids = ids, .table = table, .streams = streams}, stream_);
  for (int64_t m = 0; m < 4; ++m) {
    for (int64_t c = 0; c < 8; ++c) {
      EXPECT_EQ(streams.At(m * 8 + c), table.At(4 * 8 + c));
      EXPECT_EQ(streams.At((4 + m) * 8 + c), table.At(c));
    }
  }
}

TEST_F(NormRopeReferenceTest, GroupedLinearUsesItsOwnPartOfTheInput) {
  constexpr int64_t kGroups = 3, kOut = 5, kIn = 7, kTokens = 2;
  const HostTensor weight = Random(DType::kBf16, {kGroups * kOut, kIn}, 1);
  const HostTensor x = Random(DType::kF32, {kTokens, kGroups * kIn}, 2);
  const PackedTensor packed = Pack(*ops_, weight, kGroups);
  EXPECT_EQ(packed.weight.n, kOut);
  HostTensor out(DType::kF32, {kTokens, kGroups * kOut});
  ops_->Linear({.x = x, .weight = packed.weight, .out = out}, stream_);
  for (int64_t t = 0; t < kTokens; ++t) {
    for (int64_t row = 0; row < kGroups * kOut; ++row) {
      double sum = 0;
      for (int64_t j = 0; j < kIn; ++j) {
        sum += static_cast<double>(weight.At(row * kIn + j)) *
               static_cast<double>(x.At(t * kGroups * kIn + row / kOut * kIn + j));
      }
      EXPECT_EQ(out.At(t * kGroups * kOut + row), static_cast<float>(sum));
    }
  }
}

TEST_F(NormRopeReferenceTest, RmsNormMayRunInPlace) {
  const HostTensor weight = Random(DType::kBf16, {64}, 1);
  for (InputKind kind : kAllInputKinds) {
    HostTensor x = Random(DType::kBf16, {3, 64}, 2, kind);
    HostTensor out(DType::kBf16, {3, 64});
    ops_->RmsNorm({.x = x, .weight = weight, .eps = 1e-6f, .out = out}, stream_);
    ops_->RmsNorm({.x = x, .weight = weight, .eps = 1e-6f, .out = x}, stream_);
    EXPECT_EQ(x.Bytes(), out.Bytes()) << Name(kind);
    for (float value : out.Floats()) EXPECT_TRUE(std::isfinite(value)) << Name(kind);
  }
}

TEST_F(NormRopeReferenceTest, LatentIsNormedThenRotatedThenRoundedButItsRotaryDimsAreNot) {
  constexpr int64_t kDims = 192, kRope = 64;
  const HostTensor kv = Random(DType::kBf16, {2, kDims}, 1, InputKind::kOutlier);
  const HostTensor weight = Random(DType::kBf16, {kDims}, 2), freqs = RopeFreqs(kRope);
  HostTensor positions(DType::kI32, {2}), plain(DType::kBf16, {2, kDims});
  HostTensor rounded(DType::kBf16, {2, kDims}), normed(DType::kBf16, {2, kDims});
  positions.SetInts({11, 12});
  ops_->RmsNorm({.x = kv, .weight = weight, .eps = 1e-6f, .out = normed}, stream_);
  WindowLatentParams params{.kv = kv,
                            .weight = weight,
                            .positions = positions,
                            .freqs = freqs,
                            .eps = 1e-6f,
                            .round_fp8 = false,
                            .latents = plain};
  ops_->WindowLatent(params, stream_);
  params.round_fp8 = true;
  params.latents = rounded;
  ops_->WindowLatent(params, stream_);
  for (int64_t t = 0; t < 2; ++t) {
    std::vector<float> want(kDims);
    for (int64_t i = 0; i < kDims; ++i) want[i] = normed.At(t * kDims + i);
    for (int64_t i = 0; i < kRope / 2; ++i) {
      const CosSin angle = RopeAngle(11 + static_cast<int32_t>(t), freqs.At(i));
      RotatePairs(want.data() + kDims - kRope + 2 * i, &angle, 1, /*inverse=*/false);
    }
    for (int64_t i = 0; i < kDims; ++i) EXPECT_EQ(plain.At(t * kDims + i), RoundToBf16(want[i]));
    for (int64_t i = 0; i < kDims - kRope; i += kFp8KvGroup)
      RoundFp8Group(want.data() + i, kFp8KvGroup);
    for (int64_t i = 0; i < kDims; ++i) EXPECT_EQ(rounded.At(t * kDims + i), RoundToBf16(want[i]));
  }
}

TEST_F(NormRopeReferenceTest, QueriesOfEveryHeadHaveUnitMeanSquare) {
  HostTensor q = Random(DType::kF32, {2, 3, 128}, 1, InputKind::kWide);
  HostTensor positions(DType::kI32, {2});
  positions.SetInts({100, 101});
  const HostTensor freqs = RopeFreqs(64);
  ops_->QueryNormRope({.q = q, .positions = positions, .freqs = freqs, .eps = 1e-6f}, stream_);
  for (int64_t head = 0; head < 6; ++head) {
    double square = 0;
    for (int64_t i = 0; i < 128; ++i) square += std::pow(q.At(head * 128 + i), 2);
    EXPECT_NEAR(square / 128, 1, 1e-5);  // a rotation keeps lengths
  }
}

// Sequence 0 has fewer tokens than the window, sequence 1 more: its first 2 must not be written.
TEST_F(NormRopeReferenceTest, TheRingKeepsTheLastTokensOfEachSequence) {
  constexpr int64_t kWindow = 8, kDims = 128, kRope = 64;
  const TestBatch batch({{6, 3}, {13, 10}}, 1);
  const HostTensor latents = Random(DType::kBf16, {13, kDims}, 2);
  const TestRowStore ring(batch.num_slots, kWindow, LatentRowBytes(KvFormat::kBf16, kDims, kRope));
  ops_->StoreWindow({.latents = latents,
                     .batch = batch.index,
                     .format = KvFormat::kBf16,
                     .rope_dims = kRope,
                     .ring = ring.store},
                    stream_);
  const auto row = [&](int64_t seq, int64_t position) {
    std::vector<float> values(kDims);
    DecodeBf16Row(ring.store.payload.row<std::byte>(batch.seq_slot.Ints()[seq]) +
                      position % kWindow * ring.store.payload.strides[1],
                  kDims, values.data());
    return values;
  };
  const auto latent = [&](int64_t t) {
    const std::vector<float> all = latents.Floats();
    return std::vector<float>(all.begin() + t * kDims, all.begin() + (t + 1) * kDims);
  };
  for (int64_t i = 0; i < 3; ++i) EXPECT_EQ(row(0, 6 + i), latent(i));
  EXPECT_EQ(row(0, 9), std::vector<float>(kDims, 0.0f));
  for (int64_t i = 2; i < 10; ++i) EXPECT_EQ(row(1, 13 + i), latent(3 + i));
}

}  // namespace
}  // namespace lodestone
