#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "kvcache/cache_pool.h"
#include "tests/kvcache/shapes.h"

// Which rows a sequence has and where they lie, for random lengths up to 5,000 tokens, pools in use
// by others and chunks that differ between the two workers: both list the same rows of every layer
// and kind, each once, each in memory that the sequence owns.
namespace lodestone {
namespace {

constexpr int64_t kLongest = 5000;

using RowName = std::tuple<CacheKind, int32_t, int64_t>;  // kind, layer, entry

std::unique_ptr<CachePool> Pool(const CacheShape& shape) {
  PlanInput input;
  input.shape = shape;
  input.memory_limit_bytes = int64_t{1} << 32;
  input.max_sequences = 6;
  input.max_context = 2 * kLongest;
  return CachePool::Create(PlanMemory(input).value()).value();
}

// Takes and gives back pages until those that are free lie anywhere. The sequences stay.
std::vector<std::unique_ptr<SequenceCache>> Fragment(CachePool& pool, std::mt19937& random) {
  std::vector<std::unique_ptr<SequenceCache>> others(4);
  for (int i = 0; i < 40; ++i) {
    std::unique_ptr<SequenceCache>& other = others[random() % others.size()];
    other.reset();
    const int64_t tokens = 1 + static_cast<int64_t>(random() % kLongest);
    other = pool.MakeSequenceFor(tokens).value();
    EXPECT_TRUE(other->Reserve(tokens).ok());
  }
  return others;
}

// Every row of a prompt of `length` tokens, listed in random chunks, to the address of its first
// part.
std::map<RowName, const std::byte*> List(const SequenceCache& cache, int64_t length,
                                         std::mt19937& random) {
  std::map<RowName, const std::byte*> rows;
  const auto add = [&](const std::vector<RowRun>& runs) {
    for (const RowRun& run : runs) {
      for (int64_t row = 0; row < run.num_rows; ++row) {
        const RowName name(run.kind, run.layer, run.first_entry + row);
        EXPECT_TRUE(rows.emplace(name, run.At(0, row)).second)
            << Name(run.kind) << " of layer " << run.layer << ", entry " << run.first_entry + row
            << " is listed twice";
      }
    }
  };
  for (int64_t from = 0; from < length;) {
    const int64_t to = std::min<int64_t>(length, from + 1 + static_cast<int64_t>(random() % 700));
    add(cache.AppendRuns(from, to));
    from = to;
  }
  add(cache.FinalRuns(length));
  return rows;
}

// The rows that a prompt of `length` tokens has, by the definition of each kind.
std::set<RowName> Definition(const CacheShape& shape, int64_t length) {
  std::set<RowName> rows;
  for (size_t i = 0; i < shape.compress_ratios.size(); ++i) {
    const auto layer = static_cast<int32_t>(i);
    const int64_t ratio = shape.compress_ratios[i];
    for (int64_t p = std::max<int64_t>(0, length - (shape.window - 1)); p < length; ++p) {
      rows.emplace(CacheKind::kRingWindows, layer, p);
    }
    if (ratio == 0) continue;
    for (int64_t entry = 0; entry < length / ratio; ++entry) {
      rows.emplace(ratio == 4 ? CacheKind::kLatentsIndexed : CacheKind::kLatentsDense, layer,
                   entry);
      if (ratio == 4) rows.emplace(CacheKind::kIndexKeys, layer, entry);
    }
    const int64_t first_pending = ratio == 4 ? 4 : 0;
    std::vector<int64_t> state_rows;
    for (int64_t row = 0; ratio == 4 && length >= 4 && row < 4; ++row) state_rows.push_back(row);
    for (int64_t row = 0; row < length % ratio; ++row) state_rows.push_back(first_pending + row);
    for (int64_t row : state_rows) {
      rows.emplace(CacheKind::kCompressorStates, layer, row);
      if (ratio == 4) rows.emplace(CacheKind::kCompressorStates, layer, row + kIndexStateEntry);
    }
  }
  return rows;
}

// Entries lie in pages that the sequence owns, at the place of their number.
void ExpectPlaced(const CachePool& pool, const SequenceCache& cache,
                  const std::map<RowName, const std::byte*>& rows) {
  std::set<const std::byte*> addresses;
  for (const auto& [name, address] : rows) {
    const auto& [kind, layer, entry] = name;
    ASSERT_TRUE(addresses.insert(address).second) << "two rows share their bytes";
    const LayerCacheView& view = pool.layers()[static_cast<size_t>(layer)];
    if (kind == CacheKind::kRingWindows || kind == CacheKind::kCompressorStates) continue;
    const TensorView& payload =
        kind == CacheKind::kIndexKeys ? view.index_keys.payload : view.entries.payload;
    const int64_t per_page = payload.shape[1];
    const PageId page = cache.pages()[static_cast<size_t>(entry / per_page)];
    ASSERT_EQ(address, payload.row<std::byte>(page.value()) + entry % per_page * payload.strides[1])
        << Name(kind) << " of layer " << layer << ", entry " << entry;
  }
}

TEST(PageMapTest, BothWorkersListTheSameRowsAtAnyLength) {
  std::mt19937 random(20);
  for (const CacheShape& shape : {SmallShape(), [] {
                                    CacheShape other = SmallShape();
                                    other.compress_ratios = {128, 4, 0, 4, 128};
                                    other.kv_format = KvFormat::kFp8;
                                    other.index_key_format = IndexKeyFormat::kFp4;
                                    return other;
                                  }()}) {
    const auto prefill = Pool(shape);
    const auto decode = Pool(shape);
    const auto prefill_others = Fragment(*prefill, random);
    const auto decode_others = Fragment(*decode, random);
    for (int round = 0; round < 12; ++round) {
      const int64_t length = 1 + static_cast<int64_t>(random() % kLongest);
      SCOPED_TRACE(std::to_string(length) + " tokens");
      // The decode worker has reserved room for tokens to come.
      const auto from = prefill->MakeSequenceFor(length).value();
      const auto to =
          decode->MakeSequenceFor(length + static_cast<int64_t>(random() % 900)).value();
      ASSERT_TRUE(from->Reserve(length).ok());
      ASSERT_TRUE(to->Reserve(length).ok());
      const auto sent = List(*from, length, random);
      const auto received = List(*to, length, random);
      std::set<RowName> sent_names, received_names;
      for (const auto& [name, address] : sent) sent_names.insert(name);
      for (const auto& [name, address] : received) received_names.insert(name);
      EXPECT_EQ(sent_names, Definition(shape, length));
      EXPECT_EQ(received_names, sent_names);
      ASSERT_NO_FATAL_FAILURE(ExpectPlaced(*prefill, *from, sent));
      ASSERT_NO_FATAL_FAILURE(ExpectPlaced(*decode, *to, received));
    }
  }
}

}  // namespace
}  // namespace lodestone
