#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "tests/kernels/cpu_test_support.h"

namespace lodestone {
namespace {

struct Shape {
  int64_t rows, n, k, groups;
};

constexpr Shape kShapes[] = {{1, 1, 1, 1},      {1, 31, 17, 1},    {2, 33, 64, 1},
                             {3, 96, 255, 1},   {4, 64, 256, 2},   {5, 160, 257, 1},
                             {7, 24, 1024, 1},  {12, 128, 128, 1}, {13, 288, 513, 1},
                             {16, 100, 300, 3}, {97, 40, 70, 2},   {200, 512, 256, 1}};

HostTensor Absolute(const HostTensor& source) {
  HostTensor result = source.Clone();
  for (int64_t i = 0; i < result.size(); ++i) result.Set(i, std::fabs(source.At(i)));
  return result;
}

OpRun LinearRun(const HostTensor& x, const HostTensor& weight, int64_t groups, DType out_dtype) {
  return [&x, &weight, groups, out_dtype](const Ops& ops, Stream& stream) {
    const PackedTensor packed = Pack(ops, weight, groups);
    HostTensor out(out_dtype, {x.view().shape[0], weight.view().shape[0]});
    ops.Linear({.x = x, .weight = packed.weight, .out = out}, stream);
    OpResult result;
    result.Add(out);
    return result;
  };
}

// A sum of k products with k roundings is within k * 2^-24 of the sum of their magnitudes (relative
// to it); the reference sums in f64. A bf16 output adds a rounding, which may fall either way.
TEST(CpuLinearTest, IsWithinTheRoundingErrorOfItsSums) {
  for (const Shape& shape : kShapes) {
    for (InputKind kind : kAllInputKinds) {
      for (DType act : {DType::kBf16, DType::kF32}) {
        for (DType weight_dtype : {DType::kBf16, DType::kF32}) {
          const HostTensor x = Random(act, {shape.rows, shape.groups * shape.k}, 1, kind);
          const HostTensor w =
              Random(weight_dtype, {shape.groups * shape.n, shape.k}, 2, kind, 0.1f);
          const auto got = RunOnAllBackends(LinearRun(x, w, shape.groups, act)).floats;
          const auto want = RunReference(LinearRun(x, w, shape.groups, act)).floats;
          const HostTensor abs_x = Absolute(x), abs_w = Absolute(w);
          const auto sizes =
              RunReference(LinearRun(abs_x, abs_w, shape.groups, DType::kF32)).floats;
          ASSERT_EQ(got.size(), want.size());
          for (size_t i = 0; i < got.size(); ++i) {
            const double error = std::ldexp(static_cast<double>(shape.k) * sizes[i], -24);
            const double rounding = act == DType::kBf16 ? kBf16Ulp * std::fabs(want[i]) : 0;
            ASSERT_NEAR(got[i], want[i], error + rounding)
                << i << " rows " << shape.rows << " n " << shape.n << " k " << shape.k;
          }
        }
      }
    }
  }
}

TEST(CpuLinearTest, RowsDoNotDependOnTheRowsBesideThem) {
  constexpr int64_t kRows = 131;
  constexpr int64_t kManyInputs = 320;  // whole stages of 64; the first 300 of them are not
  const HostTensor all_x = Random(DType::kBf16, {kRows, kManyInputs}, 3, InputKind::kWide);
  for (const int64_t inputs : {int64_t{300}, kManyInputs}) {
    TensorView x = all_x;
    x.shape[1] = inputs;
    const HostTensor w = Random(DType::kBf16, {200, inputs}, 4);
    const OpRun in_chunks = [&](const Ops& ops, Stream& stream) {
      const PackedTensor packed = Pack(ops, w);
      OpResult result;
      for (int64_t chunk : {int64_t{1}, int64_t{3}, int64_t{7}, int64_t{50}, kRows}) {
        HostTensor out(DType::kF32, {kRows, 200});
        for (const BatchPart& part : Chunks(kRows, chunk)) {
          ops.Linear({.x = x.Rows(part.first_position, part.num_tokens),
                      .weight = packed.weight,
                      .out = out.view().Rows(part.first_position, part.num_tokens)},
                     stream);
        }
        if (result.bytes.empty()) result.Add(out);
        EXPECT_EQ(out.Bytes(), result.bytes) << "chunks of " << chunk;
      }
      return result;
    };
    RunOnAllBackends(in_chunks);
  }
}

// Products of hundreds of rows take tiles of their own, several of them in each direction here, and
// inputs in another order.
TEST(CpuLinearTest, ManyRowsGiveTheBitsOfFew) {
  for (const Shape& shape : {Shape{400, 392, 1024, 1}, Shape{300, 136, 320, 3}}) {
    const HostTensor x =
        Random(DType::kBf16, {shape.rows, shape.groups * shape.k}, 3, InputKind::kWide);
    const HostTensor w = Random(DType::kBf16, {shape.groups * shape.n, shape.k}, 4);
    RunOnAllBackends([&](const Ops& ops, Stream& stream) {
      const PackedTensor packed = Pack(ops, w, shape.groups);
      OpResult result;
      for (const int64_t chunk : {shape.rows, int64_t{100}, int64_t{16}}) {
        HostTensor out(DType::kBf16, {shape.rows, shape.groups * shape.n});
        for (const BatchPart& part : Chunks(shape.rows, chunk)) {
          ops.Linear({.x = x.view().Rows(part.first_position, part.num_tokens),
                      .weight = packed.weight,
                      .out = out.view().Rows(part.first_position, part.num_tokens)},
                     stream);
        }
        if (result.bytes.empty()) result.Add(out);
        EXPECT_TRUE(out.Bytes() == result.bytes) << shape.groups << " groups, chunks of " << chunk;
      }
      return result;
    });
  }
}

TEST(CpuLinearTest, LeavesTheGapBetweenStridedRowsAlone) {
  const HostTensor x = Random(DType::kF32, {5, 48}, 5);
  const HostTensor w = Random(DType::kF32, {20, 32}, 6);
  RunOnAllBackends([&](const Ops& ops, Stream& stream) {
    const PackedTensor packed = Pack(ops, w);
    HostTensor out = Random(DType::kF32, {5, 64}, 7);
    const HostTensor before = out.Clone();
    TensorView narrow_x = x, narrow_out = out;
    narrow_x.shape[1] = 32;
    narrow_out.shape[1] = 20;
    ops.Linear({.x = narrow_x, .weight = packed.weight, .out = narrow_out}, stream);
    for (int64_t i = 0; i < out.size(); ++i) {
      if (i % 64 < 20) continue;
      EXPECT_EQ(out.At(i), before.At(i));
    }
    OpResult result;
    result.Add(out);
    return result;
  });
}

}  // namespace
}  // namespace lodestone
