#include "base/ids.h"

#include <algorithm>
#include <set>
#include <sstream>
#include <type_traits>
#include <unordered_set>

#include <gtest/gtest.h>

namespace lodestone {
namespace {

static_assert(!std::is_convertible_v<int32_t, PageId>);
static_assert(!std::is_same_v<RequestId, InstanceId>);
static_assert(!std::is_constructible_v<LeaseId, SequenceId>);
static_assert(sizeof(PageId) == sizeof(int32_t) && std::is_trivially_copyable_v<PageId>);

TEST(RandomIdTest, SurvivesTextAndBack) {
  const RequestId id(0x0123456789abcdef, 0x00000000000000ff);
  EXPECT_EQ(id.ToString(), "0123456789abcdef00000000000000ff");
  EXPECT_EQ(RequestId::FromString("0123456789ABCDEF00000000000000FF"), id);
}

TEST(RandomIdTest, RefusesTextThatIsNot32HexDigits) {
  EXPECT_FALSE(RequestId::FromString("").has_value());
  EXPECT_FALSE(RequestId::FromString(std::string(31, 'a')).has_value());
  EXPECT_FALSE(RequestId::FromString(std::string(33, 'a')).has_value());
  EXPECT_FALSE(RequestId::FromString(std::string(31, 'a') + "g").has_value());
}

TEST(RandomIdTest, RandomOnesDiffer) {
  std::set<RequestId> ids;
  uint64_t ones = 0;
  for (int i = 0; i < 1000; ++i) {
    const RequestId id = RequestId::Random();
    EXPECT_FALSE(id.is_nil());
    ones |= id.high() & id.low();
    ids.insert(id);
  }
  EXPECT_EQ(ids.size(), 1000u);
  EXPECT_EQ(ones, ~uint64_t{0}) << "some bit is never set in both halves";
}

TEST(IntegerIdTest, ComparesHashesAndPrints) {
  EXPECT_LT(PageId(3), PageId(4));
  std::unordered_set<SequenceId> std_set = {SequenceId(1), SequenceId(2), SequenceId(1)};
  EXPECT_EQ(std_set.size(), 2u);
  std::unordered_set<RequestId> random_set = {RequestId(1, 2), RequestId(1, 2)};
  EXPECT_EQ(random_set.size(), 1u);
  std::ostringstream text;
  text << kNoPage << " " << SequenceId(7);
  EXPECT_EQ(text.str(), "-1 7");
}

TEST(LeaseIdTest, IsNeverNone) {
  std::set<LeaseId> leases;
  for (int i = 0; i < 1000; ++i) leases.insert(RandomLeaseId());
  EXPECT_EQ(leases.size(), 1000u);
  EXPECT_FALSE(leases.contains(kNoLease));
}

}  // namespace
}  // namespace lodestone
