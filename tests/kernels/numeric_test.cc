#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/numeric/bf16.h"
#include "kernels/numeric/fp4.h"
#include "kernels/numeric/fp8.h"
#include "kernels/numeric/hadamard.h"
#include "kernels/numeric/rope.h"

namespace lodestone {
namespace {

// Every bf16 value that is a finite number.
std::vector<float> FiniteBf16() {
  std::vector<float> values;
  for (uint32_t bits = 0; bits < 0x10000u; ++bits) {
    const float value = Bf16ToFloat(static_cast<uint16_t>(bits));
    if (std::isfinite(value)) values.push_back(value);
  }
  return values;
}

// The code whose value is nearest to x clamped to the largest one; of two equally near the even
// code.
template <typename Decode>
uint8_t NearestCode(double x, int num_codes, const Decode& decode) {
  const double magnitude = std::min(std::fabs(x), static_cast<double>(decode(num_codes - 1)));
  int best = 0;
  double best_distance = std::numeric_limits<double>::infinity();
  for (int code = 0; code < num_codes; ++code) {
    const double distance = std::fabs(magnitude - static_cast<double>(decode(code)));
    if (distance < best_distance || (distance == best_distance && code % 2 == 0)) {
      best = code;
      best_distance = distance;
    }
  }
  return static_cast<uint8_t>(best);
}

// Every bf16, and the fp32 neighbours of every border between two codes.
std::vector<float> ValuesAround(const std::vector<float>& codes) {
  std::vector<float> values = FiniteBf16();
  for (size_t i = 0; i + 1 < codes.size(); ++i) {
    const float border = (codes[i] + codes[i + 1]) / 2;
    for (float x : {border, std::nextafter(border, 0.0f), std::nextafter(border, 1e30f)}) {
      values.push_back(x);
      values.push_back(-x);
    }
  }
  return values;
}

TEST(Bf16Test, RoundsToNearestEvenAndKeepsSpecialValues) {
  for (float value : FiniteBf16()) {
    ASSERT_EQ(std::signbit(RoundToBf16(value)), std::signbit(value));
    ASSERT_EQ(RoundToBf16(value), value);
  }
  EXPECT_EQ(RoundToBf16(1.0f + 0x1p-8f), 1.0f);                       // tie to even
  EXPECT_EQ(RoundToBf16(1.0f + 0x1p-7f + 0x1p-8f), 1.0f + 0x1p-6f);   // tie to even, upwards
  EXPECT_EQ(RoundToBf16(1.0f + 0x1p-8f + 0x1p-20f), 1.0f + 0x1p-7f);  // above the tie
  EXPECT_EQ(RoundToBf16(std::numeric_limits<float>::max()), INFINITY);
  EXPECT_EQ(RoundToBf16(-INFINITY), -INFINITY);
  // A NaN whose payload sits in the lost bits must not turn into infinity.
  EXPECT_TRUE(std::isnan(RoundToBf16(std::bit_cast<float>(0x7f800001u))));
  EXPECT_EQ(FloatToBf16(std::bit_cast<float>(0xff800001u)), 0xffc0u);
}

TEST(Fp8Test, EncodesToTheNearestCode) {
  std::vector<float> codes;
  for (int code = 0; code < 0x7f; ++code) codes.push_back(E4m3ToFloat(static_cast<uint8_t>(code)));
  for (float x : ValuesAround(codes)) {
    const uint8_t magnitude = NearestCode(x, 0x7f, [&](int code) { return codes[code]; });
    const uint8_t want = static_cast<uint8_t>(magnitude | (std::signbit(x) ? 0x80 : 0));
    ASSERT_EQ(FloatToE4m3(x), want) << x;
  }
}

TEST(Fp8Test, DecodesEveryCodeByItsFields) {
  for (int code = 0; code < 0x7f; ++code) {
    const int exponent = code >> 3;
    const int fraction = code & 7;
    const float want = exponent == 0
                           ? std::ldexp(static_cast<float>(fraction), -9)
                           : std::ldexp(8.0f + static_cast<float>(fraction), exponent - 10);
    EXPECT_EQ(E4m3ToFloat(static_cast<uint8_t>(code)), want);
    EXPECT_EQ(E4m3ToFloat(static_cast<uint8_t>(code | 0x80)), -want);
    EXPECT_EQ(FloatToE4m3(want), code);
  }
  EXPECT_EQ(E4m3ToFloat(0x7e), 448.0f);
}

TEST(Fp8Test, SaturatesAndKeepsNaN) {
  EXPECT_EQ(FloatToE4m3(INFINITY), 0x7e);
  EXPECT_EQ(FloatToE4m3(-1e30f), 0xfe);
  EXPECT_TRUE(std::isnan(E4m3ToFloat(FloatToE4m3(NAN))));
  EXPECT_TRUE(std::isnan(E8m0ToFloat(255)));
}

TEST(Fp8Test, E8m0IsAPowerOfTwo) {
  for (int code = 0; code < 255; ++code) {
    EXPECT_EQ(E8m0ToFloat(static_cast<uint8_t>(code)), std::ldexp(1.0f, code - 127));
  }
}

TEST(Fp4Test, EncodesToTheNearestCode) {
  std::vector<float> codes;
  for (int code = 0; code < 8; ++code) codes.push_back(E2m1ToFloat(static_cast<uint8_t>(code)));
  EXPECT_EQ(codes, (std::vector<float>{0, 0.5f, 1, 1.5f, 2, 3, 4, 6}));
  for (float x : ValuesAround(codes)) {
    const uint8_t magnitude = NearestCode(x, 8, [&](int code) { return codes[code]; });
    const uint8_t want = static_cast<uint8_t>(magnitude | (std::signbit(x) ? 8 : 0));
    ASSERT_EQ(FloatToE2m1(x), want) << x;
  }
}

// The exponent of a group scale: the smallest k with 2^k >= amax / q, in exact arithmetic (a double
// holds 2^k * q and every bf16).
int ExactScaleExponent(float amax, double q) {
  int k = -140;
  while (std::ldexp(q, k) < static_cast<double>(amax)) ++k;
  return k;
}

TEST(GroupScaleTest, EqualsTheExactQuotientForEveryBf16) {
  for (float amax : FiniteBf16()) {
    if (amax >= kFp8AmaxFloor) {
      ASSERT_EQ(Fp8GroupScale(amax) - 127, ExactScaleExponent(amax, 448)) << amax;
    }
    if (amax >= 6 * 0x1p-126f) {
      ASSERT_EQ(Fp4GroupScale(amax) - 127, ExactScaleExponent(amax, 6)) << amax;
    }
  }
}

TEST(GroupScaleTest, FloorsKeepZeroRowsFinite) {
  std::vector<float> row(64, 0.0f);
  row[3] = -0.0f;
  std::vector<float> rounded = row;
  RoundFp8Group(rounded.data(), 64);
  EXPECT_EQ(rounded, row);
  EXPECT_TRUE(std::signbit(rounded[3]));
  RoundFp4Group(rounded.data(), 32);
  EXPECT_EQ(rounded, row);
  EXPECT_TRUE(std::signbit(rounded[3]));
  EXPECT_EQ(Fp4GroupScale(0), 1);
  std::vector<uint8_t> codes(64);
  EXPECT_EQ(QuantizeFp8Row(row.data(), 64, codes.data()), 1e-4f / 448.0f);
}

TEST(GroupScaleTest, RoundingTwiceChangesNothingAndFitsBf16) {
  uint32_t state = 1;
  for (int trial = 0; trial < 2000; ++trial) {
    std::vector<float> group(64);
    for (float& x : group) {
      state = state * 1664525u + 1013904223u;
      x = RoundToBf16(std::ldexp(static_cast<float>(static_cast<int32_t>(state)) * 0x1p-31f,
                                 static_cast<int>(state % 13) - 6));
    }
    for (auto round : {+[](float*x, int64_t n) { RoundFp8Group(x, n); },
                       +[](float*x, int64_t n) { RoundFp4Group(x, n); }}) {
      std::vector<float> once = group;
      round(once.data(), 32);
      std::vector<float> twice = once;
      round(twice.data(), 32);
      ASSERT_EQ(once, twice);
      for (float x : once) ASSERT_EQ(RoundToBf16(x), x);
    }
  }
}

TEST(HadamardTest, EqualsTheSylvesterMatrixAndInvertsItself) {
  for (int column : {0, 1, 5, 64, 127}) {
    std::vector<float> x(128, 0.0f);
    x[column] = 1.0f;
    Hadamard(x.data(), 128);
    for (int row = 0; row < 128; ++row) {
      const float sign = __builtin_popcount(row & column) % 2 == 0 ? 1.0f : -1.0f;
      ASSERT_EQ(x[row], sign * 0.08838834764831845f);
    }
    Hadamard(x.data(), 128);
    for (int row = 0; row < 128; ++row) ASSERT_NEAR(x[row], row == column ? 1.0f : 0.0f, 1e-6);
  }
}

TEST(RopeTest, RotatesInterleavedPairsAndBack) {
  const float freqs[2] = {1.0f, 0.25f};
  const CosSin angles[2] = {RopeAngle(3, freqs[0]), RopeAngle(3, freqs[1])};
  float x[4] = {1, 0, 0, 2};
  RotatePairs(x, angles, 2, /*inverse=*/false);
  EXPECT_NEAR(x[0], std::cos(3.0), 1e-6);
  EXPECT_NEAR(x[1], std::sin(3.0), 1e-6);
  EXPECT_NEAR(x[2], -2 * std::sin(0.75), 1e-6);
  EXPECT_NEAR(x[3], 2 * std::cos(0.75), 1e-6);
  RotatePairs(x, angles, 2, /*inverse=*/true);
  EXPECT_NEAR(x[0], 1, 1e-6);
  EXPECT_NEAR(x[1], 0, 1e-6);
  EXPECT_NEAR(x[2], 0, 1e-6);
  EXPECT_NEAR(x[3], 2, 1e-6);
}

TEST(RopeTest, TheAngleIsTheRoundedProduct) {
  const float freq = 0.6879f;
  const float angle = 1000003.0f * freq;
  EXPECT_EQ(RopeAngle(1000003, freq).cos, std::cos(angle));
  EXPECT_NE(RopeAngle(1000003, freq).cos,
            static_cast<float>(std::cos(1000003.0 * static_cast<double>(freq))));
}

}  // namespace
}  // namespace lodestone
