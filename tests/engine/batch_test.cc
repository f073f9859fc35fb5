#include "engine/batch.h"

#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

namespace lodestone {
namespace {

TEST(StepBucketTest, SequencesArePowersOfTwoAndPagesOfFour) {
  EXPECT_EQ(BucketFor(1, 1, 16, 4096), (StepBucket{1, 1}));
  EXPECT_EQ(BucketFor(2, 2, 16, 4096), (StepBucket{2, 4}));
  EXPECT_EQ(BucketFor(5, 16, 16, 4096), (StepBucket{8, 16}));
  EXPECT_EQ(BucketFor(9, 17, 16, 4096), (StepBucket{16, 64}));
}

TEST(StepBucketTest, NeverBeyondWhatThereIs) {
  EXPECT_EQ(BucketFor(9, 17, 12, 40), (StepBucket{12, 40}));
  EXPECT_EQ(BucketFor(12, 40, 12, 40), (StepBucket{12, 40}));
}

// Every step fits its bucket, and there are few buckets.
TEST(StepBucketTest, FewBucketsHoldEveryStep) {
  std::vector<StepBucket> seen;
  for (int64_t seqs = 1; seqs <= 100; ++seqs) {
    for (int64_t columns = 1; columns <= 3000; columns += 3) {
      const StepBucket bucket = BucketFor(seqs, columns, 100, 3000);
      ASSERT_TRUE(bucket.num_seqs >= seqs && bucket.num_seqs <= 100);
      ASSERT_TRUE(bucket.num_columns >= columns && bucket.num_columns <= 3000);
      if (std::ranges::find(seen, bucket) == seen.end()) seen.push_back(bucket);
    }
  }
  EXPECT_EQ(seen.size(), 8 * 7);
}

}  // namespace
}  // namespace lodestone
