#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/kernels/cpu_test_support.h"

namespace lodestone {
namespace {

struct TopKInputs {
  TopKInputs(const std::vector<BatchPart>& parts, int64_t num_heads, IndexKeyFormat key_format,
             InputKind kind, DType act = DType::kBf16)
      : batch(parts, 1),
        heads(num_heads),
        format(key_format),
        q(Random(act, {batch.index.num_tokens(), heads, 128}, 2, kind)),
        weight(Random(DType::kF32, {batch.index.num_tokens(), heads}, 3, kind, 0.1f)),
        keys(batch.num_pages, 64, IndexKeyRowBytes(format, 128)),
        visible(NumVisible(batch, 4)) {
    const HostTensor values = Random(act, {batch.num_pages, 64, 128}, 4, kind);
    EncodeIndexKeys(values.Floats(), 128, format, keys);
    longest = *std::max_element(visible.view().as<int32_t>(),
                                visible.view().as<int32_t>() + visible.size());
  }
  TestBatch batch;
  int64_t heads;
  IndexKeyFormat format;
  HostTensor q, weight;
  TestRowStore keys;
  HostTensor visible;
  int64_t longest;
};

// Chosen entries and scores; without scores, the entries alone.
OpRun TopKRun(const TopKInputs& in, int64_t k, bool with_scores) {
  return [&in, k, with_scores](const Ops& ops, Stream& stream) {
    const int64_t tokens = in.batch.index.num_tokens();
    HostTensor top(DType::kI32, {tokens, k});
    HostTensor scores(DType::kF32, {tokens, std::max<int64_t>(in.longest, 1)});
    const HostTensor scratch(DType::kU8, {ops.IndexTopKScratchBytes(tokens, in.longest)});
    const IndexTopKParams params{.q = in.q,
                                 .weight = in.weight,
                                 .keys = in.keys.store,
                                 .format = in.format,
                                 .batch = in.batch.index,
                                 .num_visible = in.visible,
                                 .scratch = scratch,
                                 .top_entries = top,
                                 .scores = with_scores ? scores.view() : TensorView()};
    ops.IndexTopK(params, stream);
    OpResult result;
    result.AddBytes(top);
    if (with_scores) result.Add(scores);
    for (int32_t entry : top.Ints()) result.floats.push_back(static_cast<float>(entry));
    return result;
  };
}

// The entries that `scores` call for: higher score first, then the lower entry, NaN last.
std::vector<int32_t> Best(const float* scores, int32_t count, int64_t k) {
  std::vector<int32_t> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    if (std::isnan(scores[a]) || std::isnan(scores[b]))
      return std::isnan(scores[b]) && !std::isnan(scores[a]);
    return scores[a] > scores[b];
  });
  order.resize(std::min<size_t>(order.size(), static_cast<size_t>(k)));
  std::sort(order.begin(), order.end());
  order.resize(static_cast<size_t>(k), -1);
  return order;
}

// Checks the op's choice against its own scores, which are checked against the reference.
void ExpectExactChoice(const TopKInputs& in, int64_t k) {
  const OpResult result = RunOnAllBackends(TopKRun(in, k, true));
  const int64_t stride = std::max<int64_t>(in.longest, 1);
  const int64_t tokens = in.batch.index.num_tokens();
  for (int64_t t = 0; t < tokens; ++t) {
    const int32_t visible = in.visible.view().as<int32_t>()[t];
    const std::vector<int32_t> want = Best(result.floats.data() + t * stride, visible, k);
    for (int64_t i = 0; i < k; ++i) {
      ASSERT_EQ(result.floats[static_cast<size_t>(tokens * stride + t * k + i)],
                static_cast<float>(want[i]))
          << "token " << t << " of " << visible << " visible, place " << i;
    }
  }
  // Scores are only formed where needed, and the choice is the same without them.
  const OpResult chosen = RunOnAllBackends(TopKRun(in, k, false));
  EXPECT_TRUE(std::equal(chosen.bytes.begin(), chosen.bytes.end(), result.bytes.begin()));
}

TEST(CpuIndexTopKTest, ChoosesTheBestEntriesOfItsScores) {
  const std::vector<BatchPart> parts = {{700, 300}, {0, 5}, {255, 70}};
  for (InputKind kind : kAllInputKinds) {  // kFewValues and kZeros tie often
    for (int64_t k : {1, 16, 64, 200}) {
      ExpectExactChoice(TopKInputs(parts, 8, IndexKeyFormat::kBf16, kind), k);
    }
  }
}

TEST(CpuIndexTopKTest, DecodeSplitsEntriesOverThreadsWithoutChangingTheChoice) {
  for (InputKind kind : {InputKind::kNormal, InputKind::kFewValues}) {
    ExpectExactChoice(TopKInputs({{4300, 1}}, 8, IndexKeyFormat::kBf16, kind), 64);
    ExpectExactChoice(TopKInputs({{4303, 1}, {17, 1}}, 3, IndexKeyFormat::kBf16, kind), 512);
  }
}

TEST(CpuIndexTopKTest, TakesTheHighestTopKAndManyHeads) {
  ExpectExactChoice(TopKInputs({{4700, 40}}, 64, IndexKeyFormat::kBf16, InputKind::kNormal), 1024);
}

// fp32 sums of 128 products and of the heads, relative to the size of the terms.
TEST(CpuIndexTopKTest, ScoresMatchTheReferenceInEveryFormat) {
  for (IndexKeyFormat format :
       {IndexKeyFormat::kBf16, IndexKeyFormat::kFp8, IndexKeyFormat::kFp4, IndexKeyFormat::kF32}) {
    const DType act = format == IndexKeyFormat::kF32 ? DType::kF32 : DType::kBf16;
    const TopKInputs in({{500, 37}, {3, 2}}, 11, format, InputKind::kNormal, act);
    const OpRun run = TopKRun(in, 1000, true);  // all entries: only scores can differ
    ExpectNear(RunOnAllBackends(run).floats, RunReference(run).floats, 1e-5, 1e-4);
  }
}

TEST(CpuIndexTopKTest, SortsNanBelowEveryNumber) {
  TopKInputs in({{1199, 1}}, 4, IndexKeyFormat::kBf16, InputKind::kNormal);
  for (int32_t entry : {0, 5, 150, 299}) {
    const int32_t page = in.batch.block_table.view().row<int32_t>(0)[entry / 64];
    auto* row = reinterpret_cast<uint16_t*>(in.keys.store.payload.row<std::byte>(page) +
                                            entry % 64 * in.keys.store.payload.strides[1]);
    for (int i = 0; i < 128; ++i) row[i] = 0x7fc0;
  }
  ExpectExactChoice(in, 64);
  ExpectExactChoice(in, 298);  // two of the four must be taken: the lower entries
  const OpResult got = RunOnAllBackends(TopKRun(in, 298, false));
  EXPECT_EQ(got.floats[0], 0);
  EXPECT_EQ(got.floats[297], 298);
}

TEST(CpuIndexTopKTest, TokensDoNotDependOnTheirChunk) {
  const TopKInputs in({{0, 900}}, 8, IndexKeyFormat::kBf16, InputKind::kNormal);
  const OpResult whole = RunOnAllBackends(TopKRun(in, 64, true));
  for (int64_t chunk : {1, 3, 7, 250}) {
    const OpRun run = [&](const Ops& ops, Stream& stream) {
      HostTensor top(DType::kI32, {900, 64});
      HostTensor scores(DType::kF32, {900, in.longest});
      const HostTensor scratch(DType::kU8, {ops.IndexTopKScratchBytes(900, in.longest)});
      for (const BatchPart& part : Chunks(900, chunk)) {
        const TestBatch batch = in.batch.With({part});
        const auto rows = [&](const TensorView& view) {
          return view.Rows(part.first_position, part.num_tokens);
        };
        ops.IndexTopK({.q = rows(in.q),
                       .weight = rows(in.weight),
                       .keys = in.keys.store,
                       .format = in.format,
                       .batch = batch.index,
                       .num_visible = rows(in.visible),
                       .scratch = scratch,
                       .top_entries = rows(top),
                       .scores = rows(scores)},
                      stream);
      }
      OpResult result;
      result.AddBytes(top);
      result.Add(scores);
      return result;
    };
    EXPECT_TRUE(RunOnAllBackends(run).bytes == whole.bytes) << "chunk " << chunk;
  }
}

}  // namespace
}  // namespace lodestone
