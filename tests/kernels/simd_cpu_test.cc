#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/numeric/bf16.h"

namespace lodestone {
namespace {

std::vector<CpuIsa> Isas() {
  std::vector<CpuIsa> isas;
  for (CpuIsa isa : {CpuIsa::kAvx2, CpuIsa::kAvx512}) {
    if (CpuHas(isa)) isas.push_back(isa);
  }
  return isas;
}

// Pooling two tokens with scores 0 and x <= 0 and values 0 and 1 gives e^x / (1 + e^x): the
// library's exponential is within 2 units in the last place of the exact one, the rest adds one.
TEST(CpuSimdTest, ExponentialIsAccurate) {
  for (CpuIsa isa : Isas()) {
    std::vector<float> x, zero, one, out;
    for (int i = 0; i < 16 * 4096; ++i) x.push_back(-static_cast<float>(i) * 80.0f / (16 * 4096));
    zero.resize(x.size());
    one.assign(x.size(), 1.0f);
    out.resize(x.size());
    cpu::PoolArgs args;
    args.count = 2;
    args.kv[0] = zero.data();
    args.kv[1] = one.data();
    args.score[0] = zero.data();
    args.score[1] = x.data();
    args.num_channels = static_cast<int64_t>(x.size());
    args.out = out.data();
    SimdTableOf(isa).pool(args);
    for (size_t i = 0; i < x.size(); ++i) {
      const double e = std::exp(static_cast<double>(x[i]));
      ASSERT_NEAR(out[i] / (e / (1 + e)), 1.0, 4e-7) << x[i];
    }
  }
}

TEST(CpuSimdTest, ScoreOfMinusInfinityWeighsNothing) {
  for (CpuIsa isa : Isas()) {
    const std::vector<float> absent(16, -std::numeric_limits<float>::infinity());
    const std::vector<float> score(16, -500.0f), kv(16, 3.25f), other(16, 1e30f);
    std::vector<float> out(16);
    cpu::PoolArgs args;
    args.count = 2;
    args.kv[0] = other.data();
    args.score[0] = absent.data();
    args.kv[1] = kv.data();
    args.score[1] = score.data();
    args.num_channels = 16;
    args.out = out.data();
    SimdTableOf(isa).pool(args);
    EXPECT_EQ(out, kv);
  }
}

// Every sixteenth fp32 value around every bf16 border, NaN and infinities included.
TEST(CpuSimdTest, RoundsToBf16AsTheScalarCodeDoes) {
  for (CpuIsa isa : Isas()) {
    std::vector<float> values;
    for (uint32_t high = 0; high < 0x10000; ++high) {
      for (uint32_t low : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
        values.push_back(std::bit_cast<float>(high << 16 | low));
      }
    }
    std::vector<uint16_t> got(values.size());
    SimdTableOf(isa).narrow(values.data(), static_cast<int64_t>(values.size()), true, got.data());
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(got[i], FloatToBf16(values[i])) << std::bit_cast<uint32_t>(values[i]);
    }
  }
}

// Sums of squares of rows of every short length: the same bits from every instruction set.
TEST(CpuSimdTest, InstructionSetsAgreeOnTails) {
  std::vector<float> x;
  for (int i = 0; i < 200; ++i) x.push_back(std::sin(static_cast<float>(i)) * 3);
  for (int64_t n = 1; n < 200; ++n) {
    const float first = SimdTableOf(Isas().front()).sum_squares(x.data(), false, n);
    double want = 0;
    for (int64_t i = 0; i < n; ++i) want += static_cast<double>(x[i]) * static_cast<double>(x[i]);
    EXPECT_NEAR(first, want, want * 1e-6);
    for (CpuIsa isa : Isas()) EXPECT_EQ(SimdTableOf(isa).sum_squares(x.data(), false, n), first);
  }
}

}  // namespace
}  // namespace lodestone
