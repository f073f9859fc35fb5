#include <gtest/gtest.h>

#include <cmath>
#include <string>

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

}  // namespace
}  // namespace lodestone
