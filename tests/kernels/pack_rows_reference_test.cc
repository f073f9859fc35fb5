#include <algorithm>
#include <array>
#include <cstddef>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/numeric/row_digest.h"
#include "kernels/ops.h"
#include "tests/testing/op_inputs.h"

namespace lodestone {
namespace {

using Digests = std::array<uint64_t, kNumCacheKinds>;

// Two runs with gaps between rows: fp8 index keys (payload and scale apart) and states (one part).
struct Cache {
  Cache() : memory(2000) {}
  std::vector<RowRun> Runs() {
    RowRun keys{.kind = CacheKind::kIndexKeys, .layer = 1, .first_entry = 10, .num_rows = 6};
    keys.num_parts = 2;
    keys.part[0] = memory.data();
    keys.part[1] = memory.data() + 900;
    keys.part_bytes[0] = 128;
    keys.part_bytes[1] = 4;
    keys.part_stride[0] = 130;
    keys.part_stride[1] = 4;
    RowRun states{
        .kind = CacheKind::kCompressorStates, .layer = 2, .first_entry = 0, .num_rows = 3};
    states.num_parts = 1;
    states.part[0] = memory.data() + 1000;
    states.part_bytes[0] = 200;
    states.part_stride[0] = 256;
    return {keys, states};
  }
  std::vector<std::byte> memory;
};

class PackRowsReferenceTest : public ::testing::Test {
 protected:
  PackRowsReferenceTest() {
    for (size_t i = 0; i < source_.memory.size(); ++i) {
      source_.memory[i] = static_cast<std::byte>(i * 2654435761u >> 13);
    }
  }
  Digests Pack(const std::vector<RowRun>& runs, std::vector<std::byte>& slot) {
    Digests digests{};
    ops_->PackRows({.runs = runs,
                    .slot = slot.data(),
                    .slot_bytes = static_cast<int64_t>(slot.size()),
                    .digests = digests.data()},
                   stream_);
    return digests;
  }
  Digests Scatter(const std::vector<RowRun>& runs, std::vector<std::byte>& slot) {
    Digests digests{};
    ops_->ScatterRows({.runs = runs,
                       .slot = slot.data(),
                       .slot_bytes = static_cast<int64_t>(slot.size()),
                       .digests = digests.data()},
                      stream_);
    return digests;
  }

  const std::unique_ptr<Ops> ops_ = MakeReferenceOps();
  TestStream stream_;
  Cache source_;
};

TEST_F(PackRowsReferenceTest, RowsArriveWithTheSameDigests) {
  std::vector<std::byte> slot(6 * 132 + 3 * 200);
  const Digests sent = Pack(source_.Runs(), slot);
  Cache target;
  EXPECT_EQ(Scatter(target.Runs(), slot), sent);
  for (size_t run = 0; run < 2; ++run) {
    const RowRun from = source_.Runs()[run], to = target.Runs()[run];
    for (int64_t row = 0; row < from.num_rows; ++row) {
      for (int part = 0; part < from.num_parts; ++part) {
        EXPECT_TRUE(
            std::equal(from.At(part, row),
                       from.At(part, row) + from.part_bytes[part],
                       to.At(part, row)));
      }
    }
  }
  EXPECT_EQ(target.memory[128], std::byte{0});  // the gap behind the first key is not touched
  EXPECT_EQ(sent[static_cast<int>(CacheKind::kRingWindows)], 0u);
}

TEST_F(PackRowsReferenceTest, ARowInTheSlotIsPayloadThenScale) {
  std::vector<std::byte> slot(6 * 132 + 3 * 200);
  Pack(source_.Runs(), slot);
  EXPECT_TRUE(std::equal(slot.begin() + 132, slot.begin() + 260, source_.memory.begin() + 130));
  EXPECT_TRUE(std::equal(slot.begin() + 260, slot.begin() + 264, source_.memory.begin() + 904));
}

TEST_F(PackRowsReferenceTest, DigestsOfPartsAddUp) {
  std::vector<std::byte> slot(6 * 132 + 3 * 200);
  const Digests whole = Pack(source_.Runs(), slot);
  Digests sum{};
  for (int64_t cut : {0, 2}) {
    RowRun keys = source_.Runs()[0];
    keys.first_entry += cut;
    keys.num_rows = cut == 0 ? 2 : 4;
    keys.part[0] += cut * keys.part_stride[0];
    keys.part[1] += cut * keys.part_stride[1];
    const Digests part = Pack({keys}, slot);
    for (int kind = 0; kind < kNumCacheKinds; ++kind) sum[kind] += part[kind];
  }
  EXPECT_EQ(sum[static_cast<int>(CacheKind::kIndexKeys)],
            whole[static_cast<int>(CacheKind::kIndexKeys)]);
}

TEST_F(PackRowsReferenceTest, AFlippedBitInTheSlotShowsInTheDigest) {
  std::vector<std::byte> slot(6 * 132 + 3 * 200);
  const Digests sent = Pack(source_.Runs(), slot);
  slot[700] ^= std::byte{4};
  Cache target;
  EXPECT_NE(Scatter(target.Runs(), slot), sent);
}

}  // namespace
}  // namespace lodestone
