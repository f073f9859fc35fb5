#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/numeric/hadamard.h"
#include "kernels/numeric/row_codec.h"
#include "kernels/ops.h"
#include "tests/testing/op_inputs.h"

namespace lodestone {
namespace {

constexpr int64_t kDims = 128;  // c
constexpr int64_t kRopeDims = 64;
constexpr float kEps = 1e-6f;

// One compressor with its inputs for a sequence of up to `max_tokens` and its cache.
struct Compressor {
  Compressor(int64_t the_ratio, int64_t max_tokens)
      : ratio(the_ratio),
        width(the_ratio == 4 ? 2 * kDims : kDims),
        kv(Random(DType::kF32, {max_tokens, width}, 1)),
        score(Random(DType::kF32, {max_tokens, width}, 2, InputKind::kNormal, 2.0f)),
        ape(Random(DType::kF32, {the_ratio, width}, 3)),
        norm_weight(Random(DType::kBf16, {kDims}, 4)),
        freqs(RopeFreqs(kRopeDims)) {}

  const int64_t ratio, width;
  HostTensor kv, score, ape, norm_weight, freqs;
};

// Its cache. Empty rows hold what a previous request left there, unless `clean`.
struct Cache {
  Cache(const Compressor& compressor, const TestBatch& batch, RowBytes row_bytes, bool clean = true)
      : state_kv(DType::kF32, {batch.num_slots, compressor.ratio == 4 ? 8 : 128, compressor.width}),
        state_score(DType::kF32,
                    {batch.num_slots, compressor.ratio == 4 ? 8 : 128, compressor.width}),
        entries(batch.num_pages, kPageTokens / compressor.ratio, row_bytes) {
    if (clean) {
      state_score.SetFloats(std::vector<float>(state_score.size(), -INFINITY));
    } else {
      Fill(&state_kv, InputKind::kNormal, 77);
      Fill(&state_score, InputKind::kNormal, 78);
    }
  }
  HostTensor state_kv, state_score;
  TestRowStore entries;
};

CompressKvParams Params(const Compressor& compressor, const TestBatch& batch, Cache& cache) {
  return {.kv = compressor.kv,
          .score = compressor.score,
          .ape = compressor.ape,
          .norm_weight = compressor.norm_weight,
          .freqs = compressor.freqs,
          .ratio = compressor.ratio,
          .eps = kEps,
          .batch = batch.index,
          .act = DType::kF32,
          .row = CompressedRow::kLatent,
          .round_fp8 = false,
          .kv_format = KvFormat::kF32,
          .index_rounding = IndexRounding::kNone,
          .index_format = IndexKeyFormat::kF32,
          .state_kv = cache.state_kv,
          .state_score = cache.state_score,
          .entries = cache.entries.store};
}

// Runs tokens [0, num_tokens) of a one-sequence batch in chunks.
void RunInChunks(const Ops& ops, const Compressor& compressor, const TestBatch& whole, Cache& cache,
                 int64_t num_tokens, int64_t chunk, CompressKvParams params) {
  TestStream stream;
  for (int64_t first = 0; first < num_tokens; first += chunk) {
    const int64_t count = std::min(chunk, num_tokens - first);
    const TestBatch part = whole.Only(0, {first, count});
    params.kv = compressor.kv.view().Rows(first, count);
    params.score = compressor.score.view().Rows(first, count);
    params.batch = part.index;
    params.state_kv = cache.state_kv;
    params.state_score = cache.state_score;
    params.entries = cache.entries.store;
    ops.CompressKv(params, stream);
  }
}

// Entry b by the formula of the whole prompt, with no state: docs/model.md 8.4.
std::vector<double> DirectEntry(const Compressor& in, int64_t b) {
  const auto score = [&](int64_t t, int64_t channel) {
    return static_cast<double>(in.score.At(t * in.width + channel) +
                               in.ape.At(t % in.ratio * in.width + channel));
  };
  std::vector<double> entry(kDims);
  double square = 0;
  for (int64_t j = 0; j < kDims; ++j) {
    double total = 0, sum = 0;
    const auto add = [&](int64_t t, int64_t channel) {
      const double weight = std::exp(score(t, channel));
      total += weight;
      sum += weight * static_cast<double>(in.kv.At(t * in.width + channel));
    };
    if (in.ratio == 4 && b > 0) {
      for (int64_t t = 4 * (b - 1); t < 4 * b; ++t) add(t, j);
    }
    for (int64_t t = in.ratio * b; t < in.ratio * (b + 1); ++t) add(t, in.width - kDims + j);
    entry[j] = sum / total;
    square += entry[j] * entry[j];
  }
  for (int64_t j = 0; j < kDims; ++j) {
    entry[j] *= static_cast<double>(in.norm_weight.At(j)) / std::sqrt(square / kDims + 1e-6);
  }
  for (int64_t i = 0; i < kRopeDims / 2; ++i) {
    const double angle = static_cast<double>(static_cast<float>(b * in.ratio) * in.freqs.At(i));
    double& re = entry[kDims - kRopeDims + 2 * i];
    double& im = entry[kDims - kRopeDims + 2 * i + 1];
    const double rotated = re * std::cos(angle) - im * std::sin(angle);
    im = re * std::sin(angle) + im * std::cos(angle);
    re = rotated;
  }
  return entry;
}

const float* EntryOf(const Cache& cache, const TestBatch& batch, int64_t b, int64_t ratio) {
  const int64_t rows = kPageTokens / ratio;
  const TensorView& payload = cache.entries.store.payload;
  const int64_t page = batch.block_table.view().as<int32_t>()[b / rows];
  return reinterpret_cast<const float*>(payload.row<std::byte>(page) +
                                        b % rows * payload.strides[1]);
}

// State rows that are read again: of the group in progress all, of the last completed one half A.
std::map<int64_t, std::vector<float>> LiveState(const Compressor& in, const TestBatch& batch,
                                                const Cache& cache, int64_t num_tokens) {
  const int64_t slot = batch.seq_slot.Ints()[0];
  const int64_t state_rows = in.ratio == 4 ? 8 : 128;
  const int64_t first_row = in.ratio == 4 ? 4 : 0;
  std::map<int64_t, std::vector<float>> rows;
  const auto add = [&](int64_t row, int64_t channels) {
    for (const HostTensor* state : {&cache.state_kv, &cache.state_score}) {
      for (int64_t j = 0; j < channels; ++j) {
        rows[row].push_back(state->At((slot * state_rows + row) * in.width + j));
      }
    }
  };
  for (int64_t row = 0; row < 4 && in.ratio == 4 && num_tokens >= 4; ++row) add(row, kDims);
  for (int64_t row = 0; row < num_tokens % in.ratio; ++row) add(first_row + row, in.width);
  return rows;
}

class CompressKvReferenceTest : public ::testing::TestWithParam<int64_t> {
 protected:
  std::vector<int64_t> Lengths() const {
    if (GetParam() == 128) return {1, 2, 127, 128, 129, 130, 255, 256, 257, 511, 512, 513};
    std::vector<int64_t> lengths;
    for (int64_t length = 1; length < 40; ++length) lengths.push_back(length);
    return lengths;
  }
  const std::unique_ptr<Ops> ops_ = MakeReferenceOps();
};

TEST_P(CompressKvReferenceTest, EqualsTheFormulaOfTheWholePrompt) {
  const Compressor in(GetParam(), 513);
  const RowBytes bytes = LatentRowBytes(KvFormat::kF32, kDims, kRopeDims);
  for (int64_t length : Lengths()) {
    const TestBatch batch({{0, length}}, 5);
    Cache cache(in, batch, bytes);
    RunInChunks(*ops_, in, batch, cache, length, length, Params(in, batch, cache));
    for (int64_t b = 0; b < length / in.ratio; ++b) {
      const std::vector<double> want = DirectEntry(in, b);
      const float* got = EntryOf(cache, batch, b, in.ratio);
      for (int64_t j = 0; j < kDims; ++j) {
        ASSERT_NEAR(got[j], want[j], 3e-6) << "length " << length << " entry " << b << " dim " << j;
      }
    }
  }
}

TEST_P(CompressKvReferenceTest, StateHoldsTheRemainderAndTheLastGroup) {
  const Compressor in(GetParam(), 513);
  for (int64_t length : Lengths()) {
    const TestBatch batch({{0, length}}, 5);
    Cache cache(in, batch, LatentRowBytes(KvFormat::kF32, kDims, kRopeDims));
    RunInChunks(*ops_, in, batch, cache, length, length, Params(in, batch, cache));
    const int64_t cut = length - length % in.ratio;
    for (const auto& [row, values] : LiveState(in, batch, cache, length)) {
      const int64_t t = in.ratio == 128 ? cut + row : row < 4 ? cut - 4 + row : cut + row - 4;
      const int64_t channels = static_cast<int64_t>(values.size()) / 2;
      for (int64_t j = 0; j < channels; ++j) {
        ASSERT_EQ(values[j], in.kv.At(t * in.width + j)) << "length " << length << " row " << row;
        ASSERT_EQ(values[channels + j],
                  in.score.At(t * in.width + j) + in.ape.At(t % in.ratio * in.width + j));
      }
    }
  }
}

TEST_P(CompressKvReferenceTest, ChunksChangeNoBit) {
  constexpr int64_t kTokens = 391;
  const Compressor in(GetParam(), kTokens);
  const TestBatch batch({{0, kTokens}}, 5);
  const RowBytes bytes = LatentRowBytes(KvFormat::kF32, kDims, kRopeDims);
  Cache whole(in, batch, bytes);
  RunInChunks(*ops_, in, batch, whole, kTokens, kTokens, Params(in, batch, whole));
  for (int64_t chunk : {1, 3, 4, 5, 127, 128, 129, 256}) {
    Cache cache(in, batch, bytes);
    RunInChunks(*ops_, in, batch, cache, kTokens, chunk, Params(in, batch, cache));
    EXPECT_EQ(cache.entries.memory.Bytes(), whole.entries.memory.Bytes()) << "chunk " << chunk;
    EXPECT_EQ(LiveState(in, batch, cache, kTokens), LiveState(in, batch, whole, kTokens));
  }
}

TEST_P(CompressKvReferenceTest, ANewSequenceDoesNotSeeTheStateOfThePreviousOne) {
  constexpr int64_t kTokens = 261;
  const Compressor in(GetParam(), kTokens);
  const TestBatch batch({{0, kTokens}}, 5);
  const RowBytes bytes = LatentRowBytes(KvFormat::kF32, kDims, kRopeDims);
  Cache clean(in, batch, bytes);
  Cache dirty(in, batch, bytes, /*clean=*/false);
  RunInChunks(*ops_, in, batch, clean, kTokens, 7, Params(in, batch, clean));
  RunInChunks(*ops_, in, batch, dirty, kTokens, 7, Params(in, batch, dirty));
  EXPECT_EQ(dirty.entries.memory.Bytes(), clean.entries.memory.Bytes());
  EXPECT_EQ(LiveState(in, batch, dirty, kTokens), LiveState(in, batch, clean, kTokens));
}

TEST_P(CompressKvReferenceTest, SequencesOfABatchDoNotTouchEachOther) {
  const Compressor in(GetParam(), 300);
  const RowBytes bytes = LatentRowBytes(KvFormat::kF32, kDims, kRopeDims);
  const TestBatch both({{0, 130}, {0, 170}}, 5);
  Cache together(in, both, bytes);
  TestStream stream;
  ops_->CompressKv(Params(in, both, together), stream);
  Cache apart(in, both, bytes);
  for (int64_t seq : {1, 0}) {
    const TestBatch one = both.Only(seq, {0, seq == 0 ? 130 : 170});
    CompressKvParams params = Params(in, one, apart);
    params.kv = params.kv.Rows(seq * 130, one.index.num_tokens());
    params.score = params.score.Rows(seq * 130, one.index.num_tokens());
    ops_->CompressKv(params, stream);
  }
  EXPECT_EQ(together.entries.memory.Bytes(), apart.entries.memory.Bytes());
  EXPECT_EQ(together.state_kv.Bytes(), apart.state_kv.Bytes());
}

TEST_P(CompressKvReferenceTest, IndexKeysAreRotatedLatents) {
  constexpr int64_t kTokens = 256;
  const Compressor in(GetParam(), kTokens);
  const TestBatch batch({{0, kTokens}}, 5);
  const RowBytes bytes = LatentRowBytes(KvFormat::kF32, kDims, kRopeDims);
  Cache latents(in, batch, bytes);
  Cache keys(in, batch, bytes);
  RunInChunks(*ops_, in, batch, latents, kTokens, kTokens, Params(in, batch, latents));
  CompressKvParams params = Params(in, batch, keys);
  params.row = CompressedRow::kIndexKey;
  RunInChunks(*ops_, in, batch, keys, kTokens, kTokens, params);
  for (int64_t b = 0; b < kTokens / in.ratio; ++b) {
    const float* latent = EntryOf(latents, batch, b, in.ratio);
    std::vector<float> want(latent, latent + kDims);
    Hadamard(want.data(), kDims);
    const float* got = EntryOf(keys, batch, b, in.ratio);
    EXPECT_EQ(std::vector<float>(got, got + kDims), want);
  }
}

TEST_P(CompressKvReferenceTest, Fp4KeysHoldWhatRoundedBf16KeysHold) {
  constexpr int64_t kTokens = 256;
  const Compressor in(GetParam(), kTokens);
  const TestBatch batch({{0, kTokens}}, 5);
  std::map<IndexKeyFormat, std::vector<float>> decoded;
  for (IndexKeyFormat format : {IndexKeyFormat::kBf16, IndexKeyFormat::kFp4}) {
    Cache cache(in, batch, IndexKeyRowBytes(format, kDims));
    CompressKvParams params = Params(in, batch, cache);
    params.act = DType::kBf16;
    params.row = CompressedRow::kIndexKey;
    params.index_rounding = IndexRounding::kFp4;
    params.index_format = format;
    RunInChunks(*ops_, in, batch, cache, kTokens, kTokens, params);
    const RowStore& store = cache.entries.store;
    const int64_t page = batch.block_table.Ints()[0];
    for (int64_t row = 0; row < kPageTokens / in.ratio; ++row) {
      std::vector<float> values(kDims);
      const std::byte* scale =
          store.scale.empty() ? nullptr
                              : store.scale.row<std::byte>(page) + row * store.scale.strides[1];
      DecodeIndexKeyRow(format, store.payload.row<std::byte>(page) + row * store.payload.strides[1],
                        scale, kDims, values.data());
      decoded[format].insert(decoded[format].end(), values.begin(), values.end());
    }
  }
  EXPECT_EQ(decoded[IndexKeyFormat::kBf16], decoded[IndexKeyFormat::kFp4]);
}

INSTANTIATE_TEST_SUITE_P(Ratios, CompressKvReferenceTest, ::testing::Values(4, 128));

}  // namespace
}  // namespace lodestone
