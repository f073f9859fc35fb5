#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "tests/gpu/check.h"
#include "tests/gpu/dsa_case.h"

namespace lodestone::cuda {
namespace {

constexpr IndexKeyFormat kFormats[] = {IndexKeyFormat::kBf16, IndexKeyFormat::kFp8,
                                       IndexKeyFormat::kFp4};
constexpr IndexScoresPath kPaths[] = {IndexScoresPath::kPortable, IndexScoresPath::kTensorCore};

// Decode: one token a sequence, lengths on page and ratio borders, one sequence without entries.
const std::vector<SeqPart> kDecode = {{0, 1},   {3, 1},   {4, 1},    {251, 1},  {254, 1},
                                      {255, 1}, {256, 1}, {1023, 1}, {2047, 1}, {4499, 1}};
// Prefill: chunks that start and end inside pages, so that pairs of tokens cross sequences.
const std::vector<SeqPart> kPrefill = {{0, 7}, {250, 12}, {1020, 1}, {0, 1}, {509, 9}, {3, 2}};

// Runs the kernel; rows are [T, max_visible] and NaN where nothing was written.
std::vector<float> Compute(IndexCase& input, IndexScoresPath path) {
  IndexScoresArgs args = input.Args();
  const DeviceArray<float> scores(
      static_cast<size_t>(input.batch.num_tokens() * std::max<int64_t>(args.max_visible, 1)));
  args.scores = scores.data();
  args.score_stride = args.max_visible;
  LaunchIndexScores(args, path, nullptr);
  CUDA_CHECK(cudaDeviceSynchronize());
  EXPECT_TRUE(scores.guards_intact());
  return scores.Read();
}

// Sums of the same products in different orders, and tensor cores that drop low bits while they
// add: 2^-13 of the largest score of the row.
void ExpectClose(const std::vector<float>& got, const std::vector<float>& want, int64_t columns,
                 const std::string& what) {
  constexpr float kRelative = 1.0f / 8192;
  for (size_t first = 0; first < want.size(); first += static_cast<size_t>(columns)) {
    float largest = 0;
    for (int64_t i = 0; i < columns; ++i) {
      const float value = std::fabs(want[first + i]);
      if (value > largest) largest = value;
    }
    for (int64_t i = 0; i < columns; ++i) {
      const float a = got[first + i];
      const float b = want[first + i];
      ASSERT_EQ(std::isnan(a), std::isnan(b))
          << what << " element " << first + i << " got " << a << " want " << b;
      if (std::isnan(a)) continue;
      ASSERT_LE(std::fabs(a - b), kRelative * largest)
          << what << " element " << first + i << " got " << a << " want " << b;
    }
  }
}

void ExpectSameBits(const std::vector<float>& a, const std::vector<float>& b,
                    const std::string& what) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::isnan(a[i]) && std::isnan(b[i])) continue;
    ASSERT_EQ(std::memcmp(&a[i], &b[i], 4), 0)
        << what << " element " << i << ": " << a[i] << " and " << b[i];
  }
}

void ExpectMatchesReference(const std::vector<SeqPart>& parts, const IndexShape& shape,
                            IndexScoresPath path) {
  IndexCase input(parts, shape, 11);
  const std::string what = std::string(Name(shape.format)) + " heads " +
                           std::to_string(shape.num_heads) + " path " +
                           std::to_string(static_cast<int>(path));
  ExpectClose(Compute(input, path), input.ReferenceScores(),
              std::max<int64_t>(input.batch.max_visible(), 1), what);
}

TEST(IndexScoresTest, DecodeMatchesReference) {
  for (IndexScoresPath path : kPaths) {
    for (IndexKeyFormat format : kFormats) {
      ExpectMatchesReference(kDecode, {.format = format}, path);
    }
  }
}

TEST(IndexScoresTest, PrefillMatchesReference) {
  for (IndexScoresPath path : kPaths) {
    for (IndexKeyFormat format : kFormats) {
      ExpectMatchesReference(kPrefill, {.format = format}, path);
    }
  }
}

TEST(IndexScoresTest, AnyNumberOfHeadsMatchesReference) {
  for (int64_t heads : {4, 8, 24, 32, 60}) {
    for (IndexScoresPath path : kPaths) {
      for (IndexKeyFormat format : kFormats) {
        ExpectMatchesReference({{700, 3}, {255, 1}, {1, 1}}, {.num_heads = heads, .format = format},
                               path);
      }
    }
  }
}

TEST(IndexScoresTest, OtherDimsTakeThePortablePath) {
  IndexCase input({{700, 3}}, {.num_heads = 6, .head_dim = 64}, 3);
  EXPECT_EQ(static_cast<int>(ChooseIndexScoresPath(input.Args())),
            static_cast<int>(IndexScoresPath::kPortable));
  for (IndexKeyFormat format : kFormats) {
    ExpectMatchesReference({{700, 3}, {255, 1}}, {.num_heads = 6, .head_dim = 64, .format = format},
                           IndexScoresPath::kPortable);
  }
}

// Every sequence `times` times as long, of the same pages: thread blocks have many tiles of a
// token.
void Repeat(int64_t times, CaseBatch& batch) {
  const std::vector<int32_t> table = batch.block_table;
  const int64_t columns = batch.max_pages;
  batch.max_pages *= times;
  batch.block_table.assign(static_cast<size_t>(batch.num_seqs * batch.max_pages), 0);
  for (int64_t t = 0; t < batch.num_tokens(); ++t) {
    const int64_t seq = batch.token_seq[t];
    const int64_t last = batch.seq_first[seq] + batch.seq_tokens[seq] - 1;
    const int64_t pages = (batch.positions[last] + 256) / 256;
    for (int64_t i = 0; i < pages * times; ++i) {
      batch.block_table[seq * batch.max_pages + i] = table[seq * columns + i % pages];
    }
    batch.num_visible[t] += static_cast<int32_t>((times - 1) * pages * 64);
  }
}

// Both formats with keys that were rounded to fp4.
struct RoundedPair {
  RoundedPair(const std::vector<SeqPart>& parts, IndexShape shape, uint32_t seed)
      : bf16(parts, With(shape, IndexKeyFormat::kBf16), seed),
        fp4(parts, With(shape, IndexKeyFormat::kFp4), seed) {}
  static IndexShape With(IndexShape shape, IndexKeyFormat format) {
    shape.format = format;
    shape.round_keys_to_fp4 = true;
    return shape;
  }
  void ExpectSame(const std::string& what) {
    for (IndexScoresPath path : kPaths) {
      ExpectSameBits(Compute(bf16, path), Compute(fp4, path), what);
    }
    for (IndexCase* one : {&bf16, &fp4}) Repeat(32, one->batch);
    ExpectSameBits(Compute(bf16, IndexScoresPath::kTensorCore),
                   Compute(fp4, IndexScoresPath::kTensorCore), what + ", repeated");
  }
  IndexCase bf16, fp4;
};

// What makes fp4 lossless under `reference` numerics, whose queries are rounded, too: products of
// integers on the tensor cores. Others take products of bf16.
TEST(IndexScoresTest, Fp4AndBf16GiveTheSameBits) {
  for (const std::vector<SeqPart>& parts : {kDecode, kPrefill}) {
    for (bool rounds : {true, false}) {
      RoundedPair(parts, {.round_queries_to_fp4 = rounds}, 5).ExpectSame("bf16 and fp4");
    }
  }
}

TEST(IndexScoresTest, AnyNumberOfHeadsGivesTheSameBits) {
  for (int64_t heads : {4, 24, 60}) {
    RoundedPair pair({{700, 3}, {255, 1}, {1, 1}},
                     {.num_heads = heads, .round_queries_to_fp4 = true}, 5);
    pair.ExpectSame("heads " + std::to_string(heads));
  }
}

// Group scales from the smallest to far above 1.
TEST(IndexScoresTest, KeysOfAnySizeGiveTheSameBits) {
  for (bool rounds : {true, false}) {
    for (float factor :
         {1e-37f, 1e-13f, 1e-12f, 1e-11f, 1e-6f, 5.0f, 1000.0f, 1e12f, 1e13f, 1e30f}) {
      RoundedPair pair(kDecode, {.round_queries_to_fp4 = rounds, .key_factor = factor}, 5);
      pair.ExpectSame("factor " + std::to_string(factor));
    }
  }
}

// The integers' limits, on both sides: tiles with and without a key outside them, and tokens.
TEST(IndexScoresTest, GroupsOfDifferentSizeGiveTheSameBits) {
  for (const std::vector<SeqPart>& parts : {kDecode, kPrefill}) {
    for (int spread : {1, 2, 3, 4, 5, 120}) {
      for (bool keys : {true, false}) {
        IndexShape shape = {.round_queries_to_fp4 = true};
        (keys ? shape.key_spread : shape.query_spread) = spread;
        RoundedPair pair(parts, shape, 6);
        pair.ExpectSame((keys ? "key spread " : "query spread ") + std::to_string(spread));
      }
    }
  }
}

TEST(IndexScoresTest, WeightsOfAnySizeGiveTheSameBits) {
  for (const std::vector<SeqPart>& parts : {kDecode, kPrefill}) {
    for (float weight :
         {0.0f, -0.0f, 1e-38f, 1e-30f, 1e-12f, 1e-11f, 1e12f, 1e13f, 1e30f, INFINITY, NAN}) {
      RoundedPair pair(parts, {.round_queries_to_fp4 = true}, 7);
      for (IndexCase* one : {&pair.bf16, &pair.fp4}) {
        for (size_t i = 5; i < one->weight.size(); i += 150) one->weight[i] = weight;
        // A token without any other weight, and one whose query is 0.
        std::fill_n(one->weight.begin() + 9 * 64, 64, weight);
        std::fill_n(one->q.begin() + 7 * 64 * 128, 64 * 128, uint16_t{0});
      }
      pair.ExpectSame("weight " + std::to_string(weight));
    }
  }
}

// One element of a head of every third token. Not the largest finite numbers: sums with fp4 keys do
// not overflow at quite the same ones as with bf16 keys.
TEST(IndexScoresTest, QueriesOfAnySizeGiveTheSameBits) {
  constexpr uint16_t kValues[] = {0x7fc0, 0x7f80, 0xff80, 0x7180, 0x0001};  // 0x7180: 2^100
  for (const std::vector<SeqPart>& parts : {kDecode, kPrefill}) {
    for (uint16_t value : kValues) {
      RoundedPair pair(parts, {.round_queries_to_fp4 = true}, 8);
      for (IndexCase* one : {&pair.bf16, &pair.fp4}) {
        for (int64_t t = 0; t < one->batch.num_tokens(); t += 3) {
          const int64_t head = (11 * t + 5) % 64;
          one->q[(t * 64 + head) * 128 + (37 * t + 3) % 128] = value;
        }
      }
      pair.ExpectSame("query bits " + std::to_string(value));
    }
  }
}

// Groups whose scale is the smallest there is, beside ordinary ones.
TEST(IndexScoresTest, ZeroGroupsGiveTheSameBits) {
  RoundedPair pair(kDecode, {.round_queries_to_fp4 = true}, 5);
  const int64_t page = pair.bf16.batch.block_table[9 * pair.bf16.batch.max_pages + 1];
  for (int64_t entry : {0, 7, 33}) {
    const int64_t group = entry % 4;
    std::memset(pair.bf16.keys.payload(page, entry) + group * kFp4Group * 2, 0, kFp4Group * 2);
    std::memset(pair.fp4.keys.payload(page, entry) + group * kFp4Group / 2, 0, kFp4Group / 2);
    pair.fp4.keys.scale(page, entry)[group] = std::byte{1};
  }
  pair.ExpectSame("zero groups");
}

// A token's scores do not depend on the tokens beside it: pairs share tiles, single tokens do not.
TEST(IndexScoresTest, ChunkingDoesNotChangeBits) {
  for (IndexKeyFormat format : kFormats) {
    IndexCase input({{1200, 6}}, {.format = format}, 9);
    const std::vector<float> together = Compute(input, IndexScoresPath::kTensorCore);
    IndexScoresArgs args = input.Args();
    args.score_stride = args.max_visible;
    ExpectSameBits(together, ComputeScoresOneByOne(args), std::string(Name(format)));
  }
}

TEST(IndexScoresTest, NanKeyMarksOnlyItsEntry) {
  IndexCase input({{1023, 1}}, {}, 4);
  const int64_t page = input.batch.block_table[1];
  const uint16_t nan = 0x7fc0;
  std::memcpy(input.keys.payload(page, 5), &nan, 2);
  for (IndexScoresPath path : kPaths) {
    const std::vector<float> scores = Compute(input, path);
    for (size_t i = 0; i < scores.size(); ++i) ASSERT_EQ(std::isnan(scores[i]), i == 64 + 5);
  }
}

TEST(IndexScoresTest, NanFp8CodeMarksOnlyItsEntry) {
  IndexCase input({{1023, 1}}, {.format = IndexKeyFormat::kFp8}, 4);
  *input.keys.payload(input.batch.block_table[2], 11) = std::byte{0xff};
  for (IndexScoresPath path : kPaths) {
    const std::vector<float> scores = Compute(input, path);
    for (size_t i = 0; i < scores.size(); ++i) ASSERT_EQ(std::isnan(scores[i]), i == 128 + 11);
  }
}

// Many more tiles than thread blocks, and ring buffers that wrap many times.
TEST(IndexScoresTest, LongSequencesMatchReference) {
  for (IndexKeyFormat format : kFormats) {
    ExpectMatchesReference({{150003, 1}, {9, 1}, {77777, 2}}, {.num_heads = 8, .format = format},
                           IndexScoresPath::kTensorCore);
  }
}

std::vector<int32_t> SelectReference(const float* scores, int64_t visible, int64_t k) {
  std::vector<int32_t> order(static_cast<size_t>(visible));
  for (int64_t i = 0; i < visible; ++i) order[i] = static_cast<int32_t>(i);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return scores[a] > scores[b]; });
  order.resize(static_cast<size_t>(std::min(visible, k)));
  std::sort(order.begin(), order.end());
  order.resize(static_cast<size_t>(k), -1);
  return order;
}

// Scores that are small integers are exact in any order, so ties must fall alike.
TEST(IndexTopKTest, SelectsWhatTheReferenceSelects) {
  for (const std::vector<SeqPart>& parts : {kDecode, kPrefill}) {
    for (int32_t k : {16, 512}) {
      IndexCase input(parts, {.few_values = true}, 21);
      const int64_t tokens = input.batch.num_tokens();
      const int64_t columns = input.batch.max_visible();
      const DeviceArray<uint8_t> scratch(
          static_cast<size_t>(IndexTopKScratchBytes(tokens, columns)));
      const DeviceArray<int32_t> top(static_cast<size_t>(tokens * k));
      LaunchIndexTopK(
          {.index = input.Args(), .k = k, .top_entries = top.data(), .scratch = scratch.data()},
          nullptr);
      CUDA_CHECK(cudaDeviceSynchronize());
      const std::vector<int32_t> got = top.Read();
      const std::vector<float> scores = input.ReferenceScores();
      for (int64_t t = 0; t < tokens; ++t) {
        const std::vector<int32_t> want =
            SelectReference(scores.data() + t * columns, input.batch.num_visible[t], k);
        for (int32_t i = 0; i < k; ++i) ASSERT_EQ(got[t * k + i], want[i]) << "token " << t;
      }
      EXPECT_TRUE(top.guards_intact() && scratch.guards_intact());
    }
  }
}

// Launches that start before the one ahead of them has ended share one scratch: neither may see the
// other's queries or scores.
TEST(IndexTopKTest, LaunchesBackToBackDoNotMix) {
  constexpr int32_t kTop = 64;
  constexpr int kLaunches = 24;
  for (IndexKeyFormat format : kFormats) {
    IndexCase first({{40000, 1}, {517, 1}}, {.format = format}, 31);
    IndexCase second({{9000, 1}, {30000, 1}}, {.format = format}, 32);
    IndexTopKArgs args[2] = {{.index = first.Args(), .k = kTop},
                             {.index = second.Args(), .k = kTop}};
    const DeviceArray<uint8_t> scratch(
        static_cast<size_t>(IndexTopKScratchBytes(2, first.batch.max_visible())));
    const DeviceArray<int32_t> top(static_cast<size_t>(kLaunches * 2 * kTop));
    for (IndexTopKArgs& one : args) one.scratch = scratch.data();
    for (int i = 0; i < kLaunches; ++i) {  // the first two one by one
      args[i % 2].top_entries = top.data() + i * 2 * kTop;
      LaunchIndexTopK(args[i % 2], nullptr);
      if (i < 2) CUDA_CHECK(cudaDeviceSynchronize());
    }
    CUDA_CHECK(cudaDeviceSynchronize());
    const std::vector<int32_t> got = top.Read();
    for (int i = 2; i < kLaunches; ++i) {
      for (int j = 0; j < 2 * kTop; ++j) {
        ASSERT_EQ(got[i * 2 * kTop + j], got[i % 2 * 2 * kTop + j])
            << Name(format) << " launch " << i << " place " << j;
      }
    }
  }
}

}  // namespace
}  // namespace lodestone::cuda
