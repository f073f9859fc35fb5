#include <gtest/gtest.h>

#include "tests/kernels/cpu_test_support.h"

namespace lodestone {
namespace {

constexpr float kEps = 1e-6f;

struct HcInputs {
  HcInputs(DType act, int64_t num_tokens, int64_t m, int64_t dims, InputKind kind)
      : streams(Random(act, {num_tokens, m, dims}, 1, kind)),
        x(Random(act, {num_tokens, dims}, 2, kind)),
        fn(Random(DType::kF32, {m * (m + 2), m * dims}, 3, InputKind::kNormal, 0.05f)),
        base(Random(DType::kF32, {m * (m + 2)}, 4)),
        scale(Random(DType::kF32, {3}, 5)),
        head_fn(Random(DType::kF32, {m, m * dims}, 6, InputKind::kNormal, 0.05f)),
        head_base(Random(DType::kF32, {m}, 7)),
        head_scale(Random(DType::kF32, {1}, 8)),
        norm_weight(Random(DType::kBf16, {dims}, 9)) {}
  HostTensor streams, x, fn, base, scale, head_fn, head_base, head_scale, norm_weight;
};

// HcPre and HcPost of tokens in chunks.
OpRun PreAndPost(const HcInputs& in, int64_t chunk) {
  return [&in, chunk](const Ops& ops, Stream& stream) {
    const DType act = in.streams.view().dtype;
    const int64_t tokens = in.streams.view().shape[0], m = in.streams.view().shape[1];
    const PackedTensor fn = Pack(ops, in.fn);
    HostTensor streams = in.streams.Clone();
    HostTensor x(act, {tokens, in.streams.view().shape[2]});
    HostTensor post(DType::kF32, {tokens, m}), comb(DType::kF32, {tokens, m, m});
    const HostTensor scratch(DType::kU8, {ops.HcPreScratchBytes(tokens, m)});
    for (const BatchPart& part : Chunks(tokens, chunk)) {
      const auto rows = [&](const TensorView& view) {
        return view.Rows(part.first_position, part.num_tokens);
      };
      ops.HcPre({.streams = rows(streams),
                 .fn = fn.weight,
                 .base = in.base,
                 .scale = in.scale,
                 .norm_weight = in.norm_weight,
                 .rms_eps = kEps,
                 .hc_eps = kEps,
                 .sinkhorn_iters = 20,
                 .scratch = scratch,
                 .x = rows(x),
                 .post = rows(post),
                 .comb = rows(comb)},
                stream);
      ops.HcPost(
          {.x = rows(in.x), .post = rows(post), .comb = rows(comb), .streams = rows(streams)},
          stream);
    }
    OpResult result;
    for (const HostTensor* tensor : {&x, &post, &comb, &streams}) result.Add(*tensor);
    return result;
  };
}

// fp32 sums of 4D terms, exp and 20 Sinkhorn passes: 1e-4 of the largest values, which are O(1)
// here except the streams (O(100) with outliers). bf16 results are rounded twice (u, then x).
TEST(CpuHyperConnectionTest, PreAndPostMatchTheReference) {
  for (DType act : {DType::kBf16, DType::kF32}) {
    for (InputKind kind :
         {InputKind::kNormal, InputKind::kOutlier, InputKind::kTiny, InputKind::kZeros}) {
      for (int64_t m : {4, 2}) {
        const HcInputs in(act, 21, m, 96, kind);
        const double relative = act == DType::kBf16 ? 2 * kBf16Ulp : 1e-4;
        ExpectNear(RunOnAllBackends(PreAndPost(in, 0)).floats,
                   RunReference(PreAndPost(in, 0)).floats, relative,
                   act == DType::kBf16 ? 1e-3 : 1e-4);
      }
    }
  }
}

TEST(CpuHyperConnectionTest, TokensDoNotDependOnTheirChunk) {
  const HcInputs in(DType::kBf16, 50, 4, 256, InputKind::kNormal);
  const OpResult whole = RunOnAllBackends(PreAndPost(in, 0));
  for (int64_t chunk : {1, 3, 7, 16}) {
    EXPECT_TRUE(RunOnAllBackends(PreAndPost(in, chunk)).bytes == whole.bytes) << chunk;
  }
}

// Between two sub-layers: HcPost of the first, HcPre of the second, in one op or in two.
OpRun Boundary(const HcInputs& in, int64_t chunk, bool fused) {
  return [&in, chunk, fused](const Ops& ops, Stream& stream) {
    const int64_t tokens = in.streams.view().shape[0], dims = in.streams.view().shape[2];
    const PackedTensor fn = Pack(ops, in.fn);
    HostTensor streams = in.streams.Clone();
    HostTensor x(in.x.view().dtype, {tokens, dims});
    HostTensor post = Random(DType::kF32, {tokens, 4}, 11);
    HostTensor comb = Random(DType::kF32, {tokens, 4, 4}, 12);
    const HostTensor scratch(DType::kU8, {ops.HcPreScratchBytes(tokens, 4)});
    for (const BatchPart& part : Chunks(tokens, chunk)) {
      const auto rows = [&](const TensorView& view) {
        return view.Rows(part.first_position, part.num_tokens);
      };
      const HcBoundaryParams params{.post = {.x = rows(in.x),
                                             .post = rows(post),
                                             .comb = rows(comb),
                                             .streams = rows(streams)},
                                    .pre = {.streams = rows(streams),
                                            .fn = fn.weight,
                                            .base = in.base,
                                            .scale = in.scale,
                                            .norm_weight = in.norm_weight,
                                            .rms_eps = kEps,
                                            .hc_eps = kEps,
                                            .sinkhorn_iters = 20,
                                            .scratch = scratch,
                                            .x = rows(x),
                                            .post = rows(post),
                                            .comb = rows(comb)}};
      if (fused) {
        ops.HcBoundary(params, stream);
      } else {
        ops.HcPost(params.post, stream);
        ops.HcPre(params.pre, stream);
      }
    }
    OpResult result;
    for (const HostTensor* tensor : {&x, &post, &comb, &streams}) result.Add(*tensor);
    return result;
  };
}

TEST(CpuHyperConnectionTest, BoundaryIsPostThenPreBitForBit) {
  for (const int64_t dims : {128, 448, 1024}) {
    const HcInputs in(DType::kBf16, 77, 4, dims, InputKind::kNormal);
    const OpResult apart = RunOnAllBackends(Boundary(in, 0, false));
    ExpectNear(apart.floats, RunReference(Boundary(in, 0, false)).floats, 2 * kBf16Ulp, 1e-3);
    for (const int64_t chunk : {0, 1, 3, 8, 15, 16, 31, 33}) {
      EXPECT_TRUE(RunOnAllBackends(Boundary(in, chunk, true)).bytes == apart.bytes)
          << dims << " dims, chunks of " << chunk;
    }
  }
}

// As above, small enough for a sanitizer that follows every access to shared memory.
TEST(CpuHyperConnectionTest, SmallBoundaryIsPostThenPreBitForBit) {
  for (const int64_t dims : {128, 448}) {
    const HcInputs in(DType::kBf16, 9, 4, dims, InputKind::kNormal);
    const OpResult apart = RunOnAllBackends(Boundary(in, 0, false));
    for (const int64_t chunk : {0, 2}) {
      EXPECT_TRUE(RunOnAllBackends(Boundary(in, chunk, true)).bytes == apart.bytes)
          << dims << " dims, chunks of " << chunk;
    }
  }
}

// The width of DeepSeek-V4-Flash, at which a device's blocks are full: 1 to 5 tokens for some of
// them, or many.
TEST(CpuHyperConnectionTest, WideBoundaryIsPostThenPreBitForBit) {
  const HcInputs in(DType::kBf16, 36, 4, 4096, InputKind::kNormal);
  const OpResult apart = RunOnAllBackends(Boundary(in, 0, false));
  for (const int64_t chunk : {0, 7, 12, 20, 26, 33}) {
    EXPECT_TRUE(RunOnAllBackends(Boundary(in, chunk, true)).bytes == apart.bytes) << chunk;
  }
}

TEST(CpuHyperConnectionTest, HeadCollapsesChosenRows) {
  for (DType act : {DType::kBf16, DType::kF32}) {
    const HcInputs in(act, 40, 4, 128, InputKind::kNormal);
    HostTensor rows(DType::kI32, {19});
    for (int i = 0; i < 19; ++i) rows.view().as<int32_t>()[i] = (i * 7) % 40;
    const OpRun head = [&](const Ops& ops, Stream& stream) {
      const PackedTensor fn = Pack(ops, in.head_fn);
      HostTensor x(act, {19, 128});
      ops.HcHead({.streams = in.streams,
                  .rows = rows,
                  .fn = fn.weight,
                  .base = in.head_base,
                  .scale = in.head_scale,
                  .norm_weight = in.norm_weight,
                  .rms_eps = kEps,
                  .hc_eps = kEps,
                  .x = x},
                 stream);
      OpResult result;
      result.Add(x);
      return result;
    };
    ExpectNear(RunOnAllBackends(head).floats, RunReference(head).floats,
               act == DType::kBf16 ? 2 * kBf16Ulp : 1e-4, 1e-5);
  }
}

TEST(CpuHyperConnectionTest, EmbedFillsEveryStream) {
  const HostTensor table = Random(DType::kBf16, {11, 72}, 1);
  HostTensor ids(DType::kI32, {5});
  ids.SetInts({10, 0, 3, 3, 7});
  for (DType act : {DType::kBf16, DType::kF32}) {
    const OpRun embed = [&](const Ops& ops, Stream& stream) {
      HostTensor streams(act, {5, 4, 72});
      ops.EmbedTokens({.ids = ids, .table = table, .streams = streams}, stream);
      OpResult result;
      result.Add(streams);
      return result;
    };
    EXPECT_EQ(RunOnAllBackends(embed).bytes, RunReference(embed).bytes);
  }
}

}  // namespace
}  // namespace lodestone
