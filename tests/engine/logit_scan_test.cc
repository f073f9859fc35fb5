#include "engine/logit_scan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <vector>

namespace lodestone {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<float> Values(size_t count) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = static_cast<float>(i * 7919 % 101) - 50;
  return values;
}

TEST(LogitScanTest, FindsTheFirstOfTheLargestWhereverItIs) {
  for (const size_t count : {1, 15, 16, 17, 1024, 1025, 3000}) {
    std::vector<float> values = Values(count);
    EXPECT_EQ(IndexOfLargest(values),
              static_cast<size_t>(std::ranges::max_element(values) - values.begin()));
    for (size_t place = 0; place < count; place += 1 + count / 40) {
      values = Values(count);
      values[place] = values.back() = 1000;
      EXPECT_EQ(IndexOfLargest(values), place) << count;
    }
  }
  EXPECT_EQ(IndexOfLargest(std::vector<float>(40, -kInfinity)), 0u);
}

TEST(LogitScanTest, SeesEveryValueThatIsNotFinite) {
  for (const size_t count : {1, 16, 17, 100}) {
    EXPECT_TRUE(AllFinite(Values(count)));
    for (const float bad : {kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
      for (size_t place = 0; place < count; ++place) {
        std::vector<float> values = Values(count);
        values[place] = bad;
        EXPECT_FALSE(AllFinite(values)) << bad << " at " << place << " of " << count;
      }
    }
  }
  EXPECT_TRUE(AllFinite(std::vector<float>{std::numeric_limits<float>::max(), -0.0f}));
}

}  // namespace
}  // namespace lodestone
