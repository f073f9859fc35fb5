#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <iterator>
#include <numeric>

#include "tests/kernels/cpu_test_support.h"

// How much of the selection of exact arithmetic an implementation keeps: recall@k, the mean over
// tokens of the share of the reference's top-k that was chosen.
namespace lodestone {
namespace {

constexpr int64_t kDims = 128;
constexpr int64_t kHeads = 16;
constexpr int64_t kEntries = 4096;
constexpr int64_t kTokens = 4;
constexpr int64_t kTop = 256;

enum class Relu { kPerHead, kMissing };

struct Inputs {
  Inputs()
      : batch({{4 * kEntries - kTokens, kTokens}}, 2),
        q(Random(DType::kBf16, {kTokens, kHeads, kDims}, 3)),
        weight(Random(DType::kF32, {kTokens, kHeads}, 4)),  // of both signs, as in the model
        keys(Random(DType::kBf16, {kEntries, kDims}, 5)),
        visible(DType::kI32, {kTokens}) {
    visible.SetInts(std::vector<int32_t>(kTokens, kEntries));
  }

  // The top-k of every token by scores in f64.
  std::vector<std::vector<int32_t>> ExactTops(Relu relu) const {
    const std::vector<float> queries = q.Floats(), key_values = keys.Floats();
    std::vector<std::vector<int32_t>> tops;
    for (int64_t token = 0; token < kTokens; ++token) {
      tops.push_back(ExactTop(queries, key_values, token, relu));
    }
    return tops;
  }
  std::vector<int32_t> ExactTop(const std::vector<float>& queries,
                                const std::vector<float>& key_values, int64_t token,
                                Relu relu) const {
    std::vector<double> scores(kEntries, 0.0);
    for (int64_t n = 0; n < kEntries; ++n) {
      for (int64_t h = 0; h < kHeads; ++h) {
        const float* a = queries.data() + (token * kHeads + h) * kDims;
        const float* b = key_values.data() + n * kDims;
        const double dot = std::inner_product(a, a + kDims, b, 0.0);
        scores[static_cast<size_t>(n)] +=
            weight.At(token * kHeads + h) * (relu == Relu::kPerHead ? std::max(dot, 0.0) : dot);
      }
    }
    std::vector<int32_t> order(kEntries);
    std::iota(order.begin(), order.end(), 0);
    std::nth_element(order.begin(), order.begin() + kTop, order.end(), [&](int32_t a, int32_t b) {
      return scores[static_cast<size_t>(a)] > scores[static_cast<size_t>(b)];
    });
    order.resize(kTop);
    std::sort(order.begin(), order.end());
    return order;
  }

  std::vector<int32_t> ChosenBy(const Ops& ops, Stream& stream, IndexKeyFormat format) const {
    TestRowStore store(batch.num_pages, 64, IndexKeyRowBytes(format, kDims));
    std::vector<float> stored(static_cast<size_t>(batch.num_pages * 64 * kDims), 0.0f);
    const std::vector<float> values = keys.Floats();
    for (int64_t n = 0; n < kEntries; ++n) {
      const int64_t page = batch.block_table.view().row<int32_t>(0)[n / 64];
      std::copy_n(values.begin() + n * kDims, kDims, stored.begin() + (page * 64 + n % 64) * kDims);
    }
    EncodeIndexKeys(stored, kDims, format, store);
    HostTensor top(DType::kI32, {kTokens, kTop});
    const HostTensor scratch(DType::kU8, {ops.IndexTopKScratchBytes(kTokens, kEntries)});
    ops.IndexTopK({.q = q,
                   .weight = weight,
                   .keys = store.store,
                   .format = format,
                   .batch = batch.index,
                   .num_visible = visible,
                   .scratch = scratch,
                   .top_entries = top,
                   .scores = {}},
                  stream);
    return top.Ints();
  }

  TestBatch batch;
  HostTensor q, weight, keys, visible;
};

double Recall(const std::vector<int32_t>& wanted, const int32_t* chosen) {
  std::vector<int32_t> common;
  std::set_intersection(wanted.begin(), wanted.end(), chosen, chosen + kTop,
                        std::back_inserter(common));
  return static_cast<double>(common.size()) / kTop;
}

double MeanRecall(const std::vector<std::vector<int32_t>>& wanted,
                  const std::vector<int32_t>& chosen) {
  double sum = 0;
  for (int64_t t = 0; t < kTokens; ++t) {
    sum += Recall(wanted[static_cast<size_t>(t)], chosen.data() + t * kTop);
  }
  return sum / kTokens;
}

// Keys of white noise have no needles: neighbours of the k-th place differ by less than the error
// of a coded key, so these recalls are lower than those of a trained model.
TEST(SelectionOverlapTest, KeepsWhatExactArithmeticChooses) {
  const Inputs in;
  const std::vector<std::vector<int32_t>> exact = in.ExactTops(Relu::kPerHead);
  const CpuBackend backend = std::move(CpuBackends().back());
  const auto recall = [&](IndexKeyFormat format) {
    const double mean = MeanRecall(exact, in.ChosenBy(*backend.ops, *backend.stream, format));
    std::cout << Name(format) << " keys: recall " << mean << "\n";
    return mean;
  };
  EXPECT_GE(recall(IndexKeyFormat::kBf16), 0.999);
  EXPECT_GE(recall(IndexKeyFormat::kFp8), 0.95);
  EXPECT_GE(recall(IndexKeyFormat::kFp4), 0.75);
}

// The measure sees the fault that others shipped.
TEST(SelectionOverlapTest, AMissingReluWouldShow) {
  const Inputs in;
  const CpuBackend backend = std::move(CpuBackends().back());
  const std::vector<int32_t> chosen =
      in.ChosenBy(*backend.ops, *backend.stream, IndexKeyFormat::kBf16);
  EXPECT_LT(MeanRecall(in.ExactTops(Relu::kMissing), chosen), 0.8);
}

}  // namespace
}  // namespace lodestone
