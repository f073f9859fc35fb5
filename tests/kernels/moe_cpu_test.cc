#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <functional>
#include <memory>

#include "tests/kernels/cpu_test_support.h"

namespace lodestone {
namespace {

// By how much the last of `chosen` experts is above the first of the others, at least, as a share
// of the row's largest biased score.
double SmallestMargin(const HostTensor& x, const HostTensor& gate, const HostTensor& bias,
                      int64_t chosen) {
  const std::unique_ptr<Ops> ops = MakeReferenceOps();
  TestStream stream;
  const PackedTensor packed = Pack(*ops, gate);
  const int64_t tokens = x.view().shape[0], experts = gate.view().shape[0];
  HostTensor products(DType::kF32, {tokens, experts});
  ops->Linear({.x = x, .weight = packed.weight, .out = products}, stream);
  double margin = HUGE_VAL;
  for (int64_t t = 0; t < tokens; ++t) {
    std::vector<double> scores;
    for (int64_t e = 0; e < experts; ++e) {
      const auto product = static_cast<double>(products.At(t * experts + e));
      const double softplus = product > 20 ? product : std::log1p(std::exp(product));
      scores.push_back(std::sqrt(softplus) + static_cast<double>(bias.At(e)));
    }
    std::ranges::sort(scores, std::greater<>());
    const auto last = static_cast<size_t>(chosen - 1);
    const double largest = std::max(std::fabs(scores.front()), std::fabs(scores.back()));
    margin = std::min(margin, (scores[last] - scores[last + 1]) / largest);
  }
  return margin;
}

// Scores are within 1e-6 of the reference, so the experts must be the same unless two biased scores
// are that close, which these are not.
TEST(CpuMoeRouteTest, MatchesTheReference) {
  constexpr int64_t kTokens = 70;
  for (int64_t num_experts : {8, 256}) {
    for (InputKind kind : {InputKind::kNormal, InputKind::kOutlier, InputKind::kZeros}) {
      const HostTensor x = Random(DType::kBf16, {kTokens, 64}, 1, kind);
      const HostTensor gate = Random(DType::kBf16, {num_experts, 64}, 2);
      const HostTensor bias = Random(DType::kF32, {num_experts}, 3);
      ASSERT_GT(SmallestMargin(x, gate, bias, 6), 5e-6) << num_experts << " " << Name(kind);
      HostTensor ids(DType::kI32, {kTokens}), tid2eid(DType::kI32, {10, 6});
      for (int64_t i = 0; i < kTokens; ++i)
        ids.view().as<int32_t>()[i] = static_cast<int32_t>(i % 10);
      for (int64_t i = 0; i < 60; ++i) {
        tid2eid.view().as<int32_t>()[i] = static_cast<int32_t>((i * 5 + i / 6) % num_experts);
      }
      for (bool by_hash : {false, true}) {
        const OpRun route = [&](const Ops& ops, Stream& stream) {
          const PackedTensor packed = Pack(ops, gate);
          HostTensor experts(DType::kI32, {kTokens, 6}), weights(DType::kF32, {kTokens, 6});
          MoeRouteParams params;
          params.x = x;
          params.gate = packed.weight;
          params.ids = ids;
          params.scale = 1.5f;
          params.experts = experts;
          params.weights = weights;
          if (by_hash)
            params.tid2eid = tid2eid;
          else
            params.bias = bias;
          ops.MoeRoute(params, stream);
          OpResult result;
          result.Add(weights);
          for (int32_t expert : experts.Ints()) result.floats.push_back(static_cast<float>(expert));
          result.AddBytes(experts);
          return result;
        };
        ExpectNear(RunOnAllBackends(route).floats, RunReference(route).floats, 1e-4, 1e-30);
      }
    }
  }
}

struct ExpertInputs {
  ExpertInputs(DType act, int64_t tokens, int64_t hidden, int64_t width, int64_t num_experts,
               int64_t chosen)
      : x(Random(act, {tokens, hidden}, 1)),
        experts(DType::kI32, {tokens, chosen}),
        weights(Random(DType::kF32, {tokens, chosen}, 2)) {
    for (int64_t e = 0; e <= num_experts; ++e) {
      const uint32_t seed = 10 + 3 * static_cast<uint32_t>(e);
      matrices.push_back(Random(DType::kBf16, {width, hidden}, seed, InputKind::kNormal, 0.2f));
      matrices.push_back(Random(DType::kBf16, {width, hidden}, seed + 1, InputKind::kNormal, 0.2f));
      matrices.push_back(Random(DType::kBf16, {hidden, width}, seed + 2, InputKind::kNormal, 0.2f));
    }
    for (int64_t t = 0; t < tokens; ++t) {  // few experts are popular, some have no token
      int32_t* row = experts.view().row<int32_t>(t);
      for (int64_t i = 0; i < chosen; ++i) {
        row[i] = static_cast<int32_t>((t % 3 + i * 2) % (num_experts - 1));
      }
      std::sort(row, row + chosen);
    }
  }
  HostTensor x, experts, weights;
  // w1, w3, w2 of each expert, the shared one last: either of these.
  std::deque<HostTensor> matrices;
  std::deque<QuantisedTensor> quantised;
};

// FP4 routed experts and an FP8 shared one, as in the official checkpoints.
ExpertInputs OfficialExperts(int64_t tokens, int64_t hidden, int64_t width, int64_t num_experts,
                             int64_t chosen) {
  ExpertInputs in(DType::kBf16, tokens, hidden, width, num_experts, chosen);
  in.matrices.clear();
  for (int64_t e = 0; e <= num_experts; ++e) {
    const WeightFormat format = e < num_experts ? WeightFormat::kFp4 : WeightFormat::kFp8;
    const uint32_t seed = 10 + 3 * static_cast<uint32_t>(e);
    const MatrixSpec up{.format = format, .n = width, .k = hidden};
    const MatrixSpec down{.format = format, .n = hidden, .k = width};
    in.quantised.emplace_back(up, seed, InputKind::kNormal, 0.2f);
    in.quantised.emplace_back(up, seed + 1, InputKind::kNormal, 0.2f);
    in.quantised.emplace_back(down, seed + 2, InputKind::kNormal, 0.2f);
  }
  return in;
}

std::deque<PackedTensor> PackAll(const Ops& ops, const ExpertInputs& in) {
  std::deque<PackedTensor> packed;
  for (const HostTensor& matrix : in.matrices) packed.push_back(Pack(ops, matrix));
  for (const QuantisedTensor& matrix : in.quantised) packed.push_back(Pack(ops, matrix.source()));
  return packed;
}

OpRun ExpertRun(const ExpertInputs& in, bool with_shared, int64_t chunk) {
  return [&in, with_shared, chunk](const Ops& ops, Stream& stream) {
    const std::deque<PackedTensor> packed = PackAll(ops, in);
    std::vector<ExpertWeights> experts;
    for (size_t i = 0; i < packed.size(); i += 3) {
      experts.push_back({packed[i].weight, packed[i + 1].weight, packed[i + 2].weight});
    }
    const int64_t num_routed = static_cast<int64_t>(experts.size()) - 1;
    const int64_t tokens = in.x.view().shape[0], hidden = in.x.view().shape[1];
    HostTensor out(in.x.view().dtype, {tokens, hidden});
    const HostTensor scratch(
        DType::kU8,
        {std::max<int64_t>(64, ops.MoeExpertsScratchBytes(tokens, in.experts.view().shape[1],
                                                          hidden, experts[0].w1.n, num_routed))});
    for (const BatchPart& part : Chunks(tokens, chunk)) {
      const auto rows = [&](const TensorView& view) {
        return view.Rows(part.first_position, part.num_tokens);
      };
      ops.MoeExperts({.x = rows(in.x),
                      .experts = rows(in.experts),
                      .weights = rows(in.weights),
                      .routed = std::span(experts).first(static_cast<size_t>(num_routed)),
                      .shared = with_shared ? &experts.back() : nullptr,
                      .limit = 2.0f,
                      .round_fp8 = !in.quantised.empty(),
                      .scratch = scratch,
                      .out = rows(out)},
                     stream);
    }
    EXPECT_TRUE(scratch.guards_intact());
    OpResult result;
    result.Add(out);
    return result;
  };
}

// gate, up, the activation and y are each rounded to bf16 and may fall either way; results are
// O(3).
TEST(CpuMoeExpertsTest, MatchesTheReference) {
  for (DType act : {DType::kBf16, DType::kF32}) {
    for (bool with_shared : {true, false}) {
      for (int64_t tokens : {1, 5, 131, 600}) {
        const ExpertInputs in(act, tokens, 96, 80, 6, 2);
        ExpectNear(RunOnAllBackends(ExpertRun(in, with_shared, 0)).floats,
                   RunReference(ExpertRun(in, with_shared, 0)).floats,
                   act == DType::kBf16 ? 2 * kBf16Ulp : 1e-4, act == DType::kBf16 ? 0.05 : 1e-4);
      }
    }
  }
}

// A flipped bf16 of the activation may flip its e4m3 code, which is a sixteenth of the value; of
// the results that is a few percent of their size.
TEST(CpuMoeExpertsTest, QuantisedExpertsMatchTheReference) {
  for (int64_t tokens : {1, 5, 131}) {
    const ExpertInputs in = OfficialExperts(tokens, 96, 160, 6, 2);
    const auto got = RunOnAllBackends(ExpertRun(in, true, 0)).floats;
    const auto want = RunReference(ExpertRun(in, true, 0)).floats;
    ExpectNear(got, want, 2 * kBf16Ulp, 0.2);
    size_t same = 0;
    for (size_t i = 0; i < got.size(); ++i) same += got[i] == want[i] ? 1 : 0;
    EXPECT_GE(static_cast<double>(same), 0.9 * static_cast<double>(got.size()));
  }
}

// Chunks of which an expert has few tokens, some tens, and more: the kernels take other tiles for
// each.
TEST(CpuMoeExpertsTest, TokensDoNotDependOnTheirChunk) {
  const ExpertInputs plain(DType::kBf16, 530, 256, 128, 8, 2);
  const ExpertInputs official = OfficialExperts(530, 256, 128, 8, 2);
  for (const ExpertInputs* in : {&plain, &official}) {
    const OpResult whole = RunOnAllBackends(ExpertRun(*in, true, 0));
    for (int64_t chunk : {1, 3, 7, 60, 140, 250, 512}) {
      EXPECT_TRUE(RunOnAllBackends(ExpertRun(*in, true, chunk)).bytes == whole.bytes) << chunk;
    }
  }
}

}  // namespace
}  // namespace lodestone
