#include "kvcache/sequence_cache.h"

#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "kvcache/cache_pool.h"
#include "tests/kvcache/shapes.h"

namespace lodestone {
namespace {

constexpr int64_t kTokens = 1100;

std::unique_ptr<CachePool> Pool(const CacheShape& shape) {
  PlanInput input;
  input.shape = shape;
  input.memory_limit_bytes = int64_t{1} << 32;
  input.max_sequences = 2;
  input.max_context = 2048;
  return CachePool::Create(PlanMemory(input).value(), FreedPages::kPoison).value();
}

std::unique_ptr<SequenceCache> Sequence(CachePool& pool) {
  auto sequence = pool.MakeSequenceFor(2000).value();
  EXPECT_TRUE(sequence->Reserve(2000).ok());
  return sequence;
}

using RowName = std::tuple<CacheKind, int, int64_t>;  // kind, layer, entry
using RowCounts = std::array<int64_t, kNumCacheKinds>;

RowCounts Count(const std::vector<RowRun>& runs) {
  RowCounts counts{};
  for (const RowRun& run : runs) counts[static_cast<int>(run.kind)] += run.num_rows;
  return counts;
}

RowCounts Expected(const CacheShape& shape, int64_t length) {
  RowCounts counts{};
  for (int kind = 0; kind < kNumCacheKinds; ++kind) {
    counts[kind] = ExpectedRows(shape, static_cast<CacheKind>(kind), length);
  }
  return counts;
}

RowCounts Sum(RowCounts a, const RowCounts& b) {
  for (int kind = 0; kind < kNumCacheKinds; ++kind) a[kind] += b[kind];
  return a;
}

TEST(ExpectedRowsTest, AreThoseWorkedOutByHand) {
  const CacheShape shape = SmallShape();  // window, indexed, dense, indexed
  EXPECT_EQ(Expected(shape, 0), (RowCounts{0, 0, 0, 0, 0, 0}));
  // 3 tokens: 3 ring rows in 4 layers; 3 rows in each of 2 x 2 + 1 states.
  EXPECT_EQ(Expected(shape, 3), (RowCounts{0, 0, 0, 0, 12, 15}));
  // 4 tokens: one entry and key in 2 layers; half A of the group (4 rows) in 2 x 2 states, 4 dense.
  EXPECT_EQ(Expected(shape, 4), (RowCounts{2, 0, 2, 0, 16, 20}));
  // 1,027 = 4 * 256 + 3 = 128 * 8 + 3.
  EXPECT_EQ(Expected(shape, 1027), (RowCounts{512, 8, 512, 0, 508, 4 * 7 + 3}));
}

TEST(SequenceCacheTest, RunsHoldTheExpectedRowsAtEveryLength) {
  for (const CacheShape& shape : {SmallShape(), [] {
                                    CacheShape other = SmallShape();
                                    other.compress_ratios = {128, 128, 4, 128, 4, 0};
                                    other.kv_format = KvFormat::kFp8;
                                    other.window = 16;
                                    return other;
                                  }()}) {
    const auto pool = Pool(shape);
    const auto sequence = Sequence(*pool);
    for (int64_t length = 0; length <= kTokens; ++length) {
      const RowCounts rows =
          Sum(Count(sequence->AppendRuns(0, length)), Count(sequence->FinalRuns(length)));
      ASSERT_EQ(rows, Expected(shape, length)) << "length " << length;
    }
  }
}

TEST(SequenceCacheTest, ChunksCarryTheRowsOfTheWholeExactlyOnce) {
  const auto pool = Pool(SmallShape());
  const auto sequence = Sequence(*pool);
  std::map<RowName, const std::byte*> whole;
  const auto add_all = [](const std::vector<RowRun>& runs, auto&& add) {
    for (const RowRun& run : runs) {
      for (int64_t row = 0; row < run.num_rows; ++row) {
        add(RowName(run.kind, run.layer, run.first_entry + row),
            run.At(0, row));
      }
    }
  };
  add_all(sequence->AppendRuns(0, kTokens), [&](const RowName& name, const std::byte* address) {
    ASSERT_TRUE(whole.emplace(name, address).second);
  });
  for (int64_t chunk : {1, 3, 4, 5, 127, 128, 129, 256, 1100}) {
    std::map<RowName, const std::byte*> pieces;
    for (int64_t from = 0; from < kTokens; from += chunk) {
      add_all(sequence->AppendRuns(from, std::min(from + chunk, kTokens)),
              [&](const RowName& name, const std::byte* address) {
                ASSERT_TRUE(pieces.emplace(name, address).second) << "a row is carried twice";
              });
    }
    EXPECT_EQ(pieces, whole) << "chunks of " << chunk;
  }
}

TEST(SequenceCacheTest, FinalRowsHaveNamesOfTheirOwn) {
  const auto pool = Pool(SmallShape());
  const auto sequence = Sequence(*pool);
  for (int64_t length : {1, 4, 127, 128, 255, 1027}) {
    std::set<RowName> names;
    int64_t rows = 0;
    for (const RowRun& run : sequence->FinalRuns(length)) {
      rows += run.num_rows;
      for (int64_t row = 0; row < run.num_rows; ++row) {
        names.emplace(run.kind, run.layer, run.first_entry + row);
      }
    }
    EXPECT_EQ(static_cast<int64_t>(names.size()), rows) << "length " << length;
  }
}

TEST(SequenceCacheTest, RunsFollowThePagesOfTheSequence) {
  const auto pool = Pool(SmallShape());
  const auto sequence = Sequence(*pool);
  const std::vector<RowRun> runs = sequence->AppendRuns(100, 1000);
  EXPECT_EQ(runs.size(), 5);  // two indexed layers with keys and one dense layer
  for (const RowRun& run : runs) {
    const int64_t per_page = run.kind == CacheKind::kLatentsDense ? 2 : 64;
    const LayerCacheView& layer = pool->layers()[static_cast<size_t>(run.layer)];
    const TensorView& rows =
        run.kind == CacheKind::kIndexKeys ? layer.index_keys.payload : layer.entries.payload;
    EXPECT_EQ(run.num_pages(), 4);
    for (int64_t row = 0; row < run.num_rows; ++row) {
      const int64_t entry = run.first_entry + row;
      const PageId page = sequence->pages()[static_cast<size_t>(entry / per_page)];
      const std::byte* place =
          rows.row<std::byte>(page.value()) + entry % per_page * rows.strides[1];
      ASSERT_EQ(run.At(0, row), place) << "entry " << entry;
      ASSERT_EQ(run.Rows(row, 1).At(0, 0), run.At(0, row)) << "entry " << entry;
    }
  }
}

TEST(SequenceCacheTest, RingRowsAreTheLastPositionsAtTheirPlaceInTheRing) {
  const auto pool = Pool(SmallShape());
  const auto sequence = Sequence(*pool);
  const TensorView& ring = pool->layers()[2].ring.payload;
  std::vector<int64_t> positions;
  for (const RowRun& run : sequence->FinalRuns(300)) {
    if (run.kind != CacheKind::kRingWindows || run.layer != 2) continue;
    for (int64_t row = 0; row < run.num_rows; ++row) {
      const int64_t position = run.first_entry + row;
      positions.push_back(position);
      EXPECT_EQ(run.At(0, row),
                ring.row<std::byte>(sequence->slot()) + position % 128 * ring.strides[1]);
    }
  }
  ASSERT_EQ(positions.size(), 127);
  EXPECT_EQ(positions.front(), 173);
  EXPECT_EQ(positions.back(), 299);
}

TEST(SequenceCacheTest, StateRowsAreTheLiveHalvesOnly) {
  const auto pool = Pool(SmallShape());  // head_dim 128, index_head_dim 32
  const auto sequence = Sequence(*pool);
  std::vector<RowRun> states;
  for (const RowRun& run : sequence->FinalRuns(6)) {
    if (run.kind == CacheKind::kCompressorStates && run.layer == 1) states.push_back(run);
  }
  ASSERT_EQ(states.size(), 4);
  const LayerCacheView& view = pool->layers()[1];
  const auto* kv =
      view.state.kv.row<std::byte>(0) + sequence->slot() * view.state.kv.strides[0] * 4;
  const struct {
    int64_t entry, rows, row_bytes;
  } expected[] = {{0, 4, 2 * 128 * 4},
                  {4, 2, 2 * 256 * 4},
                  {kIndexStateEntry, 4, 2 * 32 * 4},
                  {kIndexStateEntry + 4, 2, 2 * 64 * 4}};
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(states[i].first_entry, expected[i].entry);
    EXPECT_EQ(states[i].num_rows, expected[i].rows);
    EXPECT_EQ(states[i].row_bytes(), expected[i].row_bytes);
  }
  EXPECT_EQ(states[0].part[0], kv);
  EXPECT_EQ(states[0].part_stride[0], 256 * 4);
  EXPECT_EQ(states[1].part[0], kv + 4 * 256 * 4);
  EXPECT_EQ(states[1].part[1], kv + 8 * 256 * 4 + 4 * 256 * 4);
}

void CopyRows(const std::vector<RowRun>& from, const std::vector<RowRun>& to) {
  ASSERT_EQ(from.size(), to.size());
  for (size_t i = 0; i < from.size(); ++i) {
    ASSERT_EQ(from[i].bytes(), to[i].bytes());
    for (int part = 0; part < from[i].num_parts; ++part) {
      for (int64_t row = 0; row < from[i].num_rows; ++row) {
        std::memcpy(to[i].At(part, row),
                    from[i].At(part, row), from[i].part_bytes[part]);
      }
    }
  }
}

std::vector<std::byte> Bytes(const std::vector<RowRun>& runs) {
  std::vector<std::byte> bytes;
  for (const RowRun& run : runs) {
    for (int64_t row = 0; row < run.num_rows; ++row) {
      for (int part = 0; part < run.num_parts; ++part) {
        const std::byte* begin = run.At(part, row);
        bytes.insert(bytes.end(), begin, begin + run.part_bytes[part]);
      }
    }
  }
  return bytes;
}

// The two workers never have the same pages; only names and bytes of rows agree.
TEST(SequenceCacheTest, RowsMoveBetweenSequencesWithOtherPagesAndSlots) {
  for (const CacheShape& shape : SmallShapesOfEveryFormat()) {
    const auto from_pool = Pool(shape);
    const auto to_pool = Pool(shape);
    const auto from = Sequence(*from_pool);
    auto earlier = to_pool->MakeSequenceFor(300).value();
    ASSERT_TRUE(earlier->Reserve(300).ok());
    auto to = to_pool->MakeSequenceFor(kTokens).value();
    ASSERT_TRUE(to->Reserve(kTokens).ok());
    ASSERT_NE(from->slot(), to->slot());

    std::mt19937 random(1);
    for (const auto& runs : {from->AppendRuns(0, kTokens), from->FinalRuns(kTokens)}) {
      for (const RowRun& run : runs) {
        for (int part = 0; part < run.num_parts; ++part) {
          for (int64_t row = 0; row < run.num_rows; ++row) {
            for (int64_t i = 0; i < run.part_bytes[part]; ++i) {
              run.At(part, row)[i] = static_cast<std::byte>(random());
            }
          }
        }
      }
    }
    CopyRows(from->AppendRuns(0, 777), to->AppendRuns(0, 777));
    CopyRows(from->AppendRuns(777, kTokens), to->AppendRuns(777, kTokens));
    CopyRows(from->FinalRuns(kTokens), to->FinalRuns(kTokens));
    EXPECT_EQ(Bytes(from->AppendRuns(0, kTokens)), Bytes(to->AppendRuns(0, kTokens)));
    EXPECT_EQ(Bytes(from->FinalRuns(kTokens)), Bytes(to->FinalRuns(kTokens)));
  }
}

TEST(SequenceCacheDeathTest, LengthNeverOutrunsThePages) {
  const auto pool = Pool(SmallShape());
  const auto sequence = pool->MakeSequenceFor(600).value();
  ASSERT_TRUE(sequence->Reserve(256).ok());
  sequence->SetLength(256);
  EXPECT_EQ(sequence->length(), 256);
  EXPECT_DEATH(sequence->SetLength(257), "length 257 after 256 with 1 pages");
  EXPECT_DEATH(sequence->SetLength(255), "length 255 after 256");
}

void FillRuns(const std::vector<RowRun>& runs, unsigned char seed) {
  for (const RowRun& run : runs) {
    for (int part = 0; part < run.num_parts; ++part) {
      for (int64_t row = 0; row < run.num_rows; ++row) {
        auto* bytes =
            reinterpret_cast<unsigned char*>(run.At(part, row));
        for (int64_t i = 0; i < run.part_bytes[part]; ++i) bytes[i] = seed++;
      }
    }
  }
}

bool SameRows(const std::vector<RowRun>& a, const std::vector<RowRun>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].num_rows != b[i].num_rows || a[i].num_parts != b[i].num_parts) return false;
    for (int part = 0; part < a[i].num_parts; ++part) {
      for (int64_t row = 0; row < a[i].num_rows; ++row) {
        if (std::memcmp(a[i].At(part, row),
                        b[i].At(part, row),
                        static_cast<size_t>(a[i].part_bytes[part])) != 0) {
          return false;
        }
      }
    }
  }
  return true;
}

TEST(SequenceCacheTest, ACopyHasAllRowsAndSharesNone) {
  for (const KvFormat format : {KvFormat::kBf16, KvFormat::kFp8}) {
    CacheShape shape = SmallShape();
    shape.kv_format = format;
    const auto pool = Pool(shape);
    for (const int64_t length : {1, 4, 127, 255, 256, 257, 1027}) {
      const auto source = Sequence(*pool);
      source->SetLength(length);
      FillRuns(source->AppendRuns(0, length), 1);
      FillRuns(source->FinalRuns(length), 77);
      const auto copy = Sequence(*pool);
      copy->CopyFrom(*source);
      EXPECT_EQ(copy->length(), length);
      EXPECT_TRUE(SameRows(copy->AppendRuns(0, length), source->AppendRuns(0, length))) << length;
      EXPECT_TRUE(SameRows(copy->FinalRuns(length), source->FinalRuns(length))) << length;
      FillRuns(source->FinalRuns(length), 5);
      EXPECT_FALSE(SameRows(copy->FinalRuns(length), source->FinalRuns(length)));
    }
  }
}

}  // namespace
}  // namespace lodestone
