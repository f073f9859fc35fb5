#include <cmath>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/numeric/bf16.h"
#include "kernels/ops.h"
#include "tests/testing/op_inputs.h"

namespace lodestone {
namespace {

class MoeReferenceTest : public ::testing::Test {
 protected:
  struct Routed {
    std::vector<int32_t> experts;
    std::vector<float> weights;
  };

  // Routes one token whose gate logits are `logits` (the gate is the identity).
  Routed Route(const std::vector<float>& logits, const std::vector<float>& bias, int64_t count,
               float scale = 1.0f) {
    const int64_t n = static_cast<int64_t>(logits.size());
    HostTensor x(DType::kF32, {1, n}), gate(DType::kBf16, {n, n}), bias_tensor(DType::kF32, {n});
    x.SetFloats(logits);
    bias_tensor.SetFloats(bias);
    for (int64_t e = 0; e < n; ++e) gate.Set(e * n + e, 1.0f);
    const PackedTensor packed = Pack(*ops_, gate);
    HostTensor ids(DType::kI32, {1}), experts(DType::kI32, {1, count});
    HostTensor weights(DType::kF32, {1, count});
    ops_->MoeRoute({.x = x,
                    .gate = packed.weight,
                    .bias = bias_tensor,
                    .tid2eid = {},
                    .ids = ids,
                    .scale = scale,
                    .experts = experts,
                    .weights = weights},
                   stream_);
    return {experts.Ints(), weights.Floats()};
  }

  const std::unique_ptr<Ops> ops_ = MakeReferenceOps();
  TestStream stream_;
};

double Score(double g) { return std::sqrt(std::log1p(std::exp(g))); }

TEST_F(MoeReferenceTest, BiasChoosesButDoesNotWeigh) {
  const Routed routed = Route({1, 2, 0, -1}, {0, 0, 5, 0}, 2, 1.5f);
  EXPECT_EQ(routed.experts, (std::vector<int32_t>{1, 2}));
  const double sum = Score(2) + Score(0);
  EXPECT_NEAR(routed.weights[0], 1.5 * Score(2) / sum, 1e-6);
  EXPECT_NEAR(routed.weights[1], 1.5 * Score(0) / sum, 1e-6);
}

TEST_F(MoeReferenceTest, TiesGoToTheLowerExpert) {
  EXPECT_EQ(Route({1, 1, 1, 1}, {0, 0, 0, 0}, 2).experts, (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(Route({0, 1, 0, 0}, {0, 0, 0, 0}, 2).experts, (std::vector<int32_t>{0, 1}));
}

TEST_F(MoeReferenceTest, ExtremeLogitsGiveFiniteWeights) {
  for (float g : {-1e4f, -200.0f, -88.0f, -17.0f, 88.0f, 200.0f, 1e4f, 1e30f}) {
    const Routed routed = Route({g, g, g}, {0, 0, 0}, 2, 2.5f);
    EXPECT_FLOAT_EQ(routed.weights[0], 1.25f) << g;
    EXPECT_FLOAT_EQ(routed.weights[1], 1.25f) << g;
  }
  // Below fp32's log1p(exp(g)) there still is a ratio: sqrt(exp(g)).
  const Routed routed = Route({-40, -42, -60}, {0, 0, 0}, 2);
  EXPECT_NEAR(routed.weights[0] / routed.weights[1], std::exp(1.0), 1e-5);
}

TEST_F(MoeReferenceTest, HashLayersTakeTheTableAscending) {
  HostTensor x = Random(DType::kBf16, {2, 8}, 1), gate = Random(DType::kBf16, {6, 8}, 2);
  const PackedTensor packed = Pack(*ops_, gate);
  HostTensor table(DType::kI32, {3, 2}), ids(DType::kI32, {2}), experts(DType::kI32, {2, 2});
  HostTensor weights(DType::kF32, {2, 2});
  table.SetInts({0, 1, 5, 2, 3, 4});
  ids.SetInts({1, 2});
  ops_->MoeRoute({.x = x,
                  .gate = packed.weight,
                  .bias = {},
                  .tid2eid = table,
                  .ids = ids,
                  .scale = 1,
                  .experts = experts,
                  .weights = weights},
                 stream_);
  EXPECT_EQ(experts.Ints(), (std::vector<int32_t>{2, 5, 3, 4}));
  EXPECT_NEAR(weights.At(0) + weights.At(1), 1, 1e-6);
}

// One expert, one input and one hidden dim: values can be followed by hand.
TEST_F(MoeReferenceTest, ClampsGateAboveAndUpOnBothSidesAndWeighsBeforeW2) {
  constexpr float kLimit = 10.0f;
  struct {
    float w1, w3;
    float gate, up;
  } const cases[] = {{2, 3, 2, 3}, {50, 50, 10, 10}, {-50, -50, -50, -10}, {1, 12, 1, 10}};
  for (const auto& c : cases) {
    HostTensor w1(DType::kBf16, {1, 1}), w3(DType::kBf16, {1, 1}), w2(DType::kBf16, {1, 1});
    w1.Set(0, c.w1);
    w3.Set(0, c.w3);
    w2.Set(0, 2.0f);
    const PackedTensor p1 = Pack(*ops_, w1), p3 = Pack(*ops_, w3), p2 = Pack(*ops_, w2);
    const ExpertWeights expert{p1.weight, p3.weight, p2.weight};
    HostTensor x(DType::kBf16, {1, 1}), experts(DType::kI32, {1, 1}), weights(DType::kF32, {1, 1});
    HostTensor out(DType::kBf16, {1, 1});
    x.Set(0, 1.0f);
    weights.Set(0, 0.7f);
    ops_->MoeExperts({.x = x,
                      .experts = experts,
                      .weights = weights,
                      .routed = {&expert, 1},
                      .shared = &expert,
                      .limit = kLimit,
                      .scratch = {},
                      .out = out},
                     stream_);
    const double gate = static_cast<double>(c.gate);
    const double a = gate / (1 + std::exp(-gate)) * static_cast<double>(c.up);
    const float routed = RoundToBf16(2 * RoundToBf16(static_cast<float>(a * 0.7f)));
    const float shared = RoundToBf16(2 * RoundToBf16(static_cast<float>(a)));
    EXPECT_EQ(out.At(0), RoundToBf16(routed + shared)) << c.w1;
  }
}

TEST_F(MoeReferenceTest, OnlyChosenExpertsContribute) {
  constexpr int64_t kDims = 16, kWidth = 8, kExperts = 3;
  std::vector<PackedTensor> packed;
  std::vector<ExpertWeights> routed;
  for (uint32_t e = 0; e < kExperts; ++e) {
    for (uint32_t w = 0; w < 2; ++w) {
      packed.push_back(Pack(*ops_, Random(DType::kBf16, {kWidth, kDims}, 10 * e + w)));
    }
    packed.push_back(Pack(*ops_, Random(DType::kBf16, {kDims, kWidth}, 10 * e + 2)));
  }
  for (size_t e = 0; e < kExperts; ++e) {
    routed.push_back({packed[3 * e].weight, packed[3 * e + 1].weight, packed[3 * e + 2].weight});
  }
  const HostTensor x = Random(DType::kF32, {1, kDims}, 99);
  const auto run = [&](std::vector<int32_t> chosen, std::vector<float> weight) {
    const int64_t count = static_cast<int64_t>(chosen.size());
    HostTensor experts(DType::kI32, {1, count}), weights(DType::kF32, {1, count});
    HostTensor out(DType::kF32, {1, kDims});
    experts.SetInts(chosen);
    weights.SetFloats(weight);
    ops_->MoeExperts({.x = x,
                      .experts = experts,
                      .weights = weights,
                      .routed = routed,
                      .shared = nullptr,
                      .limit = 10,
                      .scratch = {},
                      .out = out},
                     stream_);
    return out.Floats();
  };
  const std::vector<float> both = run({0, 2}, {0.25f, 0.75f});
  const std::vector<float> first = run({0}, {0.25f});
  const std::vector<float> last = run({2}, {0.75f});
  for (int64_t c = 0; c < kDims; ++c) EXPECT_NEAR(both[c], first[c] + last[c], 1e-5);
}

}  // namespace
}  // namespace lodestone
