#include <gtest/gtest.h>

#include "tests/kernels/cpu_test_support.h"

// Ops that are several ops at once: the same bits as one after the other.
namespace lodestone {
namespace {

constexpr float kEps = 1e-6f;

// Everything that an indexed layer's rows read and write, for a decode step whose last token fills
// the batch up.
struct Layer {
  explicit Layer(KvFormat format)
      : kv_format(format),
        ring(batch.num_slots, 128, LatentRowBytes(format, 512, 64)),
        entries(batch.num_pages, 64, LatentRowBytes(format, 512, 64)),
        keys(batch.num_pages, 64, IndexKeyRowBytes(IndexKeyFormat::kBf16, 128)) {
    batch.seq_tokens.SetInts({1, 1, 1, 0});
  }

  CompressKvParams Compress(CompressedRow row) {
    const bool latent = row == CompressedRow::kLatent;
    return {.kv = latent ? pool_kv : index_kv,
            .score = latent ? pool_score : index_score,
            .ape = latent ? ape : index_ape,
            .norm_weight = latent ? weight : index_weight,
            .freqs = freqs,
            .ratio = 4,
            .eps = kEps,
            .batch = batch.index,
            .row = row,
            .kv_format = kv_format,
            .state_kv = latent ? state_kv : index_state_kv,
            .state_score = latent ? state_score : index_state_score,
            .entries = latent ? entries.store : keys.store};
  }
  AttentionRowsParams Params() {
    return {.query = {.x = query, .weight = query_weight, .eps = kEps, .out = query},
            .window = {.kv = kv,
                       .weight = weight,
                       .positions = batch.positions,
                       .freqs = freqs,
                       .eps = kEps,
                       .round_fp8 = kv_format == KvFormat::kFp8,
                       .latents = latents},
            .index_keys = Compress(CompressedRow::kIndexKey),
            .entries = Compress(CompressedRow::kLatent),
            .ring = {.latents = latents,
                     .batch = batch.index,
                     .format = kv_format,
                     .rope_dims = 64,
                     .ring = ring.store}};
  }
  OpResult Results() const {
    OpResult result;
    for (const HostTensor* tensor :
         {&query, &latents, &ring.memory, &entries.memory, &keys.memory, &state_kv, &state_score,
          &index_state_kv, &index_state_score}) {
      result.AddBytes(*tensor);
    }
    return result;
  }

  const KvFormat kv_format;
  TestBatch batch{{{7, 1}, {9, 1}, {300, 1}, {7, 1}}, 3};
  HostTensor freqs = RopeFreqs(64);
  HostTensor query = Random(DType::kBf16, {4, 1536}, 1);
  HostTensor query_weight = Random(DType::kBf16, {1536}, 2);
  HostTensor kv = Random(DType::kBf16, {4, 512}, 3), latents{DType::kBf16, {4, 512}};
  HostTensor weight = Random(DType::kBf16, {512}, 4), index_weight = Random(DType::kBf16, {128}, 5);
  HostTensor pool_kv = Random(DType::kF32, {4, 1024}, 6);
  HostTensor pool_score = Random(DType::kF32, {4, 1024}, 7);
  HostTensor index_kv = Random(DType::kF32, {4, 256}, 8);
  HostTensor index_score = Random(DType::kF32, {4, 256}, 9);
  HostTensor ape = Random(DType::kF32, {4, 1024}, 10),
             index_ape = Random(DType::kF32, {4, 256}, 11);
  HostTensor state_kv = Random(DType::kF32, {batch.num_slots, 8, 1024}, 12);
  HostTensor state_score = Random(DType::kF32, {batch.num_slots, 8, 1024}, 13);
  HostTensor index_state_kv = Random(DType::kF32, {batch.num_slots, 8, 256}, 14);
  HostTensor index_state_score = Random(DType::kF32, {batch.num_slots, 8, 256}, 15);
  TestRowStore ring, entries, keys;
};

enum class Parts { kAll, kWindowOnly };

OpRun Rows(KvFormat format, Parts parts, bool fused) {
  return [=](const Ops& ops, Stream& stream) {
    Layer layer(format);
    AttentionRowsParams params = layer.Params();
    if (parts == Parts::kWindowOnly) params.index_keys = params.entries = {};
    if (fused) {
      ops.AttentionRows(params, stream);
    } else {
      ops.Ops::AttentionRows(params, stream);
    }
    return layer.Results();
  };
}

TEST(CpuAttentionRowsTest, IsItsOpsOneAfterTheOther) {
  for (const KvFormat format : {KvFormat::kBf16, KvFormat::kFp8}) {
    for (const Parts parts : {Parts::kAll, Parts::kWindowOnly}) {
      const OpResult apart = RunOnAllBackends(Rows(format, parts, false));
      EXPECT_TRUE(RunOnAllBackends(Rows(format, parts, true)).bytes == apart.bytes);
    }
  }
}

OpRun Queries(IndexRounding rounding, bool fused) {
  return [=](const Ops& ops, Stream& stream) {
    const HostTensor freqs = RopeFreqs(64);
    HostTensor positions(DType::kI32, {3});
    positions.SetInts({0, 77, 5000});
    HostTensor q = Random(DType::kBf16, {3, 7, 512}, 1);
    HostTensor index_q = Random(DType::kBf16, {3, 5, 128}, 2);
    const HostTensor raw = Random(DType::kBf16, {3, 5}, 3);
    HostTensor weight(DType::kF32, {3, 5});
    const QueryRowsParams params{
        .query = {.q = q, .positions = positions, .freqs = freqs, .eps = kEps},
        .index = {.q = index_q,
                  .raw_weight = raw,
                  .positions = positions,
                  .freqs = freqs,
                  .rounding = rounding,
                  .weight = weight}};
    if (fused) {
      ops.QueryRows(params, stream);
    } else {
      ops.Ops::QueryRows(params, stream);
    }
    OpResult result;
    for (const HostTensor* tensor : {&q, &index_q, &weight}) result.AddBytes(*tensor);
    return result;
  };
}

TEST(CpuQueryRowsTest, IsItsOpsOneAfterTheOther) {
  for (const IndexRounding rounding :
       {IndexRounding::kNone, IndexRounding::kFp4, IndexRounding::kFp8}) {
    EXPECT_TRUE(RunOnAllBackends(Queries(rounding, true)).bytes ==
                RunOnAllBackends(Queries(rounding, false)).bytes);
  }
}

}  // namespace
}  // namespace lodestone
