#include <gtest/gtest.h>

#include "tests/kernels/cpu_test_support.h"

namespace lodestone {
namespace {

constexpr float kEps = 1e-6f;
constexpr DType kActs[] = {DType::kBf16, DType::kF32};

HostTensor Positions(int64_t count, int32_t first) {
  HostTensor positions(DType::kI32, {count});
  for (int64_t i = 0; i < count; ++i) {
    positions.view().as<int32_t>()[i] = first + static_cast<int32_t>(i * 37);
  }
  return positions;
}

// One rounding to bf16 of values that agree to 1e-6.
TEST(CpuRmsNormTest, MatchesTheReferenceForAnyLength) {
  for (DType act : kActs) {
    for (int64_t n : {1, 15, 16, 100, 256, 1536}) {
      for (InputKind kind : kAllInputKinds) {
        const HostTensor x = Random(act, {9, n}, 1, kind);
        const HostTensor weight = Random(DType::kBf16, {n}, 2);
        const OpRun norm = [&](const Ops& ops, Stream& stream) {
          HostTensor out = x.Clone();
          ops.RmsNorm({.x = out, .weight = weight, .eps = kEps, .out = out}, stream);
          OpResult result;
          result.Add(out);
          return result;
        };
        ExpectNear(RunOnAllBackends(norm).floats, RunReference(norm).floats,
                   act == DType::kBf16 ? kBf16Ulp : 1e-5, 1e-12);
      }
    }
  }
}

// Under bf16 the mean and its root are rounded to bf16 too: where a sum falls on the other side of
// a rounding border, the whole head moves by a unit or two.
TEST(CpuQueryNormRopeTest, MatchesTheReference) {
  const HostTensor freqs = RopeFreqs(64);
  for (DType act : kActs) {
    for (int32_t first : {0, 1000, 900000}) {
      const HostTensor q = Random(act, {7, 5, 512}, 3);
      const HostTensor positions = Positions(7, first);
      const OpRun norm = [&](const Ops& ops, Stream& stream) {
        HostTensor out = q.Clone();
        ops.QueryNormRope({.q = out, .positions = positions, .freqs = freqs, .eps = kEps}, stream);
        OpResult result;
        result.Add(out);
        return result;
      };
      ExpectNear(RunOnAllBackends(norm).floats, RunReference(norm).floats,
                 act == DType::kBf16 ? 3 * kBf16Ulp : 1e-5, act == DType::kBf16 ? 0.03 : 1e-5);
    }
  }
}

OpRun WindowRun(const HostTensor& kv, const HostTensor& weight, const TestBatch& batch,
                const HostTensor& freqs, bool round_fp8, KvFormat format) {
  return [&, round_fp8, format](const Ops& ops, Stream& stream) {
    const int64_t tokens = kv.view().shape[0];
    HostTensor latents(kv.view().dtype, {tokens, 512});
    ops.WindowLatent({.kv = kv,
                      .weight = weight,
                      .positions = batch.positions,
                      .freqs = freqs,
                      .eps = kEps,
                      .round_fp8 = round_fp8,
                      .latents = latents},
                     stream);
    TestRowStore ring(batch.num_slots, 128, LatentRowBytes(format, 512, 64));
    ops.StoreWindow({.latents = latents,
                     .batch = batch.index,
                     .format = format,
                     .rope_dims = 64,
                     .ring = ring.store},
                    stream);
    OpResult result;
    result.Add(latents);
    result.AddBytes(ring.memory);
    return result;
  };
}

// e4m3 has a unit of 1/8: a value near a rounding border may move by one.
TEST(CpuWindowLatentTest, MatchesTheReference) {
  const HostTensor freqs = RopeFreqs(64);
  const HostTensor weight = Random(DType::kBf16, {512}, 4);
  const TestBatch batch({{0, 3}, {120, 40}}, 5);
  for (DType act : kActs) {
    for (bool round_fp8 : {false, true}) {
      const HostTensor kv = Random(act, {43, 512}, 6);
      const OpRun run = WindowRun(kv, weight, batch, freqs, round_fp8,
                                  act == DType::kBf16 ? KvFormat::kBf16 : KvFormat::kF32);
      const double ulp = round_fp8 ? 0.125 : act == DType::kBf16 ? 2 * kBf16Ulp : 1e-5;
      ExpectNear(RunOnAllBackends(run).floats, RunReference(run).floats, ulp,
                 act == DType::kBf16 ? 0.01 : 1e-5);
    }
  }
}

TEST(CpuStoreWindowTest, WritesTheSameBytesAsTheReference) {
  const HostTensor latents = Random(DType::kBf16, {209, 512}, 7);
  const TestBatch batch({{100, 5}, {0, 201}, {4095, 3}}, 8);
  for (KvFormat format : {KvFormat::kBf16, KvFormat::kFp8, KvFormat::kF32}) {
    const OpRun store = [&](const Ops& ops, Stream& stream) {
      TestRowStore ring(batch.num_slots, 128, LatentRowBytes(format, 512, 64));
      ops.StoreWindow({.latents = latents,
                       .batch = batch.index,
                       .format = format,
                       .rope_dims = 64,
                       .ring = ring.store},
                      stream);
      OpResult result;
      result.AddBytes(ring.memory);
      return result;
    };
    EXPECT_TRUE(RunOnAllBackends(store).bytes == RunReference(store).bytes);
  }
}

// A decode step filled up by a copy of its first sequence against each sequence by itself.
TEST(CpuStoreWindowTest, TokensThatFillTheBatchUpStoreNothing) {
  const HostTensor latents = Random(DType::kBf16, {3, 512}, 7);
  TestBatch batch({{100, 1}, {4095, 1}, {100, 1}}, 8);
  batch.seq_tokens.SetInts({1, 1, 0});
  const auto run = [&](bool together) -> OpRun {
    return [&, together](const Ops& ops, Stream& stream) {
      TestRowStore ring(batch.num_slots, 128, LatentRowBytes(KvFormat::kBf16, 512, 64));
      const auto store = [&](const TensorView& rows, const TestBatch& tokens) {
        ops.StoreWindow(
            {.latents = rows, .batch = tokens.index, .rope_dims = 64, .ring = ring.store}, stream);
      };
      if (together) store(latents, batch);
      for (int64_t seq = 0; seq < 2 && !together; ++seq) {
        store(latents.view().Rows(seq, 1), batch.Only(seq, {seq == 0 ? 100 : 4095, 1}));
      }
      OpResult result;
      result.AddBytes(ring.memory);
      return result;
    };
  };
  EXPECT_TRUE(RunOnAllBackends(run(true)).bytes == RunOnAllBackends(run(false)).bytes);
  EXPECT_TRUE(RunReference(run(true)).bytes == RunReference(run(false)).bytes);
}

// Query and weight of one sequence of roundings; under kFp4 and kFp8 a code may differ by one where
// a value lies at a border, so only most values must agree.
TEST(CpuIndexQueryTest, MatchesTheReference) {
  const HostTensor freqs = RopeFreqs(64);
  const HostTensor positions = Positions(6, 5000);
  for (DType act : kActs) {
    for (IndexRounding rounding :
         {IndexRounding::kNone, IndexRounding::kFp4, IndexRounding::kFp8}) {
      const HostTensor q = Random(act, {6, 8, 128}, 9);
      const HostTensor raw = Random(act, {6, 8}, 10);
      const OpRun transform = [&](const Ops& ops, Stream& stream) {
        HostTensor out = q.Clone();
        HostTensor weight(DType::kF32, {6, 8});
        ops.IndexQuery({.q = out,
                        .raw_weight = raw,
                        .positions = positions,
                        .freqs = freqs,
                        .rounding = rounding,
                        .weight = weight},
                       stream);
        OpResult result;
        result.Add(out);
        result.Add(weight);
        return result;
      };
      // The arithmetic is the same operation for operation, so the values are as well.
      EXPECT_TRUE(RunOnAllBackends(transform).bytes == RunReference(transform).bytes);
    }
  }
}

}  // namespace
}  // namespace lodestone
