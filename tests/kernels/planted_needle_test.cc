#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "kernels/numeric/hadamard.h"
#include "tests/kernels/cpu_test_support.h"

// A key that points where the query points is in the top-k, in whichever row it lies. Entry n
// points in direction n % 128 of 128 orthogonal ones and has noise on top, query t asks for
// direction t: 128 queries ask for every one of 16,384 rows, with 16,256 others beside each.
namespace lodestone {
namespace {

constexpr int64_t kDims = 128;
constexpr int64_t kHeads = 1;
constexpr int64_t kEntries = 16384;
constexpr int64_t kPlanted = kEntries / kDims;  // of each direction
constexpr int64_t kTop = 160;

// Row `direction` of a Hadamard matrix: every element is +-scale, rows are orthogonal.
std::vector<float> Direction(int64_t direction, float scale) {
  std::vector<float> x(kDims, 0.0f);
  x[static_cast<size_t>(direction)] = 1;
  Hadamard(x.data(), kDims);
  for (float& value : x) value = value > 0 ? scale : -scale;
  return x;
}

struct Planted {
  explicit Planted(IndexKeyFormat key_format)
      : format(key_format),
        batch({{4 * kEntries - kDims, kDims}}, 5),
        keys(batch.num_pages, 64, IndexKeyRowBytes(format, kDims)),
        q(DType::kBf16, {kDims, kHeads, kDims}),
        weight(DType::kF32, {kDims, kHeads}),
        visible(DType::kI32, {kDims}) {
    const std::vector<float> noise = Random(DType::kBf16, {64 * kDims}, 3).Floats();
    std::vector<float> values;
    for (int64_t page = 0; page < batch.num_pages; ++page) {
      // The same noise in every page, from another place on.
      values.insert(values.end(), noise.begin() + 29 * page, noise.end());
      values.insert(values.end(), noise.begin(), noise.begin() + 29 * page);
    }
    for (int64_t n = 0; n < kEntries; ++n) {
      const int64_t page = batch.block_table.view().row<int32_t>(0)[n / 64];
      const std::vector<float> direction = Direction(n % kDims, 8);
      float* key = values.data() + (page * 64 + n % 64) * kDims;
      for (int64_t i = 0; i < kDims; ++i) key[i] += direction[static_cast<size_t>(i)];
    }
    EncodeIndexKeys(values, kDims, format, keys);
    std::vector<float> queries;
    for (int64_t t = 0; t < kDims; ++t) {
      for (int64_t h = 0; h < kHeads; ++h) {
        const std::vector<float> direction = Direction(t, 1);
        queries.insert(queries.end(), direction.begin(), direction.end());
      }
    }
    q.SetFloats(queries);
    weight.SetFloats(std::vector<float>(kDims * kHeads, 1.0f));
    visible.SetInts(std::vector<int32_t>(kDims, kEntries));
  }

  // The choice of tokens [first, first + count), which are one batch.
  OpRun Choose(int64_t first, int64_t count) const {
    return [this, first, count](const Ops& ops, Stream& stream) {
      HostTensor top(DType::kI32, {count, kTop});
      const HostTensor scratch(DType::kU8, {ops.IndexTopKScratchBytes(count, kEntries)});
      const TestBatch part = batch.With({{4 * kEntries - kDims + first, count}});
      ops.IndexTopK({.q = q.view().Rows(first, count),
                     .weight = weight.view().Rows(first, count),
                     .keys = keys.store,
                     .format = format,
                     .batch = part.index,
                     .num_visible = visible.view().Rows(first, count),
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

  IndexKeyFormat format;
  TestBatch batch;
  TestRowStore keys;
  HostTensor q, weight, visible;
};

// Every row that token t asks for is among the kTop values at `top`.
void ExpectAllFound(const float* top, int64_t t) {
  for (int64_t planted = 0; planted < kPlanted; ++planted) {
    const auto row = static_cast<float>(planted * kDims + t);
    ASSERT_TRUE(std::find(top, top + kTop, row) != top + kTop) << "row " << row << " was missed";
  }
}

class PlantedNeedleTest : public ::testing::TestWithParam<IndexKeyFormat> {};

TEST_P(PlantedNeedleTest, PrefillFindsItInEveryRow) {
  const Planted planted(GetParam());
  const OpResult result = RunOnAllBackends(planted.Choose(0, kDims));
  for (int64_t t = 0; t < kDims; ++t) ExpectAllFound(result.floats.data() + t * kTop, t);
}

TEST_P(PlantedNeedleTest, DecodeFindsItInEveryRow) {
  const Planted planted(GetParam());
  for (int64_t t = 0; t < kDims; ++t) {
    ExpectAllFound(RunOnAllBackends(planted.Choose(t, 1)).floats.data(), t);
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, PlantedNeedleTest,
                         ::testing::Values(IndexKeyFormat::kBf16, IndexKeyFormat::kFp8,
                                           IndexKeyFormat::kFp4),
                         [](const auto& format) { return std::string(Name(format.param)); });

}  // namespace
}  // namespace lodestone
