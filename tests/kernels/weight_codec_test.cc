#include "kernels/numeric/weight_codec.h"

#include <cmath>
#include <vector>

#include "gtest/gtest.h"
#include "tests/testing/golden_reader.h"
#include "tests/testing/op_inputs.h"

namespace lodestone {
namespace {

constexpr WeightFormat kQuantised[] = {WeightFormat::kFp8, WeightFormat::kFp4};

// Encoding what codes stand for gives the same numbers back, whatever their range.
TEST(WeightCodecTest, EncodedNumbersAreFixedPoints) {
  for (const WeightFormat format : kQuantised) {
    for (const InputKind kind : kAllInputKinds) {
      const MatrixSpec spec{.format = format, .n = 150, .k = 288};
      const QuantisedTensor first(spec, 1, kind, 0.03f);
      const HostTensor numbers = first.Widened();
      std::vector<uint8_t> codes(128 * 288), scales(9);
      std::vector<float> again(288);
      const MatrixSpec one_row{.format = format, .n = 1, .k = 288};
      const float* row = numbers.view().row<float>(129);
      const bool fp8 = format == WeightFormat::kFp8;
      if (fp8) {
        EncodeFp8Rows(row, 1, 288, codes.data(), scales.data());
      } else {
        EncodeFp4Row(row, 288, codes.data(), scales.data());
      }
      const MatrixSource source{
          one_row, TensorView(codes.data(), ValueType(format), {1, ValueColumns(format, 288)}),
          TensorView(scales.data(), DType::kF8E8M0, {1, ScaleColumns(format, 288)})};
      WidenWeightRow(source, 0, again.data());
      for (int64_t j = 0; j < 288; ++j) {
        // A row alone may have a finer scale than its tile, never a coarser one.
        EXPECT_EQ(again[j], row[j]) << Name(format) << " " << Name(kind) << " " << j;
      }
    }
  }
}

TEST(WeightCodecTest, ErrorIsThatOfTheFormat) {
  const int64_t k = 256;
  const HostTensor numbers = Random(DType::kF32, {128, k}, 3, InputKind::kNormal, 0.02f);
  const MatrixSpec fp8{.format = WeightFormat::kFp8, .n = 128, .k = k};
  const HostTensor widened = QuantisedTensor(fp8, 3, InputKind::kNormal, 0.02f).Widened();
  for (int64_t i = 0; i < widened.size(); ++i) {
    // Half a step of three mantissa bits, or of the smallest subnormal under the tile's scale.
    EXPECT_NEAR(widened.At(i), numbers.At(i), std::fabs(numbers.At(i)) / 16 + 0.02f * 5 / 448 / 64);
  }
}

TEST(WeightCodecTest, LowNibbleIsTheEvenInput) {
  std::vector<float> row(32);
  const float magnitudes[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  for (int64_t j = 0; j < 16; ++j) row[j] = magnitudes[j % 8] * (j < 8 ? 1.0f : -1.0f) / 4;
  uint8_t packed[16], scale[1];
  EncodeFp4Row(row.data(), 32, packed, scale);
  EXPECT_EQ(scale[0], 125);  // 2^-2
  for (int byte = 0; byte < 8; ++byte) EXPECT_EQ(packed[byte], 2 * byte | (2 * byte + 1) << 4);
}

TEST(WeightCodecTest, ZerosHaveScaleOne) {
  const std::vector<float> zeros(128);
  uint8_t codes[128], scales[4];
  EncodeFp8Rows(zeros.data(), 1, 128, codes, scales);
  EXPECT_EQ(scales[0], 127);
  EncodeFp4Row(zeros.data(), 128, codes, scales);
  for (const uint8_t scale : scales) EXPECT_EQ(scale, 127);
}

TEST(WeightCodecTest, ATileSharesTheScaleOfItsLargestWeight) {
  std::vector<float> rows(130 * 256, 0.5f);
  rows[127 * 256 + 255] = 448 * 8;
  std::vector<uint8_t> codes(rows.size()), scales(2);
  EncodeFp8Rows(rows.data(), 128, 256, codes.data(), scales.data());
  EXPECT_EQ(scales[0], 127 - 9);  // 0.5 / 448, up to a power of two
  EXPECT_EQ(scales[1], 127 + 3);
}

}  // namespace
}  // namespace lodestone
