#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>

#include "tests/kernels/cpu_test_support.h"

// A token whose values are NaN or infinite shares tiles, thread blocks and weights with others, and
// must not change a bit of theirs: requests of one batch do not see each other.
namespace lodestone {
namespace {

constexpr int64_t kTokens = 21;
constexpr int64_t kPoisoned = 4;
constexpr int64_t kWidth = 256;
constexpr float kEps = 1e-6f;

// One output [T, ...] of an op over the rows of x [T, ...].
using RowOp = std::function<HostTensor(const Ops& ops, Stream& stream, const HostTensor& x)>;

void FillRow(HostTensor& tensor, int64_t row, float value) {
  const int64_t width = tensor.size() / tensor.view().shape[0];
  for (int64_t i = 0; i < width; ++i) tensor.Set(row * width + i, value);
}

void ExpectOtherRowsUnmoved(const HostTensor& x, const RowOp& op) {
  const auto other_rows = [&](float poison) {
    const OpRun run = [&](const Ops& ops, Stream& stream) {
      HostTensor input = x.Clone();
      FillRow(input, kPoisoned, poison);
      HostTensor out = op(ops, stream, input);
      FillRow(out, kPoisoned, 0);
      OpResult result;
      result.Add(out);
      return result;
    };
    return RunOnAllBackends(run).bytes;
  };
  const std::vector<std::byte> want = other_rows(1);
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float poison :
       {std::numeric_limits<float>::quiet_NaN(), kInfinity, -kInfinity, 3e38f}) {
    EXPECT_TRUE(other_rows(poison) == want) << "poisoned with " << poison;
  }
}

HostTensor TokenInts(int32_t step, int32_t below) {
  HostTensor ints(DType::kI32, {kTokens});
  for (int32_t i = 0; i < kTokens; ++i) ints.view().as<int32_t>()[i] = i * step % below;
  return ints;
}

TEST(CpuPoisonedRowTest, StaysInItsRowOfANorm) {
  const HostTensor weight = Random(DType::kBf16, {kWidth}, 2);
  ExpectOtherRowsUnmoved(
      Random(DType::kBf16, {kTokens, kWidth}, 1),
      [&](const Ops& ops, Stream& stream, const HostTensor& x) {
        HostTensor out(DType::kBf16, {kTokens, kWidth});
        ops.RmsNorm({.x = x, .weight = weight, .eps = kEps, .out = out}, stream);
        return out;
      });
}

TEST(CpuPoisonedRowTest, StaysInItsQuery) {
  const HostTensor freqs = RopeFreqs(64), positions = TokenInts(37, 5000);
  ExpectOtherRowsUnmoved(
      Random(DType::kBf16, {kTokens, 4, 512}, 1),
      [&](const Ops& ops, Stream& stream, const HostTensor& x) {
        HostTensor out = x.Clone();
        ops.QueryNormRope({.q = out, .positions = positions, .freqs = freqs, .eps = kEps}, stream);
        return out;
      });
}

TEST(CpuPoisonedRowTest, StaysInItsWindowLatent) {
  const HostTensor freqs = RopeFreqs(64), positions = TokenInts(37, 5000);
  const HostTensor weight = Random(DType::kBf16, {512}, 2);
  for (const bool round_fp8 : {false, true}) {
    ExpectOtherRowsUnmoved(
        Random(DType::kBf16, {kTokens, 512}, 1),
        [&](const Ops& ops, Stream& stream, const HostTensor& x) {
          HostTensor out(DType::kBf16, {kTokens, 512});
          ops.WindowLatent({.kv = x,
                            .weight = weight,
                            .positions = positions,
                            .freqs = freqs,
                            .eps = kEps,
                            .round_fp8 = round_fp8,
                            .latents = out},
                           stream);
          return out;
        });
  }
}

TEST(CpuPoisonedRowTest, StaysInItsIndexQuery) {
  const HostTensor freqs = RopeFreqs(64), positions = TokenInts(37, 5000);
  for (const IndexRounding rounding :
       {IndexRounding::kNone, IndexRounding::kFp8, IndexRounding::kFp4}) {
    const HostTensor raw = Random(DType::kBf16, {kTokens, 4}, 2);
    ExpectOtherRowsUnmoved(
        Random(DType::kBf16, {kTokens, 4, 128}, 1),
        [&](const Ops& ops, Stream& stream, const HostTensor& x) {
          HostTensor out = x.Clone(), weight(DType::kF32, {kTokens, 4});
          ops.IndexQuery({.q = out,
                          .raw_weight = raw,
                          .positions = positions,
                          .freqs = freqs,
                          .rounding = rounding,
                          .weight = weight},
                         stream);
          return out;
        });
  }
}

TEST(CpuPoisonedRowTest, StaysInItsRowOfAProduct) {
  for (const WeightFormat format : {WeightFormat::kBf16, WeightFormat::kFp8, WeightFormat::kFp4}) {
    const MatrixSpec spec{.format = format, .n = 136, .k = kWidth};
    const HostTensor plain = Random(DType::kBf16, {spec.n, spec.k}, 2, InputKind::kNormal, 0.1f);
    const MatrixSpec coded{.format = IsQuantised(format) ? format : WeightFormat::kFp8,
                           .n = spec.n,
                           .k = spec.k};
    const QuantisedTensor quantised(coded, 2, InputKind::kNormal, 0.1f);
    ExpectOtherRowsUnmoved(
        Random(DType::kBf16, {kTokens, kWidth}, 1),
        [&](const Ops& ops, Stream& stream, const HostTensor& x) {
          const PackedTensor packed =
              IsQuantised(format) ? Pack(ops, quantised.source()) : Pack(ops, plain);
          HostTensor out(DType::kBf16, {kTokens, spec.n});
          ops.Linear({.x = x, .weight = packed.weight, .round_fp8 = true, .out = out}, stream);
          return out;
        });
  }
}

// All tokens go to the same two experts, so that they share every tile.
TEST(CpuPoisonedRowTest, StaysInItsRowOfTheExperts) {
  constexpr int64_t kExperts = 3, kInner = 128;
  std::vector<HostTensor> matrices;
  for (int64_t e = 0; e <= kExperts; ++e) {
    for (int64_t part = 0; part < 3; ++part) {
      const auto seed = static_cast<uint32_t>(10 + 3 * e + part);
      const int64_t outputs = part < 2 ? kInner : kWidth;
      matrices.push_back(Random(DType::kBf16, {outputs, part < 2 ? kWidth : kInner}, seed,
                                InputKind::kNormal, 0.1f));
    }
  }
  HostTensor chosen(DType::kI32, {kTokens, 2});
  for (int64_t i = 0; i < 2 * kTokens; ++i) {
    chosen.view().as<int32_t>()[i] = static_cast<int32_t>(i % 2);
  }
  const HostTensor weights = Random(DType::kF32, {kTokens, 2}, 2);
  ExpectOtherRowsUnmoved(
      Random(DType::kBf16, {kTokens, kWidth}, 1),
      [&](const Ops& ops, Stream& stream, const HostTensor& x) {
        std::vector<PackedTensor> packed;
        for (const HostTensor& matrix : matrices) packed.push_back(Pack(ops, matrix));
        std::vector<ExpertWeights> experts;
        for (size_t i = 0; i < packed.size(); i += 3) {
          experts.push_back({packed[i].weight, packed[i + 1].weight, packed[i + 2].weight});
        }
        const HostTensor scratch(
            DType::kU8,
            {std::max<int64_t>(
                64, ops.MoeExpertsScratchBytes(kTokens, 2, kWidth, kInner, kExperts))});
        HostTensor out(DType::kBf16, {kTokens, kWidth});
        ops.MoeExperts({.x = x,
                        .experts = chosen,
                        .weights = weights,
                        .routed = std::span(experts).first(kExperts),
                        .shared = &experts.back(),
                        .limit = 10,
                        .scratch = scratch,
                        .out = out},
                       stream);
        return out;
      });
}

TEST(CpuPoisonedRowTest, StaysInItsRowOfTheGate) {
  constexpr int64_t kExperts = 40;
  const HostTensor gate = Random(DType::kBf16, {kExperts, kWidth}, 2, InputKind::kNormal, 0.1f);
  const HostTensor bias = Random(DType::kF32, {kExperts}, 3), ids = TokenInts(1, 100);
  ExpectOtherRowsUnmoved(
      Random(DType::kBf16, {kTokens, kWidth}, 1),
      [&](const Ops& ops, Stream& stream, const HostTensor& x) {
        const PackedTensor packed = Pack(ops, gate);
        HostTensor experts(DType::kI32, {kTokens, 6}), weights(DType::kF32, {kTokens, 6});
        ops.MoeRoute({.x = x,
                      .gate = packed.weight,
                      .bias = bias,
                      .tid2eid = {},
                      .ids = ids,
                      .scale = 1.5f,
                      .experts = experts,
                      .weights = weights},
                     stream);
        for (const int32_t expert : experts.Ints()) {
          EXPECT_GE(expert, 0);
          EXPECT_LT(expert, kExperts);  // also for the poisoned token: it indexes memory
        }
        return weights;
      });
}

}  // namespace
}  // namespace lodestone
