#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/numeric/hadamard.h"
#include "kernels/numeric/row_codec.h"
#include "kernels/ops.h"
#include "tests/testing/op_inputs.h"

namespace lodestone {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// Index keys of one sequence whose last token sees every entry.
struct KeyCache {
  KeyCache(const std::vector<float>& keys, int64_t dims, IndexKeyFormat format)
      : num_entries(static_cast<int64_t>(keys.size()) / dims),
        batch({{std::max<int64_t>(0, 4 * num_entries - 1), 1}}, 9),
        store(batch.num_pages, 64, IndexKeyRowBytes(format, dims)) {
    std::vector<float> stored(batch.num_pages * 64 * dims, 1e9f);  // rows of nobody would win
    for (int64_t n = 0; n < num_entries; ++n) {
      const int64_t page = batch.block_table.Ints()[n / 64];
      std::copy_n(keys.begin() + n * dims, dims, stored.begin() + (page * 64 + n % 64) * dims);
    }
    EncodeIndexKeys(stored, dims, format, store);
  }
  int64_t num_entries;
  TestBatch batch;
  TestRowStore store;
};

class IndexTopKReferenceTest : public ::testing::Test {
 protected:
  // The top k when entry n has the score scores[n]: head 0 contributes relu(s), head 1 -relu(-s).
  std::vector<int32_t> TopK(const std::vector<float>& scores, int64_t k) {
    constexpr int64_t kDims = 32;
    std::vector<float> keys(scores.size() * kDims);
    for (size_t n = 0; n < scores.size(); ++n) keys[n * kDims] = scores[n];
    const KeyCache cache(keys, kDims, IndexKeyFormat::kF32);
    HostTensor q(DType::kF32, {1, 2, kDims}), weight(DType::kF32, {1, 2});
    q.Set(0, 1);
    q.Set(kDims, -1);
    weight.SetFloats({1, -1});
    HostTensor visible(DType::kI32, {1}), top(DType::kI32, {1, k});
    visible.SetInts({static_cast<int32_t>(scores.size())});
    HostTensor out(DType::kF32, {1, std::max<int64_t>(1, cache.num_entries)});
    ops_->IndexTopK({.q = q,
                     .weight = weight,
                     .keys = cache.store.store,
                     .format = IndexKeyFormat::kF32,
                     .batch = cache.batch.index,
                     .num_visible = visible,
                     .scratch = {},
                     .top_entries = top,
                     .scores = out},
                    stream_);
    for (size_t n = 0; n < scores.size(); ++n) {
      EXPECT_TRUE(std::isnan(scores[n]) || out.At(static_cast<int64_t>(n)) == scores[n]);
    }
    return top.Ints();
  }

  // All scores of `num_queries` one-token sequences that share q, at full visibility.
  std::vector<float> Scores(const HostTensor& q, const HostTensor& weight, const KeyCache& cache,
                            IndexKeyFormat format) {
    HostTensor visible(DType::kI32, {1}), top(DType::kI32, {1, 4});
    visible.SetInts({static_cast<int32_t>(cache.num_entries)});
    HostTensor scores(DType::kF32, {1, cache.num_entries});
    ops_->IndexTopK({.q = q,
                     .weight = weight,
                     .keys = cache.store.store,
                     .format = format,
                     .batch = cache.batch.index,
                     .num_visible = visible,
                     .scratch = {},
                     .top_entries = top,
                     .scores = scores},
                    stream_);
    return scores.Floats();
  }

  const std::unique_ptr<Ops> ops_ = MakeReferenceOps();
  TestStream stream_;
};

using Entries = std::vector<int32_t>;

TEST_F(IndexTopKReferenceTest, ChoosesTheHighestAscending) {
  EXPECT_EQ(TopK({1, 5, -2, 4, 3}, 3), (Entries{1, 3, 4}));
  EXPECT_EQ(TopK({-1, -5, -2}, 2), (Entries{0, 2}));
}

TEST_F(IndexTopKReferenceTest, TiesGoToTheLowerEntry) {
  EXPECT_EQ(TopK({2, 3, 2, 2, 1}, 2), (Entries{0, 1}));
  EXPECT_EQ(TopK({0, -0.0f, 0, 0}, 2), (Entries{0, 1}));
  EXPECT_EQ(TopK(std::vector<float>(200, 1.5f), 4), (Entries{0, 1, 2, 3}));
}

TEST_F(IndexTopKReferenceTest, NaNSortsBelowEveryNumber) {
  EXPECT_EQ(TopK({kNaN, -INFINITY, 1, kNaN}, 2), (Entries{1, 2}));
  EXPECT_EQ(TopK({kNaN, -INFINITY, 1, kNaN}, 3), (Entries{0, 1, 2}));
  EXPECT_EQ(TopK({kNaN, kNaN, INFINITY}, 1), (Entries{2}));
}

TEST_F(IndexTopKReferenceTest, FewerEntriesThanKArePaddedWithMinusOne) {
  EXPECT_EQ(TopK({1, 2}, 4), (Entries{0, 1, -1, -1}));
  EXPECT_EQ(TopK({}, 3), (Entries{-1, -1, -1}));
  EXPECT_EQ(TopK({7}, 1), (Entries{0}));
}

TEST_F(IndexTopKReferenceTest, CrossesPageBorders) {
  std::vector<float> scores(150);
  for (size_t n = 0; n < scores.size(); ++n) scores[n] = static_cast<float>(n % 64);
  EXPECT_EQ(TopK(scores, 3), (Entries{62, 63, 127}));
}

TEST_F(IndexTopKReferenceTest, NoTokenSeesAnEntryThatIsNotComplete) {
  constexpr int64_t kDims = 32, kTokens = 41;
  const TestBatch batch({{0, kTokens}}, 3);
  const TestRowStore store(batch.num_pages, 64, IndexKeyRowBytes(IndexKeyFormat::kF32, kDims));
  EncodeIndexKeys(Random(DType::kF32, {batch.num_pages * 64, kDims}, 1).Floats(), kDims,
                  IndexKeyFormat::kF32, store);
  const HostTensor q = Random(DType::kF32, {kTokens, 2, kDims}, 2);
  const HostTensor weight = Random(DType::kF32, {kTokens, 2}, 3);
  HostTensor top(DType::kI32, {kTokens, 16});
  ops_->IndexTopK({.q = q,
                   .weight = weight,
                   .keys = store.store,
                   .format = IndexKeyFormat::kF32,
                   .batch = batch.index,
                   .num_visible = NumVisible(batch, 4),
                   .scratch = {},
                   .top_entries = top,
                   .scores = {}},
                  stream_);
  for (int64_t t = 0; t < kTokens; ++t) {
    for (int64_t i = 0; i < 16; ++i) {
      const int64_t visible = (t + 1) / 4;
      EXPECT_EQ(top.Ints()[t * 16 + i], i < visible ? static_cast<int32_t>(i) : -1);
    }
  }
}

// The Hadamard transform is orthogonal: applied to queries and keys it leaves every score, applied
// to one side only it destroys them.
TEST_F(IndexTopKReferenceTest, RotatingBothSidesLeavesTheScores) {
  constexpr int64_t kHeads = 4, kDims = 128, kEntries = 100;
  const HostTensor plain_q = Random(DType::kF32, {1, kHeads, kDims}, 2);
  const HostTensor raw = Random(DType::kF32, {1, kHeads}, 3);
  HostTensor rotated_q = plain_q.Clone();
  const HostTensor positions(DType::kI32, {1});  // position 0: no angle
  HostTensor weight(DType::kF32, {1, kHeads});
  ops_->IndexQuery({.q = rotated_q,
                    .raw_weight = raw,
                    .positions = positions,
                    .freqs = RopeFreqs(64),
                    .rounding = IndexRounding::kNone,
                    .weight = weight},
                   stream_);
  std::vector<float> keys = Random(DType::kF32, {kEntries, kDims}, 4).Floats();
  const KeyCache plain_keys(keys, kDims, IndexKeyFormat::kF32);
  for (int64_t n = 0; n < kEntries; ++n) Hadamard(keys.data() + n * kDims, kDims);
  const KeyCache rotated_keys(keys, kDims, IndexKeyFormat::kF32);
  const std::vector<float> want = Scores(plain_q, weight, plain_keys, IndexKeyFormat::kF32);
  const std::vector<float> both = Scores(rotated_q, weight, rotated_keys, IndexKeyFormat::kF32);
  const std::vector<float> one_side = Scores(rotated_q, weight, plain_keys, IndexKeyFormat::kF32);
  const float largest = std::fabs(*std::max_element(want.begin(), want.end()));
  float one_side_error = 0;
  for (int64_t n = 0; n < kEntries; ++n) {
    EXPECT_NEAR(both[n], want[n], 1e-5f * largest);
    one_side_error = std::max(one_side_error, std::fabs(one_side[n] - want[n]));
  }
  EXPECT_GT(one_side_error, 0.3f * largest);
}

TEST_F(IndexTopKReferenceTest, QueryWeightsCarryTheConstantAndTheFp8Scale) {
  constexpr int64_t kHeads = 4, kDims = 128;
  const HostTensor raw = Random(DType::kBf16, {1, kHeads}, 3);
  HostTensor positions(DType::kI32, {1});
  positions.SetInts({17});
  HostTensor plain = Random(DType::kBf16, {1, kHeads, kDims}, 2);
  HostTensor coded = plain.Clone();
  HostTensor weight(DType::kF32, {1, kHeads}), coded_weight(DType::kF32, {1, kHeads});
  const HostTensor freqs = RopeFreqs(64);
  IndexQueryParams params{.q = plain,
                          .raw_weight = raw,
                          .positions = positions,
                          .freqs = freqs,
                          .rounding = IndexRounding::kNone,
                          .weight = weight};
  ops_->IndexQuery(params, stream_);
  params.q = coded;
  params.rounding = IndexRounding::kFp8;
  params.weight = coded_weight;
  ops_->IndexQuery(params, stream_);
  for (int64_t h = 0; h < kHeads; ++h) {
    EXPECT_EQ(weight.At(h), RoundToBf16(raw.At(h) * static_cast<float>(std::pow(512.0, -0.5))));
    const float scale = coded_weight.At(h) / weight.At(h);
    float amax = 0;
    for (int64_t i = 0; i < kDims; ++i) amax = std::max(amax, std::fabs(plain.At(h * kDims + i)));
    EXPECT_NEAR(scale, amax / 448, amax * 1e-6f);
    for (int64_t i = 0; i < kDims; ++i) {
      const float x = plain.At(h * kDims + i);
      EXPECT_NEAR(coded.At(h * kDims + i) * scale, x, std::max(std::fabs(x) / 15, amax * 2e-5f));
    }
  }
}

TEST_F(IndexTopKReferenceTest, Fp8KeysScoreLikeTheirDecodedRows) {
  constexpr int64_t kHeads = 4, kDims = 128, kEntries = 70;
  const HostTensor q = Random(DType::kBf16, {1, kHeads, kDims}, 2);
  const HostTensor weight = Random(DType::kF32, {1, kHeads}, 3);
  std::vector<float> keys = Random(DType::kBf16, {kEntries, kDims}, 4).Floats();
  const std::vector<float> got =
      Scores(q, weight, KeyCache(keys, kDims, IndexKeyFormat::kFp8), IndexKeyFormat::kFp8);
  for (int64_t n = 0; n < kEntries; ++n) {
    float* key = keys.data() + n * kDims;
    std::vector<std::byte> payload(kDims), scale(4);
    EncodeIndexKeyRow(IndexKeyFormat::kFp8, key, kDims, payload.data(), scale.data());
    const float factor =
        DecodeIndexKeyRow(IndexKeyFormat::kFp8, payload.data(), scale.data(), kDims, key);
    for (int64_t i = 0; i < kDims; ++i) key[i] *= factor;
  }
  const std::vector<float> want =
      Scores(q, weight, KeyCache(keys, kDims, IndexKeyFormat::kF32), IndexKeyFormat::kF32);
  for (int64_t n = 0; n < kEntries; ++n) EXPECT_NEAR(got[n], want[n], 1e-4);
}

}  // namespace
}  // namespace lodestone
