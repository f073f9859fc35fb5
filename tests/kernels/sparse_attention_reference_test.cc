#include <algorithm>
#include <cmath>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/numeric/fp8.h"
#include "kernels/numeric/row_codec.h"
#include "kernels/ops.h"
#include "tests/testing/op_inputs.h"

namespace lodestone {
namespace {

constexpr int64_t kWindow = 128;
constexpr int64_t kHeads = 3;
constexpr int64_t kDims = 128;
constexpr int64_t kRopeDims = 64;
constexpr int64_t kTopK = 8;

// Sequences with a random past, and everything that attention reads.
struct Case {
  Case(const std::vector<BatchPart>& the_parts, int64_t the_ratio, DType act, KvFormat the_format)
      : parts(the_parts),
        ratio(the_ratio),
        format(the_format),
        batch(parts, 11),
        ring(batch.num_slots, kWindow, LatentRowBytes(format, kDims, kRopeDims)),
        entries(batch.num_pages, ratio == 0 ? 1 : kPageTokens / ratio,
                LatentRowBytes(format, kDims, kRopeDims)),
        q(Random(act, {batch.index.num_tokens(), kHeads, kDims}, 1)),
        latents(act, {batch.index.num_tokens(), kDims}),
        top(DType::kI32, {batch.index.num_tokens(), kTopK}),
        sink(Random(DType::kF32, {kHeads}, 2)),
        freqs(RopeFreqs(kRopeDims)),
        out(act, {batch.index.num_tokens(), kHeads, kDims}) {
    for (size_t b = 0; b < parts.size(); ++b) AddPast(static_cast<int64_t>(b));
    const int64_t num_rows = batch.num_pages * entries.store.payload.shape[1];
    entry_values = Latents(num_rows, 50);
    EncodeLatents(entry_values, kDims, kRopeDims, format, entries);
    ChooseEntries();
  }

  // Rows that every format can hold.
  static std::vector<float> Latents(int64_t rows, uint32_t seed) {
    std::vector<float> values = Random(DType::kBf16, {rows, kDims}, seed).Floats();
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t i = 0; i < kDims - kRopeDims; i += kFp8KvGroup) {
        RoundFp8Group(values.data() + row * kDims + i, kFp8KvGroup);
      }
    }
    return values;
  }

  // past[b] holds the latents of all positions of sequence b; the ring those before the batch.
  void AddPast(int64_t b) {
    const int64_t end = parts[b].first_position + parts[b].num_tokens;
    past.push_back(Latents(end, 100 + static_cast<uint32_t>(b)));
    const int64_t slot = batch.seq_slot.Ints()[b];
    for (int64_t position = 0; position < end; ++position) {
      const float* row = past[b].data() + position * kDims;
      if (position >= parts[b].first_position) {
        const int64_t t = batch.seq_first.Ints()[b] + position - parts[b].first_position;
        for (int64_t i = 0; i < kDims; ++i) latents.Set(t * kDims + i, row[i]);
        continue;
      }
      const RowStore& store = ring.store;
      const int64_t r = position % kWindow;
      EncodeLatentRow(format, row, kDims, kRopeDims,
                      store.payload.row<std::byte>(slot) + r * store.payload.strides[1],
                      store.scale.empty()
                          ? nullptr
                          : store.scale.row<std::byte>(slot) + r * store.scale.strides[1]);
    }
  }

  // Every third visible entry, from the end, ascending, then -1.
  void ChooseEntries() {
    for (int64_t t = 0; t < batch.index.num_tokens(); ++t) {
      std::vector<int32_t> chosen;
      for (int64_t n = (batch.positions.Ints()[t] + 1) / 4 - 1; n >= 0; n -= 3) {
        if (static_cast<int64_t>(chosen.size()) < kTopK - 1)
          chosen.push_back(static_cast<int32_t>(n));
      }
      std::sort(chosen.begin(), chosen.end());
      chosen.resize(kTopK, -1);
      std::copy(chosen.begin(), chosen.end(), top.view().row<int32_t>(t));
    }
  }

  SparseAttentionParams Params() {
    SparseAttentionParams params{.q = q,
                                 .latents = latents,
                                 .batch = batch.index,
                                 .window = kWindow,
                                 .ring = ring.store,
                                 .format = format,
                                 .ratio = ratio,
                                 .entries = {},
                                 .top_entries = {},
                                 .sink = sink,
                                 .freqs = freqs,
                                 .scratch = {},
                                 .out = out};
    if (ratio != 0) params.entries = entries.store;
    if (ratio == 4) params.top_entries = top;
    return params;
  }

  // Rows that token t attends to.
  std::vector<const float*> KeysOf(int64_t t) const {
    const int64_t seq = batch.token_seq.Ints()[t];
    const int64_t position = batch.positions.Ints()[t];
    std::vector<const float*> keys;
    for (int64_t at = std::max<int64_t>(0, position - kWindow + 1); at <= position; ++at) {
      keys.push_back(past[seq].data() + at * kDims);
    }
    const auto add_entry = [&](int64_t entry) {
      const int64_t rows = kPageTokens / ratio;
      const int64_t page = batch.block_table.view().row<int32_t>(seq)[entry / rows];
      keys.push_back(entry_values.data() + (page * rows + entry % rows) * kDims);
    };
    for (int64_t i = 0; ratio == 4 && i < kTopK; ++i) {
      if (top.Ints()[t * kTopK + i] >= 0) add_entry(top.Ints()[t * kTopK + i]);
    }
    for (int64_t entry = 0; ratio == 128 && entry < (position + 1) / 128; ++entry) add_entry(entry);
    return keys;
  }

  std::vector<BatchPart> parts;
  int64_t ratio;
  KvFormat format;
  TestBatch batch;
  TestRowStore ring, entries;
  HostTensor q, latents, top, sink, freqs, out;
  std::vector<std::vector<float>> past;
  std::vector<float> entry_values;
};

// softmax over scores and sink, sum of keys, rotation by -position; all in f64.
std::vector<double> NaiveAttention(const Case& c, int64_t t, int64_t head) {
  const std::vector<const float*> keys = c.KeysOf(t);
  std::vector<double> sums(kDims);
  double total = std::exp(static_cast<double>(c.sink.At(head)));
  for (const float* key : keys) {
    double score = 0;
    for (int64_t i = 0; i < kDims; ++i) {
      score += static_cast<double>(c.q.At((t * kHeads + head) * kDims + i)) *
               static_cast<double>(key[i]);
    }
    const double weight = std::exp(score / std::sqrt(static_cast<double>(kDims)));
    total += weight;
    for (int64_t i = 0; i < kDims; ++i) sums[i] += weight * static_cast<double>(key[i]);
  }
  for (double& sum : sums) sum /= total;
  for (int64_t i = 0; i < kRopeDims / 2; ++i) {
    const float position = static_cast<float>(c.batch.positions.Ints()[t]);
    const double angle = -static_cast<double>(position * c.freqs.At(i));
    double& re = sums[kDims - kRopeDims + 2 * i];
    double& im = sums[kDims - kRopeDims + 2 * i + 1];
    const double rotated = re * std::cos(angle) - im * std::sin(angle);
    im = re * std::sin(angle) + im * std::cos(angle);
    re = rotated;
  }
  return sums;
}

const std::vector<BatchPart> kParts = {{0, 5}, {126, 4}, {250, 9}, {700, 1}, {3, 140}};

class SparseAttentionReferenceTest : public ::testing::TestWithParam<int64_t> {
 protected:
  const std::unique_ptr<Ops> ops_ = MakeReferenceOps();
  TestStream stream_;
};

TEST_P(SparseAttentionReferenceTest, EqualsANaiveSoftmax) {
  Case c(kParts, GetParam(), DType::kF32, KvFormat::kF32);
  ops_->SparseAttention(c.Params(), stream_);
  for (int64_t t = 0; t < c.batch.index.num_tokens(); ++t) {
    for (int64_t head = 0; head < kHeads; ++head) {
      const std::vector<double> want = NaiveAttention(c, t, head);
      for (int64_t i = 0; i < kDims; ++i) {
        ASSERT_NEAR(c.out.At((t * kHeads + head) * kDims + i), want[i], 2e-6)
            << "token " << t << " head " << head << " dim " << i;
      }
    }
  }
}

TEST_P(SparseAttentionReferenceTest, Fp8RowsGiveTheBitsOfBf16Rows) {
  Case wide(kParts, GetParam(), DType::kBf16, KvFormat::kBf16);
  Case coded(kParts, GetParam(), DType::kBf16, KvFormat::kFp8);
  ops_->SparseAttention(wide.Params(), stream_);
  ops_->SparseAttention(coded.Params(), stream_);
  EXPECT_EQ(wide.out.Bytes(), coded.out.Bytes());
}

TEST_P(SparseAttentionReferenceTest, ASinkFarAboveTheScoresTakesAllTheWeight) {
  Case c(kParts, GetParam(), DType::kF32, KvFormat::kF32);
  c.sink.SetFloats({1e4f, 0.0f, -INFINITY});
  ops_->SparseAttention(c.Params(), stream_);
  for (int64_t i = 0; i < kDims; ++i) EXPECT_EQ(std::fabs(c.out.At(i)), 0.0f);
  // Token 0 of the first sequence sees itself only: without a sink the output is that latent, and
  // the rotation at position 0 is none.
  for (int64_t i = 0; i < kDims; ++i) EXPECT_EQ(c.out.At(2 * kDims + i), c.latents.At(i));
}

INSTANTIATE_TEST_SUITE_P(Ratios, SparseAttentionReferenceTest, ::testing::Values(0, 4, 128));

}  // namespace
}  // namespace lodestone
