#include "decode/leases.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lodestone {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::IsEmpty;

constexpr StreamId kRouter = 1;
constexpr StreamId kOtherRouter = 2;
const LeaseId kA{7};
const LeaseId kB{8};

class LeaseTableTest : public testing::Test {
 protected:
  FakeClock clock_;
  LeaseTable table_{&clock_};
};

TEST_F(LeaseTableTest, DiesFiveSecondsAfterItWasLastNamed) {
  table_.Add(kA);
  clock_.Advance(kLeaseLifetime);
  EXPECT_THAT(table_.TakeExpired(), IsEmpty());
  table_.NameOnStream(kRouter, {{kA}});
  clock_.Advance(kLeaseLifetime);
  EXPECT_THAT(table_.TakeExpired(), IsEmpty());
  clock_.Advance(milliseconds(1));
  EXPECT_THAT(table_.TakeExpired(), ElementsAre(kA));
  EXPECT_FALSE(table_.IsLive(kA));
  EXPECT_THAT(table_.TakeExpired(), IsEmpty());
}

TEST_F(LeaseTableTest, DiesAtOnceWhenAStreamBreaksThatNamedIt) {
  table_.Add(kA);
  table_.Add(kB);
  table_.NameOnStream(kRouter, {{kA}});
  table_.NameOnStream(kOtherRouter, {{kB}});
  EXPECT_THAT(table_.TakeBroken(kRouter), ElementsAre(kA));
  EXPECT_TRUE(table_.IsLive(kB));
}

TEST_F(LeaseTableTest, NamingWithoutAStreamKeepsItAlive) {
  table_.Add(kA);
  clock_.Advance(kLeaseLifetime);
  table_.Name({{kA}});
  clock_.Advance(kLeaseLifetime);
  EXPECT_THAT(table_.TakeExpired(), IsEmpty());
  EXPECT_THAT(table_.TakeBroken(kRouter), IsEmpty());
  EXPECT_TRUE(table_.IsLive(kA));
}

TEST_F(LeaseTableTest, NamingAnUnknownLeaseDoesNotReviveIt) {
  table_.NameOnStream(kRouter, {{kA}});
  EXPECT_FALSE(table_.IsLive(kA));
  table_.Add(kA);
  EXPECT_TRUE(table_.Remove(kA));
  EXPECT_FALSE(table_.Remove(kA));
  table_.NameOnStream(kRouter, {{kA}});
  EXPECT_EQ(table_.size(), 0u);
}

}  // namespace
}  // namespace lodestone
