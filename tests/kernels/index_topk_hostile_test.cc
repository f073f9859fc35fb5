#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <string>

#include "tests/kernels/cpu_test_support.h"

// Scores that break selections: all equal, infinite, none, at the k-th place; and every width up to
// a million entries. The choice is judged by its definition, not by another implementation.
namespace lodestone {
namespace {

constexpr int64_t kDims = 128;
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// The `k` highest of the first `visible` scores, ascending, then -1: NaN sorts last, ties go to the
// lower entry.
std::vector<int32_t> Best(const std::vector<float>& scores, int64_t visible, int64_t k) {
  std::vector<int32_t> order(static_cast<size_t>(visible));
  std::iota(order.begin(), order.end(), 0);
  const auto better = [&](int32_t a, int32_t b) {
    const float x = scores[static_cast<size_t>(a)], y = scores[static_cast<size_t>(b)];
    if (std::isnan(x) || std::isnan(y))
      return std::isnan(x) == std::isnan(y) ? a < b : !std::isnan(x);
    return x != y ? x > y : a < b;
  };
  const auto count = static_cast<ptrdiff_t>(std::min(k, visible));
  std::partial_sort(order.begin(), order.begin() + count, order.end(), better);
  order.resize(static_cast<size_t>(count));
  std::sort(order.begin(), order.end());
  order.resize(static_cast<size_t>(k), -1);
  return order;
}

// One sequence whose entry n has the score scores[n]: head 0 contributes relu(s), head 1
// -relu(-s). Its pages are `stored_pages` ones that repeat, so that a million entries need little
// memory; entry n has the score of entry n % (64 * stored_pages).
class ScoredSequence {
 public:
  ScoredSequence(const std::vector<float>& scores, int64_t num_entries, IndexKeyFormat format)
      : format_(format), num_entries_(num_entries) {
    const int64_t stored_pages = std::max<int64_t>(1, (std::ssize(scores) + 63) / 64);
    keys_ = std::make_unique<TestRowStore>(stored_pages, 64, IndexKeyRowBytes(format, kDims));
    std::vector<float> values(static_cast<size_t>(stored_pages * 64 * kDims), 0.0f);
    for (size_t n = 0; n < scores.size(); ++n) values[n * kDims] = scores[n];
    EncodeIndexKeys(values, kDims, format, *keys_);
    const int64_t pages = std::max<int64_t>(1, (num_entries + 63) / 64);
    block_table_ = HostTensor(DType::kI32, {1, pages});
    std::vector<int32_t> table(static_cast<size_t>(pages));
    for (int64_t i = 0; i < pages; ++i)
      table[static_cast<size_t>(i)] = static_cast<int32_t>(i % stored_pages);
    block_table_.SetInts(table);
  }

  // Tokens that see visible[t] entries each, in one batch.
  OpRun Choose(std::vector<int32_t> visible, int64_t k) const {
    return [this, visible = std::move(visible), k](const Ops& ops, Stream& stream) {
      const int64_t tokens = std::ssize(visible);
      const DType act = format_ == IndexKeyFormat::kF32 ? DType::kF32 : DType::kBf16;
      HostTensor q(act, {tokens, 2, kDims}), weight(DType::kF32, {tokens, 2});
      for (int64_t t = 0; t < tokens; ++t) {
        q.Set(2 * t * kDims, 1);
        q.Set((2 * t + 1) * kDims, -1);
        weight.Set(2 * t, 1);
        weight.Set(2 * t + 1, -1);
      }
      HostTensor positions(DType::kI32, {tokens}), token_seq(DType::kI32, {tokens}),
          zero(DType::kI32, {1}), count(DType::kI32, {1}), num_visible(DType::kI32, {tokens}),
          top(DType::kI32, {tokens, k});
      count.SetInts({static_cast<int32_t>(tokens)});
      num_visible.SetInts(visible);
      std::vector<int32_t> at(static_cast<size_t>(tokens));
      for (size_t t = 0; t < at.size(); ++t) at[t] = 4 * visible[t];
      positions.SetInts(at);
      const HostTensor scratch(DType::kU8, {ops.IndexTopKScratchBytes(tokens, num_entries_)});
      ops.IndexTopK({.q = q,
                     .weight = weight,
                     .keys = keys_->store,
                     .format = format_,
                     .batch = {.positions = positions,
                               .token_seq = token_seq,
                               .seq_first = zero,
                               .seq_tokens = count,
                               .seq_slot = zero,
                               .block_table = block_table_},
                     .num_visible = num_visible,
                     .scratch = scratch,
                     .top_entries = top,
                     .scores = {}},
                    stream);
      OpResult result;
      result.AddBytes(top);
      for (int32_t entry : top.Ints()) result.floats.push_back(static_cast<float>(entry));
      return result;
    };
  }

 private:
  const IndexKeyFormat format_;
  const int64_t num_entries_;
  std::unique_ptr<TestRowStore> keys_;
  HostTensor block_table_;
};

void ExpectRow(const float* got, const std::vector<int32_t>& want, const std::string& what) {
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_EQ(got[i], static_cast<float>(want[i])) << what << ", place " << i;
  }
}

struct Pattern {
  const char* name;
  std::function<float(int64_t n, int64_t k)> score;
};

const Pattern kPatterns[] = {
    {"AllEqual", [](int64_t, int64_t) { return 1.5f; }},
    {"AllZeroOfBothSigns", [](int64_t n, int64_t) { return n % 3 == 0 ? -0.0f : 0.0f; }},
    {"AllMinusInfinity", [](int64_t, int64_t) { return -kInf; }},
    {"AllPlusInfinity", [](int64_t, int64_t) { return kInf; }},
    {"AllNaN", [](int64_t, int64_t) { return kNaN; }},
    {"MinusInfinityAtTheKthPlace",
     [](int64_t n, int64_t k) { return n % 2 == 0 && n < 2 * (k - 1) ? 3.0f : -kInf; }},
    {"NaNAtTheKthPlace",
     [](int64_t n, int64_t k) { return n % 2 == 1 && n < 2 * (k - 1) ? -kInf : kNaN; }},
    {"TiesAcrossTheKthPlace",
     [](int64_t n, int64_t k) { return n % 5 == 0 && n / 5 < k / 2 ? 2.0f : 1.0f; }},
    {"Ascending", [](int64_t n, int64_t) { return static_cast<float>(n / 8); }},
    {"Descending", [](int64_t n, int64_t) { return static_cast<float>(-n / 8); }},
    {"InfinitiesInTurn",
     [](int64_t n, int64_t) { return n % 3 == 0   ? kInf
                                     : n % 3 == 1 ? -kInf
                                                  : 0.0f; }},
};

class HostileScoresTest : public ::testing::TestWithParam<Pattern> {};

// bf16 holds the low 8 bits of a number only, so scores are rounded before they are judged.
TEST_P(HostileScoresTest, AreChosenAsDefined) {
  for (IndexKeyFormat format : {IndexKeyFormat::kF32, IndexKeyFormat::kBf16}) {
    for (int64_t k : {1, 16, 512}) {
      constexpr int64_t kWidest = 1000;
      HostTensor scores(format == IndexKeyFormat::kF32 ? DType::kF32 : DType::kBf16, {kWidest});
      for (int64_t n = 0; n < kWidest; ++n) scores.Set(n, GetParam().score(n, k));
      const std::vector<float> values = scores.Floats();
      const ScoredSequence sequence(values, kWidest, format);
      // In one batch, then alone: the lower entry wins a tie either way.
      const std::vector<int32_t> visible = {0, 1, 2, 15, 16, 17, 63, 64, 65, 511, 512, 513, 1000};
      const OpResult batch = RunOnAllBackends(sequence.Choose(visible, k));
      for (size_t t = 0; t < visible.size(); ++t) {
        const std::string what = std::string(Name(format)) + ", " + std::to_string(k) + " of " +
                                 std::to_string(visible[t]) + " entries";
        const std::vector<int32_t> want = Best(values, visible[t], k);
        ExpectRow(batch.floats.data() + static_cast<int64_t>(t) * k, want, what);
        ExpectRow(RunOnAllBackends(sequence.Choose({visible[t]}, k)).floats.data(), want,
                  what + ", alone");
      }
      EXPECT_TRUE(RunReference(sequence.Choose(visible, k)).bytes == batch.bytes);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, HostileScoresTest, ::testing::ValuesIn(kPatterns),
                         [](const auto& pattern) { return std::string(pattern.param.name); });

// Entries repeat every 1,984, so that every wide row has ties at the k-th place too.
TEST(IndexTopKWidthTest, EveryWidthUpToAMillionIsChosenAsDefined) {
  constexpr int64_t kStored = 31 * 64;
  constexpr int32_t kWidths[] = {1,    2,    64,    65,     511,    512,    513,
                                 1023, 1025, 65536, 131071, 262144, 1048576};
  HostTensor stored = Random(DType::kBf16, {kStored}, 4);
  std::vector<float> scores(static_cast<size_t>(*std::rbegin(kWidths)));
  for (size_t n = 0; n < scores.size(); ++n)
    scores[n] = stored.At(static_cast<int64_t>(n) % kStored);
  const ScoredSequence sequence(stored.Floats(), std::ssize(scores), IndexKeyFormat::kBf16);
  for (int32_t width : kWidths) {
    const OpResult result = RunOnAllBackends(sequence.Choose({width}, 512));
    ExpectRow(result.floats.data(), Best(scores, width, 512), std::to_string(width) + " entries");
  }
}

// What a selection needs beside its inputs is at most 512 MiB at any context. On a CPU it does not
// grow at all: at a million entries it is what it is at a thousand. A GPU scores many tokens at one
// time.
TEST(IndexTopKWidthTest, ScratchIsBoundedAtAnyContext) {
  for (const CpuBackend& backend : CpuBackends()) {
    const int64_t at_a_million = backend.ops->IndexTopKScratchBytes(8192, 1'000'000);
    EXPECT_LE(at_a_million, int64_t{512} << 20) << backend.name;
    EXPECT_GE(at_a_million, backend.ops->IndexTopKScratchBytes(8192, 999'000)) << backend.name;
    if (backend.name == "cuda") continue;
    EXPECT_EQ(backend.ops->IndexTopKScratchBytes(512, 1'000'000),
              backend.ops->IndexTopKScratchBytes(512, 1000))
        << backend.name;
  }
}

}  // namespace
}  // namespace lodestone
