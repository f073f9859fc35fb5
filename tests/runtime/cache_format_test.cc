#include "runtime/cache_format.h"

#include <gtest/gtest.h>

namespace lodestone {
namespace {

TEST(CacheFormatTest, RowSizesOfTheLargeModels) {
  EXPECT_EQ(IndexKeyRowBytes(IndexKeyFormat::kBf16, 128), (RowBytes{256, 0}));
  EXPECT_EQ(IndexKeyRowBytes(IndexKeyFormat::kFp8, 128), (RowBytes{128, 4}));
  EXPECT_EQ(IndexKeyRowBytes(IndexKeyFormat::kFp4, 128), (RowBytes{64, 4}));
  EXPECT_EQ(IndexKeyRowBytes(IndexKeyFormat::kF32, 128), (RowBytes{512, 0}));
  EXPECT_EQ(LatentRowBytes(KvFormat::kBf16, 512, 64), (RowBytes{1024, 0}));
  EXPECT_EQ(LatentRowBytes(KvFormat::kFp8, 512, 64), (RowBytes{576, 8}));
  EXPECT_EQ(LatentRowBytes(KvFormat::kF32, 512, 64), (RowBytes{2048, 0}));
}

TEST(CacheFormatTest, LatentScalesArePaddedToEightBytes) {
  EXPECT_EQ(LatentRowBytes(KvFormat::kFp8, 128, 64).scale, 8);
  EXPECT_EQ(LatentRowBytes(KvFormat::kFp8, 64 + 9 * 64, 64).scale, 16);
}

TEST(CacheFormatTest, NamesParseBackAndNothingElseDoes) {
  for (IndexKeyFormat format :
       {IndexKeyFormat::kBf16, IndexKeyFormat::kFp8, IndexKeyFormat::kFp4, IndexKeyFormat::kF32}) {
    EXPECT_EQ(ParseIndexKeyFormat(Name(format)), format);
  }
  for (KvFormat format : {KvFormat::kBf16, KvFormat::kFp8, KvFormat::kF32}) {
    EXPECT_EQ(ParseKvFormat(Name(format)), format);
  }
  for (Numerics numerics : {Numerics::kReference, Numerics::kPlain, Numerics::kExact}) {
    EXPECT_EQ(ParseNumerics(Name(numerics)), numerics);
  }
  EXPECT_EQ(ParseKvFormat("fp4"), std::nullopt);
  EXPECT_EQ(ParseIndexKeyFormat("BF16"), std::nullopt);
  EXPECT_EQ(ParseIndexKeyFormat(""), std::nullopt);
  EXPECT_EQ(ParseNumerics("auto"), std::nullopt);
}

TEST(CacheFormatTest, RoundingFollowsNumericsAndFormat) {
  EXPECT_TRUE(RoundsLatentsToFp8(Numerics::kReference, KvFormat::kBf16));
  EXPECT_TRUE(RoundsLatentsToFp8(Numerics::kPlain, KvFormat::kFp8));
  EXPECT_FALSE(RoundsLatentsToFp8(Numerics::kPlain, KvFormat::kBf16));
  EXPECT_EQ(IndexRoundingOf(Numerics::kReference, IndexKeyFormat::kBf16), IndexRounding::kFp4);
  EXPECT_EQ(IndexRoundingOf(Numerics::kReference, IndexKeyFormat::kFp8), IndexRounding::kFp8);
  EXPECT_EQ(IndexRoundingOf(Numerics::kPlain, IndexKeyFormat::kFp4), IndexRounding::kFp4);
  EXPECT_EQ(IndexRoundingOf(Numerics::kPlain, IndexKeyFormat::kBf16), IndexRounding::kNone);
  EXPECT_EQ(IndexRoundingOf(Numerics::kExact, IndexKeyFormat::kF32), IndexRounding::kNone);
}

}  // namespace
}  // namespace lodestone
