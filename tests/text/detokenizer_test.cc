#include "text/detokenizer.h"

#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/text/text_test_util.h"

namespace lodestone {
namespace {

using testing_text::Below;
using testing_text::BundledTokenizer;

std::string DecodeByPushes(const std::vector<int32_t>& ids, AddedTokenText added) {
  Detokenizer detokenizer(&BundledTokenizer(), added);
  std::string joined;
  for (const int32_t id : ids) {
    const std::string piece = detokenizer.Push(id);
    EXPECT_TRUE(ValidateUtf8(piece));
    joined += piece;
  }
  return joined + detokenizer.Finish();
}

TEST(DetokenizerTest, GivesBackEveryText) {
  std::mt19937 random(1);
  for (int round = 0; round < 2000; ++round) {
    const std::string text = ReplaceInvalidUtf8(testing_text::RandomBytes(random, 40));
    const std::vector<int32_t> ids = BundledTokenizer().EncodeText(text);
    ASSERT_EQ(DecodeByPushes(ids, AddedTokenText::kSkipSpecial), text);
  }
}

TEST(DetokenizerTest, PushesEqualWholeDecodeForAnyIds) {
  std::mt19937 random(2);
  for (int round = 0; round < 20000; ++round) {
    std::vector<int32_t> ids;
    for (uint32_t n = Below(random, 12); n > 0; --n) {
      // Mostly single bytes (ids 16 to 271), so that ill-formed sequences are common.
      ids.push_back(static_cast<int32_t>(Below(random, 4) == 0 ? Below(random, 1030)
                                                               : 16 + Below(random, 256)) -
                    (Below(random, 50) == 0 ? 2000 : 0));
    }
    for (const AddedTokenText added :
         {AddedTokenText::kSkipSpecial, AddedTokenText::kSkipAll, AddedTokenText::kKeep}) {
      ASSERT_EQ(DecodeByPushes(ids, added), Decode(BundledTokenizer(), ids, added));
    }
  }
}

TEST(DetokenizerTest, HoldsBackHalfACharacter) {
  const std::vector<int32_t> ids = BundledTokenizer().EncodeText("深");
  ASSERT_EQ(ids.size(), 3u);
  Detokenizer detokenizer(&BundledTokenizer());
  EXPECT_EQ(detokenizer.Push(ids[0]), "");
  EXPECT_EQ(detokenizer.Push(ids[1]), "");
  EXPECT_EQ(detokenizer.Push(ids[2]), "深");
  EXPECT_EQ(detokenizer.Finish(), "");
  EXPECT_EQ(detokenizer.Push(ids[0]), "");
  EXPECT_EQ(detokenizer.Finish(), "\uFFFD");
  EXPECT_EQ(detokenizer.Finish(), "");
}

TEST(DetokenizerTest, SkippedTokensDoNotCutACharacter) {
  std::vector<int32_t> ids = BundledTokenizer().EncodeText("深");
  ids.insert(ids.begin() + 1, 0);
  EXPECT_EQ(Decode(BundledTokenizer(), ids), "深");
  EXPECT_EQ(DecodeByPushes(ids, AddedTokenText::kSkipSpecial), "深");
}

TEST(DetokenizerTest, AddedTokensFollowTheOption) {
  const std::vector<int32_t> ids = {0, 3, 5};
  EXPECT_EQ(Decode(BundledTokenizer(), ids, AddedTokenText::kSkipSpecial), "<｜User｜><think>");
  EXPECT_EQ(Decode(BundledTokenizer(), ids, AddedTokenText::kSkipAll), "");
  EXPECT_EQ(Decode(BundledTokenizer(), ids, AddedTokenText::kKeep),
            "<｜begin▁of▁sentence｜><｜User｜><think>");
}

}  // namespace
}  // namespace lodestone
