#include "kvcache/layout.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/kvcache/shapes.h"

namespace lodestone {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

double BytesPerToken(CacheShape shape, KvFormat kv, IndexKeyFormat key) {
  shape.kv_format = kv;
  shape.index_key_format = key;
  return static_cast<double>(CacheLayout(shape).BytesPerPage().total()) / kPageTokens;
}

TEST(CacheLayoutTest, GrowthPerTokenIsThatOfTheLargeModels) {
  const struct {
    KvFormat kv;
    IndexKeyFormat key;
    double flash;
    double pro;
  } cases[] = {
      {KvFormat::kBf16, IndexKeyFormat::kBf16, 6880, 9848},
      {KvFormat::kBf16, IndexKeyFormat::kFp8, 6229, 8918},
      {KvFormat::kFp8, IndexKeyFormat::kBf16, 4501.25, 6441.4375},
      {KvFormat::kFp8, IndexKeyFormat::kFp8, 3850.25, 5511.4375},
      {KvFormat::kFp8, IndexKeyFormat::kFp4, 3514.25, 5031.4375},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(std::string(Name(c.kv)) + " and " + std::string(Name(c.key)));
    EXPECT_EQ(BytesPerToken(FlashShape(), c.kv, c.key), c.flash);
    EXPECT_EQ(BytesPerToken(ProShape(), c.kv, c.key), c.pro);
  }
}

TEST(CacheLayoutTest, FixedPartOfARequestIsThatOfTheLargeModels) {
  const PoolBytes flash = CacheLayout(FlashShape()).BytesPerSlot();
  EXPECT_EQ(flash[MemoryPool::kRingWindows], 5592064 / 127 * 128);
  EXPECT_EQ(flash[MemoryPool::kCompressorStates], 12206080);
  const PoolBytes pro = CacheLayout(ProShape()).BytesPerSlot();
  EXPECT_EQ(pro[MemoryPool::kRingWindows], 7932928 / 127 * 128);
  EXPECT_EQ(pro[MemoryPool::kCompressorStates], 18710528);

  CacheShape fp8 = FlashShape();
  fp8.kv_format = KvFormat::kFp8;
  EXPECT_EQ(CacheLayout(fp8).BytesPerSlot()[MemoryPool::kRingWindows], 3189224 / 127 * 128);
}

TEST(CacheLayoutTest, StateSizesAreThoseOfOneLayer) {
  const CacheLayout layout(FlashShape());
  EXPECT_EQ(layout.LatentState(4).bytes, 65536);
  EXPECT_EQ(layout.IndexState().bytes, 16384);
  EXPECT_EQ(layout.LatentState(128).bytes, 524288);
}

TEST(CacheLayoutTest, BlocksArePlanarAndBothPartsAligned) {
  const PlanarBlock block = MakePlanarBlock({.payload = 5, .scale = 3}, 3);
  EXPECT_EQ(block.scale_offset, 16);
  EXPECT_EQ(block.bytes, 32);
  const PlanarBlock fp8 = CacheLayout([] {
                            CacheShape shape = FlashShape();
                            shape.index_key_format = IndexKeyFormat::kFp8;
                            return shape;
                          }())
                              .PageBlock(CacheKind::kIndexKeys);
  EXPECT_EQ(fp8.scale_offset, 64 * 128);
  EXPECT_EQ(fp8.bytes, 64 * 132);
}

// Every byte of every row of every kind, as [begin, end) ranges in one pool.
class Ranges {
 public:
  void Add(const RowRun& run) {
    for (int64_t row = 0; row < run.num_rows; ++row) {
      for (int part = 0; part < run.num_parts; ++part) {
        const std::byte* begin = run.At(part, row);
        ranges_.emplace_back(begin, begin + run.part_bytes[part]);
      }
    }
  }
  void ExpectDisjointInside(const std::vector<std::byte>& pool) {
    std::sort(ranges_.begin(), ranges_.end());
    ASSERT_FALSE(ranges_.empty());
    EXPECT_GE(ranges_.front().first, pool.data());
    EXPECT_LE(ranges_.back().second, pool.data() + pool.size());
    for (size_t i = 1; i < ranges_.size(); ++i) {
      ASSERT_LE(ranges_[i - 1].second, ranges_[i].first) << "rows overlap";
    }
  }

 private:
  std::vector<std::pair<const std::byte*, const std::byte*>> ranges_;
};

TEST(CacheLayoutTest, NoTwoRowsShareAByteAndAllLieInTheirPool) {
  constexpr int64_t kBlocks = 3;
  for (const CacheShape& shape : SmallShapesOfEveryFormat()) {
    SCOPED_TRACE(std::string(Name(shape.kv_format)) + std::string(Name(shape.index_key_format)));
    const CacheLayout layout(shape);
    const struct {
      CacheKind kind;
      int64_t bytes;
      std::vector<int> layers;
    } pools[] = {
        {CacheKind::kLatentsIndexed, layout.BytesPerPage()[MemoryPool::kLatentsIndexed], {1, 3}},
        {CacheKind::kIndexKeys, layout.BytesPerPage()[MemoryPool::kIndexKeys], {1, 3}},
        {CacheKind::kLatentsDense, layout.BytesPerPage()[MemoryPool::kLatentsDense], {2}},
        {CacheKind::kRingWindows, layout.BytesPerSlot()[MemoryPool::kRingWindows], {0, 1, 2, 3}},
    };
    for (const auto& p : pools) {
      std::vector<std::byte> pool(p.bytes * kBlocks);
      Ranges ranges;
      for (int layer : p.layers) {
        const RowStore store = layout.Rows(p.kind, layer, pool.data(), kBlocks);
        for (int64_t block = 0; block < kBlocks; ++block) {
          ranges.Add(RunOf(store, block, 0, store.payload.shape[1]));
        }
      }
      ranges.ExpectDisjointInside(pool);
    }
  }
}

TEST(CacheLayoutTest, NoTwoStateRowsShareAByteAndAllLieInTheirPool) {
  constexpr int64_t kSlots = 3;
  const CacheLayout layout(SmallShape());
  std::vector<std::byte> pool(layout.BytesPerSlot()[MemoryPool::kCompressorStates] * kSlots);
  Ranges ranges;
  for (int layer : {1, 2, 3}) {
    std::vector<CompressorStateView> states = {layout.LatentStates(layer, pool.data(), kSlots)};
    if (layer != 2) states.push_back(layout.IndexStates(layer, pool.data(), kSlots));
    for (const CompressorStateView& state : states) {
      for (int64_t slot = 0; slot < kSlots; ++slot) {
        ranges.Add(RunOf(state, slot, 0, state.kv.shape[1], state.kv.shape[2]));
      }
    }
  }
  ranges.ExpectDisjointInside(pool);
}

TEST(CacheLayoutTest, RunStartsWhereTheViewSaysTheRowIs) {
  CacheShape shape = SmallShape();
  shape.kv_format = KvFormat::kFp8;
  const CacheLayout layout(shape);
  std::vector<std::byte> pool(layout.BytesPerPage()[MemoryPool::kLatentsIndexed] * 4);
  const RowStore store = layout.Rows(CacheKind::kLatentsIndexed, 3, pool.data(), 4);
  const RowRun run = RunOf(store, 2, 5, 7);
  // Layer 3 is the second of its kind: 4 pages of the first one lie before it.
  const int64_t page_bytes = 64 * (64 + 128) + 64 * 8;
  EXPECT_EQ(run.part[0] - pool.data(), (4 + 2) * page_bytes + 5 * 192);
  EXPECT_EQ(run.part[1] - pool.data(), (4 + 2) * page_bytes + 64 * 192 + 5 * 8);
  EXPECT_EQ(run.row_bytes(), 200);
  EXPECT_EQ(run.bytes(), 7 * 200);
  const RowRun tail = run.Rows(3, 4);
  EXPECT_EQ(tail.part[0], run.part[0] + 3 * 192);
  EXPECT_EQ(tail.part[1], run.part[1] + 3 * 8);
  EXPECT_EQ(tail.num_rows, 4);
}

LayoutIdentity Identity() {
  return {.model_id = "a1",
          .tokenizer_fingerprint = "b2",
          .numerics = Numerics::kPlain,
          .rope_theta = 10000,
          .compress_rope_theta = 160000,
          .rope_scaling = "yarn factor=16"};
}

TEST(LayoutDescriptorTest, EqualLayoutsHaveEqualFingerprintsAndNoDifferences) {
  const LayoutDescriptor a = DescribeLayout(SmallShape(), Identity());
  const LayoutDescriptor b = DescribeLayout(SmallShape(), Identity());
  EXPECT_EQ(LayoutFingerprint(a), LayoutFingerprint(b));
  EXPECT_THAT(DifferingFields(a, b), IsEmpty());
}

TEST(LayoutDescriptorTest, EveryFieldIsSeenAndNamed) {
  const struct {
    std::string text;
    std::function<void(CacheShape&, LayoutIdentity&)> change;
  } cases[] = {
      {"model_id: a1 here, zz there", [](auto&, auto& i) { i.model_id = "zz"; }},
      {"tokenizer: b2 here, zz there", [](auto&, auto& i) { i.tokenizer_fingerprint = "zz"; }},
      {"numerics: plain here, reference there",
       [](auto&, auto& i) { i.numerics = Numerics::kReference; }},
      {"rope_theta: 10000 here, 10000.5 there", [](auto&, auto& i) { i.rope_theta = 10000.5; }},
      {"compress_rope_theta: 160000 here, 40000 there",
       [](auto&, auto& i) { i.compress_rope_theta = 40000; }},
      {"rope_scaling: yarn factor=16 here,  there", [](auto&, auto& i) { i.rope_scaling = ""; }},
      {"kv: bf16 here, fp8 there", [](auto& s, auto&) { s.kv_format = KvFormat::kFp8; }},
      {"index_k: bf16 here, fp8 there",
       [](auto& s, auto&) { s.index_key_format = IndexKeyFormat::kFp8; }},
      {"compress_ratios: 0,4,128,4 here, 0,4,128 there",
       [](auto& s, auto&) { s.compress_ratios.pop_back(); }},
      {"head_dim: 128 here, 192 there", [](auto& s, auto&) { s.head_dim = 192; }},
      {"rope_dim: 64 here, 32 there", [](auto& s, auto&) { s.rope_dim = 32; }},
      {"index_head_dim: 32 here, 64 there", [](auto& s, auto&) { s.index_head_dim = 64; }},
      {"window: 128 here, 64 there", [](auto& s, auto&) { s.window = 64; }},
  };
  const LayoutDescriptor here = DescribeLayout(SmallShape(), Identity());
  std::set<uint64_t> fingerprints = {LayoutFingerprint(here)};
  for (const auto& c : cases) {
    SCOPED_TRACE(c.text);
    CacheShape shape = SmallShape();
    LayoutIdentity identity = Identity();
    c.change(shape, identity);
    const LayoutDescriptor there = DescribeLayout(shape, identity);
    const std::vector<std::string> differences = DifferingFields(here, there);
    EXPECT_THAT(differences, ElementsAre(c.text));
    EXPECT_TRUE(fingerprints.insert(LayoutFingerprint(there)).second) << "fingerprint unchanged";
  }
}

TEST(LayoutDescriptorTest, AFieldThatOneSideLacksIsNamed) {
  const LayoutDescriptor here = {{"kv", "bf16"}, {"old", "1"}};
  const LayoutDescriptor there = {{"kv", "bf16"}, {"new", "2"}};
  EXPECT_THAT(DifferingFields(here, there),
              ElementsAre("old: 1 here, none there", "new: none here, 2 there"));
}

TEST(CacheShapeTest, ImpossibleShapesAreRefusedWithTheirValue) {
  const struct {
    std::string text;
    std::function<void(CacheShape&)> change;
  } cases[] = {
      {"no layers", [](auto& s) { s.compress_ratios.clear(); }},
      {"layer 1 has compress ratio 8", [](auto& s) { s.compress_ratios[1] = 8; }},
      {"head_dim is 0", [](auto& s) { s.head_dim = 0; }},
      {"rope_dim is 63", [](auto& s) { s.rope_dim = 63; }},
      {"rope_dim is 256", [](auto& s) { s.rope_dim = 256; }},
      {"window is 0", [](auto& s) { s.window = 0; }},
      {"index_head_dim is 40", [](auto& s) { s.index_head_dim = 40; }},
      {"head_dim - rope_dim is 32",
       [](auto& s) {
         s.kv_format = KvFormat::kFp8;
         s.head_dim = 96;
       }},
  };
  EXPECT_TRUE(SmallShape().Validate().ok());
  for (const auto& c : cases) {
    CacheShape shape = SmallShape();
    c.change(shape);
    EXPECT_EQ(shape.Validate().code(), absl::StatusCode::kInvalidArgument) << c.text;
    EXPECT_THAT(std::string(shape.Validate().message()), HasSubstr(c.text));
  }
}

}  // namespace
}  // namespace lodestone
