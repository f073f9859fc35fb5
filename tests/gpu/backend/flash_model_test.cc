#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>
#include <vector>

#include "engine/batch.h"
#include "engine/engine.h"
#include "engine/sequence.h"
#include "kernels/numeric/bf16.h"
#include "tests/gpu/backend/layer_comparison.h"

// A model of DeepSeek-V4-Flash dimensions and few layers, in the official form, with random
// weights:
//   lodestone synthesize bench/synthetic/flash-4-layers.json DIR
// LODESTONE_FLASH_MODEL names DIR, LODESTONE_FLASH_TOKENS the long prompts (262144,1000000) and
// LODESTONE_FLASH_NUMERICS what is rounded there (auto: reference).
namespace lodestone {
namespace {

constexpr DeviceId kGpu{.cuda = 0};
constexpr int64_t kChunk = 8192;  // tokens of a step, and of a slot of a hand-off

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

int64_t FreeBytes() {
  size_t free = 0, total = 0;
  EXPECT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  return static_cast<int64_t>(free);
}

class FlashModelTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* directory = std::getenv("LODESTONE_FLASH_MODEL");
    if (directory == nullptr) GTEST_SKIP() << "LODESTONE_FLASH_MODEL names no checkpoint";
    directory_ = directory;
  }

  EngineOptions Options(DeviceId device) const {
    EngineOptions options;
    options.model_dir = directory_;
    options.device = device;
    options.memory_limit_bytes = int64_t{48} << 30;
    options.max_sequences = 2;
    options.max_batch_tokens = 512;
    options.max_context_tokens = 1024;
    return options;
  }

  std::string directory_;
};

// --- The same layer outputs as on the CPU --------------------------------------------------------

class FlashLayerTest : public FlashModelTest,
                       public ::testing::WithParamInterface<Numerics> {};

TEST_P(FlashLayerTest, OutputsMatchTheCpu) {
  EngineOptions options = Options(kGpu);
  options.numerics = GetParam();
  ExpectLayersMatchTheCpu(options, {1, 5, 131, 300},
                          GetParam() == Numerics::kPlain ? kPlainTolerance : kReferenceTolerance);
}

INSTANTIATE_TEST_SUITE_P(Numerics, FlashLayerTest,
                         ::testing::Values(Numerics::kPlain, Numerics::kReference),
                         [](const auto& one) {
                           return one.param == Numerics::kPlain ? "Plain" : "Reference";
                         });

// --- Long prompts --------------------------------------------------------------------------------

// Index keys of one layer in a sequence's cache, and a query that finds the planted ones.
class PlantedKeys {
 public:
  PlantedKeys(Engine& engine, const SequenceCache& cache, int64_t length)
      : engine_(engine),
        heads_(engine.config().index_heads),
        dims_(engine.config().index_head_dim) {
    for (const RowRun& run : cache.AppendRuns(0, length)) {
      if (run.kind != CacheKind::kIndexKeys) continue;
      if (layer_ < 0) layer_ = run.layer;
      if (run.layer == layer_) runs_.push_back(run);
    }
    uint64_t state = 5;
    for (int64_t i = 0; i < heads_ * dims_; ++i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      query_.push_back(FloatToBf16(static_cast<float>(state >> 40) * 0x1p-23f - 1.0f));
    }
  }

  // A key along the mean of the query's heads, longer than any real one.
  void Plant(int64_t entry) const {
    std::vector<uint16_t> key;
    for (int64_t dim = 0; dim < dims_; ++dim) {
      float sum = 0;
      for (int64_t head = 0; head < heads_; ++head) {
        sum += Bf16ToFloat(query_[static_cast<size_t>(head * dims_ + dim)]);
      }
      key.push_back(FloatToBf16(100 * sum / static_cast<float>(heads_)));
    }
    CopyBytes(AddressOf(entry), key.data(), dims_ * 2);
  }

  // What the query selects as the next token of the sequence.
  std::vector<int32_t> Select(Sequence& sequence) const {
    Batch batch(1, 1);
    EXPECT_TRUE(batch.MoveTo(&engine_.stream(), engine_.plan().max_context).ok());
    const StepPart part{&sequence, 1};
    EXPECT_TRUE(sequence.cache().Reserve(sequence.cache().length() + 1).ok());
    batch.Fill({&part, 1});
    const int64_t k = engine_.config().index_top_k;
    const Buffer query = OnDevice(query_.data(), heads_ * dims_ * 2);
    const std::vector<float> ones(static_cast<size_t>(heads_), 1.0f);
    const Buffer weight = OnDevice(ones.data(), heads_ * 4);
    const int64_t scratch_bytes =
        engine_.ops().IndexTopKScratchBytes(1, batch.max_visible_indexed());
    const Buffer scratch = Buffer::Allocate(scratch_bytes, WorkMemory(kGpu)).value();
    const Buffer chosen = Buffer::Allocate(k * 4, WorkMemory(kGpu)).value();
    engine_.ops().IndexTopK(
        {.q = TensorView(query.data(), DType::kBf16, {1, heads_, dims_}),
         .weight = TensorView(weight.data(), DType::kF32, {1, heads_}),
         .keys = engine_.cache().layers()[static_cast<size_t>(layer_)].index_keys,
         .format = engine_.formats().index_key,
         .batch = batch.index(),
         .num_visible = batch.num_visible_indexed(),
         .scratch = TensorView(scratch.data(), DType::kU8, {scratch_bytes}),
         .top_entries = TensorView(chosen.data(), DType::kI32, {1, k}),
         .scores = {}},
        engine_.stream());
    EXPECT_TRUE(engine_.stream().Synchronize().ok());
    std::vector<int32_t> entries(static_cast<size_t>(k));
    CopyBytes(entries.data(), chosen.data(), k * 4);
    return entries;
  }

 private:
  std::byte* AddressOf(int64_t entry) const {
    for (const RowRun& run : runs_) {
      const int64_t row = entry - run.first_entry;
      if (row >= 0 && row < run.num_rows) return run.At(0, row);
    }
    ADD_FAILURE() << "no index key of entry " << entry;
    return nullptr;
  }
  static Buffer OnDevice(const void* data, int64_t bytes) {
    Buffer buffer = Buffer::Allocate(bytes, WorkMemory(kGpu)).value();
    CopyBytes(buffer.data(), data, bytes);
    return buffer;
  }

  Engine& engine_;
  const int64_t heads_, dims_;
  int layer_ = -1;
  std::vector<RowRun> runs_;
  std::vector<uint16_t> query_;
};

// Around borders of pages (64 entries), of chunks and slots (kChunk / 4), and at both ends.
std::vector<int32_t> PlantedEntries(int64_t num_entries) {
  std::vector<int32_t> entries;
  for (const int64_t border : {int64_t{0}, int64_t{64}, kChunk / 4, 3 * kChunk / 4,
                               num_entries / 2 / 64 * 64, num_entries - 64, num_entries}) {
    for (const int64_t entry : {border - 1, border}) {
      if (entry >= 0 && entry < num_entries) entries.push_back(static_cast<int32_t>(entry));
    }
  }
  return entries;
}

void ExpectFound(const PlantedKeys& keys, Sequence& sequence, const std::vector<int32_t>& planted,
                 const char* where) {
  const std::vector<int32_t> chosen = keys.Select(sequence);
  for (const int32_t entry : planted) {
    EXPECT_TRUE(std::ranges::binary_search(chosen, entry)) << "entry " << entry << ", " << where;
  }
}

// All rows of a sequence into another one of the same engine, through one slot at a time.
void MoveInSlots(Engine& engine, const SequenceCache& from, SequenceCache& to, int64_t length) {
  ASSERT_TRUE(to.Reserve(length).ok());
  const Buffer digests = Buffer::Allocate(2 * sizeof(RowDigests), WorkMemory(kGpu)).value();
  const Buffer slot = Buffer::Allocate(int64_t{256} << 20, WorkMemory(kGpu)).value();
  const auto move = [&](const std::vector<RowRun>& out, const std::vector<RowRun>& in) {
    auto* sums = reinterpret_cast<uint64_t*>(digests.data());
    engine.ops().PackRows({out, slot.data(), slot.size(), sums}, engine.stream());
    engine.ops().ScatterRows({in, slot.data(), slot.size(), sums + kNumCacheKinds},
                             engine.stream());
  };
  for (int64_t first = 0; first < length; first += kChunk) {
    const int64_t end = std::min(first + kChunk, length);
    move(from.AppendRuns(first, end), to.AppendRuns(first, end));
  }
  move(from.FinalRuns(length), to.FinalRuns(length));
  ASSERT_TRUE(engine.stream().Synchronize().ok());
  uint64_t sums[2][kNumCacheKinds];
  CopyBytes(sums, digests.data(), sizeof(sums));
  EXPECT_EQ(std::memcmp(sums[0], sums[1], sizeof(RowDigests)), 0) << "digests differ";
  to.SetLength(length);
}

void ExpectLedgerEqualsPlan(const Engine& engine, const MemorySnapshot& used, int64_t tokens,
                            int64_t slots) {
  const MemoryPlan& plan = engine.plan();
  for (const MemoryPool pool : {MemoryPool::kLatentsIndexed, MemoryPool::kLatentsDense,
                                MemoryPool::kIndexKeys, MemoryPool::kRingWindows,
                                MemoryPool::kCompressorStates}) {
    EXPECT_EQ(used.used[pool], slots * PagesFor(tokens) * plan.bytes_per_page[pool] +
                                   slots * plan.bytes_per_slot[pool]);
  }
  for (const MemoryPool pool : {MemoryPool::kWeights, MemoryPool::kScratch}) {
    EXPECT_EQ(used.used[pool], plan.capacity[pool]);
  }
}

std::vector<int64_t> LongLengths() {
  const char* list = std::getenv("LODESTONE_FLASH_TOKENS");
  std::istringstream words(list != nullptr ? list : "262144,1000000");
  std::vector<int64_t> lengths;
  for (std::string word; std::getline(words, word, ',');) lengths.push_back(std::stoll(word));
  return lengths;
}

TEST_F(FlashModelTest, LongPromptsFitThePlanAndPlantedKeysAreFound) {
  const std::vector<int64_t> lengths = LongLengths();
  EngineOptions options = Options(kGpu);
  options.max_batch_tokens = kChunk;
  if (const char* name = std::getenv("LODESTONE_FLASH_NUMERICS")) {
    options.numerics = ParseNumerics(name);
  }
  options.max_context_tokens = *std::ranges::max_element(lengths) + 64;
  const int64_t free_before = FreeBytes();
  const std::unique_ptr<Engine> engine = MakeTimedEngine(options);
  const int64_t taken = free_before - FreeBytes();
  EXPECT_NEAR(static_cast<double>(taken), static_cast<double>(engine->plan().capacity.total()),
              0x1p27)
      << "device memory taken, and the plan";
  for (const int64_t length : lengths) {
    const SamplingParams greedy{.ignore_eos = true, .max_new_tokens = 4};
    const std::vector<int32_t> prompt = RandomPrompt(length, engine->config().vocab_size);
    auto sequence = engine->NewSequence(prompt, 0, greedy, length + 4).value();
    const double began = Now();
    while (sequence->num_generated() == 0) {
      const StepPart part{sequence.get(),
                          static_cast<int32_t>(std::min(sequence->num_pending(), kChunk))};
      ASSERT_TRUE(engine->Step({&part, 1}).ok());
    }
    const double seconds = Now() - began;
    std::printf("%lld tokens: prefill %.2f s, %.0f tokens/s\n", static_cast<long long>(length),
                seconds, static_cast<double>(length) / seconds);
    ExpectLedgerEqualsPlan(*engine, engine->cache().ledger().Snapshot(), length, 1);

    const PlantedKeys keys(*engine, sequence->cache(), length);
    const std::vector<int32_t> planted = PlantedEntries(length / 4);
    for (const int32_t entry : planted) keys.Plant(entry);
    ExpectFound(keys, *sequence, planted, "where it was computed");
    auto moved = engine->NewSequence({sequence->tokens().begin(), sequence->tokens().end()}, 1,
                                     greedy, length + 4).value();
    MoveInSlots(*engine, sequence->cache(), moved->cache(), length);
    sequence.reset();
    ExpectFound(keys, *moved, planted, "after a hand-off");
    const StepPart next{moved.get(), 1};
    while (moved->num_generated() < 4) ASSERT_TRUE(engine->Step({&next, 1}).ok());
  }
  EXPECT_TRUE(engine->cache().ledger().CheckIdle().ok());
  EXPECT_NEAR(static_cast<double>(free_before - FreeBytes()), static_cast<double>(taken), 0x1p24)
      << "device memory taken by steps";
}

}  // namespace
}  // namespace lodestone
