#include "kernels/op_checks.h"

#include "gtest/gtest.h"
#include "kernels/ops.h"
#include "tests/testing/op_inputs.h"

namespace lodestone {
namespace {

TEST(OpChecksDeathTest, AWrongShapeNamesOpFieldAndBothShapes) {
  const HostTensor x(DType::kBf16, {3, 8}), weight(DType::kBf16, {8}), out(DType::kBf16, {3, 9});
  EXPECT_DEATH(CheckRmsNorm({.x = x, .weight = weight, .eps = 0, .out = out}),
               "RmsNorm: out is BF16.3, 9., want BF16.3, 8.");
}

TEST(OpChecksDeathTest, AWrongTypeIsRefused) {
  const HostTensor x(DType::kF32, {3, 8}), weight(DType::kF32, {8}), out(DType::kF32, {3, 8});
  EXPECT_DEATH(CheckRmsNorm({.x = x, .weight = weight, .eps = 0, .out = out}),
               "RmsNorm: weight is F32.8., want BF16.8.");
}

TEST(OpChecksDeathTest, AWeightOfAnotherSizeIsRefused) {
  const std::unique_ptr<Ops> ops = MakeReferenceOps();
  const PackedTensor gate = Pack(*ops, HostTensor(DType::kBf16, {4, 16}));
  const HostTensor x(DType::kBf16, {2, 8}), experts(DType::kI32, {2, 2}), ids(DType::kI32, {2});
  const HostTensor weights(DType::kF32, {2, 2}), bias(DType::kF32, {4});
  EXPECT_DEATH(CheckMoeRoute({.x = x,
                              .gate = gate.weight,
                              .bias = bias,
                              .tid2eid = {},
                              .ids = ids,
                              .scale = 1,
                              .experts = experts,
                              .weights = weights}),
               "MoeRoute: gate is .4, 16., want .4, 8.");
}

TEST(OpChecksDeathTest, ACacheInAnotherFormatIsRefused) {
  const TestBatch batch({{0, 2}}, 1);
  const HostTensor latents(DType::kBf16, {2, 128});
  const TestRowStore ring(batch.num_slots, 8, LatentRowBytes(KvFormat::kBf16, 128, 64));
  EXPECT_DEATH(CheckStoreWindow({.latents = latents,
                                 .batch = batch.index,
                                 .format = KvFormat::kFp8,
                                 .rope_dims = 64,
                                 .ring = ring.store}),
               "StoreWindow: ring is U8.2, 8, 256., want U8..*, 192.");
}

TEST(OpChecksDeathTest, RowsBeyondTheSlotAreRefused) {
  std::byte row[16] = {};
  RowRun run{.kind = CacheKind::kRingWindows, .layer = 0, .first_entry = 0, .num_rows = 2};
  run.num_parts = 1;
  run.part[0] = row;
  run.part_bytes[0] = run.part_stride[0] = 8;
  RowDigests digests = {};
  EXPECT_DEATH(
      CheckMoveRows({.runs = {&run, 1}, .slot = row, .slot_bytes = 15, .digests = digests}),
      "runs have 16 bytes, the slot 15");
}

}  // namespace
}  // namespace lodestone
