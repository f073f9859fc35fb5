#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tests/kernels/cpu_test_support.h"

namespace lodestone {
namespace {

struct AttentionInputs {
  AttentionInputs(const std::vector<BatchPart>& parts, int64_t ratio_of_layer, int64_t num_heads,
                  DType act, KvFormat kv_format, InputKind kind = InputKind::kNormal)
      : batch(parts, 1),
        ratio(ratio_of_layer),
        heads(num_heads),
        format(kv_format),
        q(Random(act, {batch.index.num_tokens(), heads, 512}, 2, kind)),
        latents(Random(act, {batch.index.num_tokens(), 512}, 3, kind)),
        ring(batch.num_slots, 128, LatentRowBytes(format, 512, 64)),
        entries(batch.num_pages, ratio == 128 ? 2 : 64, LatentRowBytes(format, 512, 64)),
        sink(Random(DType::kF32, {heads}, 6)),
        freqs(RopeFreqs(64)),
        top(DType::kI32, {batch.index.num_tokens(), kTop}) {
    EncodeLatents(Random(act, {batch.num_slots, 128, 512}, 4, kind).Floats(), 512, 64, format,
                  ring);
    const int64_t rows = ratio == 128 ? 2 : 64;
    EncodeLatents(Random(act, {batch.num_pages, rows, 512}, 5, kind).Floats(), 512, 64, format,
                  entries);
    std::mt19937 random(7);
    for (int64_t t = 0; t < batch.index.num_tokens(); ++t) ChooseEntries(t, random);
  }

  static constexpr int64_t kTop = 50;
  TestBatch batch;
  int64_t ratio, heads;
  KvFormat format;
  HostTensor q, latents;
  TestRowStore ring, entries;
  HostTensor sink, freqs, top;

 private:
  void ChooseEntries(int64_t t, std::mt19937& random) {
    const int64_t visible = (batch.positions.view().as<int32_t>()[t] + 1) / 4;
    std::vector<int32_t> all(static_cast<size_t>(visible));
    for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int32_t>(i);
    std::shuffle(all.begin(), all.end(), random);
    all.resize(std::min<size_t>(all.size(), kTop));
    std::sort(all.begin(), all.end());
    all.resize(kTop, -1);
    std::copy(all.begin(), all.end(), top.view().row<int32_t>(t));
  }
};

SparseAttentionParams ParamsOf(const AttentionInputs& in) {
  SparseAttentionParams params;
  params.q = in.q;
  params.latents = in.latents;
  params.batch = in.batch.index;
  params.window = 128;
  params.ring = in.ring.store;
  params.format = in.format;
  params.ratio = in.ratio;
  params.sink = in.sink;
  params.freqs = in.freqs;
  if (in.ratio != 0) params.entries = in.entries.store;
  if (in.ratio == 4) params.top_entries = in.top;
  return params;
}

int64_t MostKeys(const AttentionInputs& in) {
  return 128 + AttentionInputs::kTop + in.batch.num_pages * 2;
}

OpRun AttentionRun(const AttentionInputs& in) {
  return [&in](const Ops& ops, Stream& stream) {
    HostTensor out(in.q.view().dtype, {in.batch.index.num_tokens(), in.heads, 512});
    const HostTensor scratch(
        DType::kU8, {ops.SparseAttentionScratchBytes(MostKeys(in), in.heads, 512, in.format)});
    SparseAttentionParams params = ParamsOf(in);
    params.scratch = scratch;
    params.out = out;
    ops.SparseAttention(params, stream);
    OpResult result;
    result.Add(out);
    return result;
  };
}

const std::vector<BatchPart> kParts = {{0, 3}, {90, 60}, {600, 5}, {1023, 1}};

// Probabilities are rounded to bf16 before they weigh, and may round either way: each term moves by
// at most one bf16 unit of itself. Outputs are O(1); two more roundings follow.
TEST(CpuSparseAttentionTest, MatchesTheReference) {
  for (int64_t ratio : {0, 4, 128}) {
    for (int64_t heads : {4, 7}) {
      for (KvFormat format : {KvFormat::kBf16, KvFormat::kFp8, KvFormat::kF32}) {
        const DType act = format == KvFormat::kF32 ? DType::kF32 : DType::kBf16;
        const AttentionInputs in(kParts, ratio, heads, act, format);
        const bool bf16 = act == DType::kBf16;
        ExpectNear(RunOnAllBackends(AttentionRun(in)).floats, RunReference(AttentionRun(in)).floats,
                   bf16 ? 2 * kBf16Ulp : 1e-4, bf16 ? 0.01 : 1e-5);
      }
    }
  }
}

TEST(CpuSparseAttentionTest, SurvivesHostileValues) {
  for (InputKind kind : {InputKind::kOutlier, InputKind::kZeros, InputKind::kTiny}) {
    const AttentionInputs in(kParts, 4, 4, DType::kF32, KvFormat::kF32, kind);
    // Scores reach 1e5 with outliers: a relative error of 2^-22 of a score is one of 0.02 of its
    // probability, so ties of large scores may shift.
    const double relative = kind == InputKind::kOutlier ? 0.05 : 1e-4;
    ExpectNear(RunOnAllBackends(AttentionRun(in)).floats, RunReference(AttentionRun(in)).floats,
               relative, kind == InputKind::kOutlier ? 0.05 : 1e-5);
  }
}

// Chunks with the ring written after each, as the model does, against one pass.
TEST(CpuSparseAttentionTest, TokensDoNotDependOnTheirChunk) {
  constexpr int64_t kTokens = 300;
  for (int64_t ratio : {0, 4, 128}) {
    const AttentionInputs in({{0, kTokens}}, ratio, 4, DType::kBf16, KvFormat::kBf16);
    const OpResult whole = RunOnAllBackends(AttentionRun(in));
    for (int64_t chunk : {1, 3, 7, 129}) {
      const OpRun run = [&](const Ops& ops, Stream& stream) {
        HostTensor out(DType::kBf16, {kTokens, 4, 512});
        TestRowStore ring(in.batch.num_slots, 128, LatentRowBytes(in.format, 512, 64));
        const HostTensor scratch(
            DType::kU8, {ops.SparseAttentionScratchBytes(MostKeys(in), in.heads, 512, in.format)});
        for (const BatchPart& part : Chunks(kTokens, chunk)) {
          const TestBatch batch = in.batch.With({part});
          const auto rows = [&](const TensorView& view) {
            return view.Rows(part.first_position, part.num_tokens);
          };
          SparseAttentionParams params = ParamsOf(in);
          params.q = rows(in.q);
          params.latents = rows(in.latents);
          params.batch = batch.index;
          params.ring = ring.store;
          if (ratio == 4) params.top_entries = rows(in.top);
          params.scratch = scratch;
          params.out = rows(out);
          ops.SparseAttention(params, stream);
          ops.StoreWindow({.latents = params.latents,
                           .batch = batch.index,
                           .format = in.format,
                           .rope_dims = 64,
                           .ring = ring.store},
                          stream);
        }
        OpResult result;
        result.Add(out);
        return result;
      };
      EXPECT_TRUE(RunOnAllBackends(run).bytes == whole.bytes)
          << "ratio " << ratio << " chunk " << chunk;
    }
  }
}

}  // namespace
}  // namespace lodestone
