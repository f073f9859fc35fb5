#include "kernels/numeric/row_codec.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace lodestone {
namespace {

constexpr int64_t kDims = 512;
constexpr int64_t kRopeDims = 64;
constexpr int64_t kKeyDims = 128;

std::vector<float> RandomRow(int64_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, 3.0f);
  std::vector<float> row(n);
  for (float& x : row) x = RoundToBf16(normal(random));
  return row;
}

// A row in a buffer with guard bytes behind both parts.
struct StoredRow {
  explicit StoredRow(RowBytes bytes)
      : payload(bytes.payload + 1, std::byte{0xab}), scale(bytes.scale + 1, std::byte{0xab}) {}
  bool guards_intact() const {
    return payload.back() == std::byte{0xab} && scale.back() == std::byte{0xab};
  }
  std::vector<std::byte> payload;
  std::vector<std::byte> scale;
};

std::vector<float> ThroughLatentStore(KvFormat format, const std::vector<float>& row) {
  StoredRow stored(LatentRowBytes(format, kDims, kRopeDims));
  EncodeLatentRow(format, row.data(), kDims, kRopeDims, stored.payload.data(), stored.scale.data());
  EXPECT_TRUE(stored.guards_intact());
  std::vector<float> out(kDims);
  DecodeLatentRow(format, stored.payload.data(), stored.scale.data(), kDims, kRopeDims, out.data());
  return out;
}

std::vector<float> ThroughKeyStore(IndexKeyFormat format, const std::vector<float>& row) {
  StoredRow stored(IndexKeyRowBytes(format, kKeyDims));
  EncodeIndexKeyRow(format, row.data(), kKeyDims, stored.payload.data(), stored.scale.data());
  EXPECT_TRUE(stored.guards_intact());
  std::vector<float> out(kKeyDims);
  const float factor =
      DecodeIndexKeyRow(format, stored.payload.data(), stored.scale.data(), kKeyDims, out.data());
  for (float& x : out) x *= factor;
  return out;
}

TEST(RowCodecTest, WideFormatsKeepEveryBit) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    const std::vector<float> latent = RandomRow(kDims, seed);
    EXPECT_EQ(ThroughLatentStore(KvFormat::kBf16, latent), latent);
    EXPECT_EQ(ThroughLatentStore(KvFormat::kF32, latent), latent);
    const std::vector<float> key = RandomRow(kKeyDims, seed);
    EXPECT_EQ(ThroughKeyStore(IndexKeyFormat::kBf16, key), key);
    EXPECT_EQ(ThroughKeyStore(IndexKeyFormat::kF32, key), key);
  }
}

TEST(RowCodecTest, Fp8LatentsAreLosslessForRoundedRows) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    std::vector<float> row = RandomRow(kDims, seed);
    for (int64_t first = 0; first < kDims - kRopeDims; first += kFp8KvGroup) {
      RoundFp8Group(row.data() + first, kFp8KvGroup);
    }
    ASSERT_EQ(ThroughLatentStore(KvFormat::kFp8, row), row);
  }
}

TEST(RowCodecTest, Fp8LatentRowIs584BytesWithZeroPadding) {
  const RowBytes bytes = LatentRowBytes(KvFormat::kFp8, kDims, kRopeDims);
  EXPECT_EQ(bytes.payload, 576);
  EXPECT_EQ(bytes.scale, 8);
  StoredRow stored(bytes);
  std::vector<float> row(kDims, 1.0f);
  row[kDims - kRopeDims] = -2.0f;
  EncodeLatentRow(KvFormat::kFp8, row.data(), kDims, kRopeDims, stored.payload.data(),
                  stored.scale.data());
  // 1 / 448 needs the scale 2^-8; 1 / 2^-8 = 256 has the e4m3 code 0x78. -2 is bf16 0xc000.
  EXPECT_EQ(stored.payload[0], std::byte{0x78});
  EXPECT_EQ(stored.payload[447], std::byte{0x78});
  EXPECT_EQ(stored.payload[448], std::byte{0x00});
  EXPECT_EQ(stored.payload[449], std::byte{0xc0});
  EXPECT_EQ(stored.scale[6], std::byte{119});
  EXPECT_EQ(stored.scale[7], std::byte{0});
}

TEST(RowCodecTest, Fp4KeysAreLosslessForRoundedRows) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    std::vector<float> row = RandomRow(kKeyDims, seed);
    for (int64_t first = 0; first < kKeyDims; first += kFp4Group) {
      RoundFp4Group(row.data() + first, kFp4Group);
    }
    ASSERT_EQ(ThroughKeyStore(IndexKeyFormat::kFp4, row), row);
  }
}

TEST(RowCodecTest, Fp4StoresTheEvenElementInTheLowNibble) {
  StoredRow stored(IndexKeyRowBytes(IndexKeyFormat::kFp4, kKeyDims));
  std::vector<float> row(kKeyDims, 0.0f);
  row[0] = 6.0f;
  row[1] = -0.5f;
  EncodeIndexKeyRow(IndexKeyFormat::kFp4, row.data(), kKeyDims, stored.payload.data(),
                    stored.scale.data());
  EXPECT_EQ(stored.payload[0], std::byte{0x97});
  EXPECT_EQ(stored.scale[0], std::byte{127});
}

TEST(RowCodecTest, Fp8KeysStayWithinHalfAStepOfTheRow) {
  for (uint32_t seed = 0; seed < 50; ++seed) {
    const std::vector<float> row = RandomRow(kKeyDims, seed);
    const float amax = MaxMagnitude(row.data(), kKeyDims);
    const std::vector<float> out = ThroughKeyStore(IndexKeyFormat::kFp8, row);
    EXPECT_NEAR(MaxMagnitude(out.data(), kKeyDims), amax, amax * 1e-6f);
    for (int64_t i = 0; i < kKeyDims; ++i) {
      const float half_step = std::max(std::fabs(row[i]) / 16, amax / 448 * 0x1p-10f);
      EXPECT_NEAR(out[i], row[i], half_step * 1.0001f);
    }
  }
  const std::vector<float> zeros(kKeyDims, 0.0f);
  EXPECT_EQ(ThroughKeyStore(IndexKeyFormat::kFp8, zeros), zeros);
}

}  // namespace
}  // namespace lodestone
