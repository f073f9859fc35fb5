#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include "tests/kernels/cpu_test_support.h"

// Products with FP8 and FP4 weights, which CUDA kernels widen to bf16 where they use them.
namespace lodestone {
namespace {

OpRun ProductRun(const HostTensor& x, const QuantisedTensor& weight, bool round_fp8) {
  return [&x, &weight, round_fp8](const Ops& ops, Stream& stream) {
    const PackedTensor packed = Pack(ops, weight.source());
    HostTensor out(DType::kF32, {x.view().shape[0], packed.weight.n * packed.weight.groups});
    ops.Linear({.x = x, .weight = packed.weight, .round_fp8 = round_fp8, .out = out}, stream);
    OpResult result;
    result.Add(out);
    return result;
  };
}

// Both form the same products exactly and differ in the order of fp32 sums: 1e-5 of the size of a
// row of terms, which is about |x| |w| sqrt(k).
TEST(CudaQuantisedTest, ProductsMatchTheReference) {
  for (const WeightFormat format : {WeightFormat::kFp8, WeightFormat::kFp4}) {
    for (const int64_t rows : {1, 20, 50, 150}) {
      for (const int64_t k : {64, 256, 1120}) {
        for (const InputKind kind : {InputKind::kNormal, InputKind::kOutlier, InputKind::kZeros}) {
          const HostTensor x = Random(DType::kBf16, {rows, k}, 1, kind);
          const QuantisedTensor weight({.format = format, .n = 136, .k = k}, 2, InputKind::kNormal,
                                       0.1f);
          const double size = 300 * 0.1 * std::sqrt(static_cast<double>(k));
          for (const bool round_fp8 : {false, true}) {
            SCOPED_TRACE(std::string(Name(format)) + " rows " + std::to_string(rows) + " k " +
                         std::to_string(k) + (round_fp8 ? " rounded" : ""));
            ExpectNear(RunOnAllBackends(ProductRun(x, weight, round_fp8)).floats,
                       RunReference(ProductRun(x, weight, round_fp8)).floats, 1e-5, 1e-6 * size);
          }
        }
      }
    }
  }
}

// Tiles for few rows, for many and for all that is left must give the same bits: 64 and 128 rows by
// warpgroups where inputs are a multiple of 64, and the portable tile where they are not.
TEST(CudaQuantisedTest, RowsDoNotDependOnTheRowsBesideThem) {
  struct Shape {
    int64_t rows, n, k;
  };
  for (const Shape& shape : {Shape{200, 200, 512}, Shape{260, 5760, 128}, Shape{131, 136, 1120}}) {
    for (const WeightFormat format : {WeightFormat::kFp8, WeightFormat::kFp4}) {
      const HostTensor x = Random(DType::kBf16, {shape.rows, shape.k}, 3, InputKind::kWide);
      const QuantisedTensor weight({.format = format, .n = shape.n, .k = shape.k}, 4,
                                   InputKind::kNormal, 0.1f);
      RunOnAllBackends([&](const Ops& ops, Stream& stream) {
        const PackedTensor packed = Pack(ops, weight.source());
        OpResult result;
        for (const DType dtype : {DType::kBf16, DType::kF32}) {
          std::vector<std::byte> whole;
          for (const int64_t chunk : {shape.rows, int64_t{100}, int64_t{16}}) {
            HostTensor out(dtype, {shape.rows, shape.n});
            for (const BatchPart& part : Chunks(shape.rows, chunk)) {
              ops.Linear({.x = x.view().Rows(part.first_position, part.num_tokens),
                          .weight = packed.weight,
                          .out = out.view().Rows(part.first_position, part.num_tokens)},
                         stream);
            }
            if (whole.empty()) whole = out.Bytes();
            EXPECT_TRUE(out.Bytes() == whole) << Name(format) << " n " << shape.n << " k "
                                              << shape.k << " chunks of " << chunk;
          }
        }
        return result;
      });
    }
  }
}

}  // namespace
}  // namespace lodestone
