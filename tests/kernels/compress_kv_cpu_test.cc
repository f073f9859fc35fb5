#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/numeric/row_codec.h"
#include "tests/kernels/cpu_test_support.h"

namespace lodestone {
namespace {

struct Case {
  int64_t ratio;
  CompressedRow row;
  DType act;
  bool round_fp8 = false;
  KvFormat kv_format = KvFormat::kBf16;
  IndexRounding index_rounding = IndexRounding::kNone;
  IndexKeyFormat index_format = IndexKeyFormat::kBf16;
  int64_t channels() const { return row == CompressedRow::kLatent ? 512 : 128; }
  int64_t width() const { return channels() * (ratio == 4 ? 2 : 1); }
  RowBytes row_bytes() const {
    return row == CompressedRow::kLatent ? LatentRowBytes(kv_format, 512, 64)
                                         : IndexKeyRowBytes(index_format, 128);
  }
};

const Case kCases[] = {
    {4, CompressedRow::kLatent, DType::kBf16},
    {4, CompressedRow::kLatent, DType::kBf16, true, KvFormat::kFp8},
    {4, CompressedRow::kLatent, DType::kF32, false, KvFormat::kF32},
    {128, CompressedRow::kLatent, DType::kBf16},
    {4, CompressedRow::kIndexKey, DType::kBf16},
    {4, CompressedRow::kIndexKey, DType::kBf16, false, KvFormat::kBf16, IndexRounding::kFp4,
     IndexKeyFormat::kFp4},
    {4, CompressedRow::kIndexKey, DType::kBf16, false, KvFormat::kBf16, IndexRounding::kFp8,
     IndexKeyFormat::kFp8},
};

// Two sequences of `lengths` tokens, fed in chunks of `chunk`: entries, then states.
OpRun CompressRun(const Case& c, std::vector<int64_t> lengths, int64_t chunk, InputKind kind) {
  return [=](const Ops& ops, Stream& stream) {
    const HostTensor freqs = RopeFreqs(64);
    const HostTensor norm_weight = Random(DType::kBf16, {c.channels()}, 1);
    const HostTensor ape = Random(DType::kF32, {c.ratio, c.width()}, 2);
    std::vector<BatchPart> whole;
    for (int64_t length : lengths) whole.push_back({0, length});
    const TestBatch all(whole, 3);
    const int64_t state_rows = c.ratio == 4 ? 8 : 128;
    HostTensor state_kv(DType::kF32, {all.num_slots, state_rows, c.width()});
    HostTensor state_score(DType::kF32, {all.num_slots, state_rows, c.width()});
    for (int64_t i = 0; i < state_score.size(); ++i) {
      state_score.Set(i, -std::numeric_limits<float>::infinity());
    }
    TestRowStore entries(all.num_pages, kPageTokens / c.ratio, c.row_bytes());
    for (int64_t seq = 0; seq < static_cast<int64_t>(lengths.size()); ++seq) {
      const int64_t length = lengths[seq];
      const uint32_t seed = 10 + static_cast<uint32_t>(seq);
      const HostTensor kv = Random(DType::kF32, {length, c.width()}, seed, kind);
      const HostTensor score = Random(DType::kF32, {length, c.width()}, seed + 50, kind);
      for (const BatchPart& part : Chunks(length, chunk)) {
        const TestBatch batch = all.Only(seq, part);
        ops.CompressKv({.kv = kv.view().Rows(part.first_position, part.num_tokens),
                        .score = score.view().Rows(part.first_position, part.num_tokens),
                        .ape = ape,
                        .norm_weight = norm_weight,
                        .freqs = freqs,
                        .ratio = c.ratio,
                        .eps = 1e-6f,
                        .batch = batch.index,
                        .act = c.act,
                        .row = c.row,
                        .round_fp8 = c.round_fp8,
                        .kv_format = c.kv_format,
                        .index_rounding = c.index_rounding,
                        .index_format = c.index_format,
                        .state_kv = state_kv,
                        .state_score = state_score,
                        .entries = entries.store},
                       stream);
      }
    }
    OpResult result;
    result.AddBytes(entries.memory);
    result.AddBytes(state_kv);
    result.AddBytes(state_score);
    std::vector<float> values(c.channels());
    for (int64_t page = 0; page < all.num_pages; ++page) {
      for (int64_t r = 0; r < kPageTokens / c.ratio; ++r) {
        const TensorView& p = entries.store.payload;
        const std::byte* payload = p.row<std::byte>(page) + r * p.strides[1];
        const std::byte* scale =
            entries.store.scale.empty()
                ? nullptr
                : entries.store.scale.row<std::byte>(page) + r * entries.store.scale.strides[1];
        if (c.row == CompressedRow::kLatent) {
          DecodeLatentRow(c.kv_format, payload, scale, 512, 64, values.data());
        } else {
          const float factor =
              DecodeIndexKeyRow(c.index_format, payload, scale, 128, values.data());
          for (float& value : values) value *= factor;
        }
        result.floats.insert(result.floats.end(), values.begin(), values.end());
      }
    }
    return result;
  };
}

// A decode step of tokens at 7 (which completes a group), 9 and, in its own slot and pages, a third
// one at 7 that only fills the batch up; or the first two, each by itself.
OpRun FilledUpRun(const Case& c, bool together) {
  return [=](const Ops& ops, Stream& stream) {
    const HostTensor freqs = RopeFreqs(64);
    const HostTensor norm_weight = Random(DType::kBf16, {c.channels()}, 1);
    const HostTensor ape = Random(DType::kF32, {4, c.width()}, 2);
    TestBatch batch({{7, 1}, {9, 1}, {7, 1}}, 3);
    batch.seq_tokens.SetInts({1, 1, 0});
    const HostTensor kv = Random(DType::kF32, {3, c.width()}, 4);
    const HostTensor score = Random(DType::kF32, {3, c.width()}, 5);
    HostTensor state_kv = Random(DType::kF32, {batch.num_slots, 8, c.width()}, 6);
    HostTensor state_score = Random(DType::kF32, {batch.num_slots, 8, c.width()}, 7);
    TestRowStore entries(batch.num_pages, 64, c.row_bytes());
    const auto compress = [&](int64_t first, int64_t count, const TestBatch& tokens) {
      ops.CompressKv({.kv = kv.view().Rows(first, count),
                      .score = score.view().Rows(first, count),
                      .ape = ape,
                      .norm_weight = norm_weight,
                      .freqs = freqs,
                      .ratio = 4,
                      .eps = 1e-6f,
                      .batch = tokens.index,
                      .row = c.row,
                      .state_kv = state_kv,
                      .state_score = state_score,
                      .entries = entries.store},
                     stream);
    };
    if (together) compress(0, 3, batch);
    for (int64_t seq = 0; seq < 2 && !together; ++seq) {
      compress(seq, 1, batch.Only(seq, {seq == 0 ? 7 : 9, 1}));
    }
    OpResult result;
    for (const HostTensor* tensor : {&entries.memory, &state_kv, &state_score}) {
      result.AddBytes(*tensor);
    }
    return result;
  };
}

TEST(CpuCompressKvTest, TokensThatFillTheBatchUpStoreNothing) {
  for (const Case& c : {kCases[0], kCases[4]}) {
    EXPECT_TRUE(RunOnAllBackends(FilledUpRun(c, true)).bytes ==
                RunOnAllBackends(FilledUpRun(c, false)).bytes);
    EXPECT_TRUE(RunReference(FilledUpRun(c, true)).bytes ==
                RunReference(FilledUpRun(c, false)).bytes);
  }
}

// States are sums of two floats and copies: equal to the bit. Entries differ by a rounding of the
// pooled vector and one after the norm (bf16), and by one code of fp8 or fp4 at a border.
TEST(CpuCompressKvTest, MatchesTheReference) {
  for (const Case& c : kCases) {
    for (InputKind kind : {InputKind::kNormal, InputKind::kOutlier, InputKind::kFewValues}) {
      const OpResult got = RunOnAllBackends(CompressRun(c, {263, 130}, 0, kind));
      const OpResult want = RunReference(CompressRun(c, {263, 130}, 0, kind));
      const bool fp8 = c.kv_format == KvFormat::kFp8 || c.index_format == IndexKeyFormat::kFp8;
      const bool fp4 = c.index_format == IndexKeyFormat::kFp4;
      const double relative = c.act == DType::kF32 ? 1e-4 : fp4 ? 0.5 : fp8 ? 0.13 : 3 * kBf16Ulp;
      const double absolute = c.act == DType::kF32 ? 1e-5 : fp4 ? 0.6 : 0.03;
      ExpectNear(got.floats, want.floats, relative, absolute);
      const size_t state_bytes =
          static_cast<size_t>(2 * 3 * (c.ratio == 4 ? 8 : 128) * c.width() * 4);
      EXPECT_TRUE(std::equal(got.bytes.end() - static_cast<std::ptrdiff_t>(state_bytes),
                             got.bytes.end(),
                             want.bytes.end() - static_cast<std::ptrdiff_t>(state_bytes)));
    }
  }
}

TEST(CpuCompressKvTest, EntriesAndStatesDoNotDependOnTheChunk) {
  for (const Case& c : kCases) {
    const std::vector<int64_t> lengths =
        c.ratio == 4 ? std::vector<int64_t>{23, 8, 1} : std::vector<int64_t>{263, 128, 5};
    const OpResult whole = RunOnAllBackends(CompressRun(c, lengths, 0, InputKind::kNormal));
    for (int64_t chunk : {1, 3, 4, 5, 7, 127, 128, 129}) {
      const OpResult got = RunOnAllBackends(CompressRun(c, lengths, chunk, InputKind::kNormal));
      EXPECT_TRUE(got.bytes == whole.bytes) << "ratio " << c.ratio << " chunk " << chunk;
    }
  }
}

}  // namespace
}  // namespace lodestone
