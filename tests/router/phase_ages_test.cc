#include "router/phase_ages.h"

#include <optional>
#include <string>

#include "tests/router/router_fixture.h"

namespace lodestone {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(PhaseAgesTest, TheOldestOfEachPhaseCounts) {
  FakeClock clock;
  PhaseAges ages(&clock);
  EXPECT_EQ(ages.OldestSeconds(Phase::kQueue), 0);
  std::optional<PhaseAges::Stay> first(std::in_place, &ages, Phase::kQueue);
  clock.Advance(seconds(3));
  PhaseAges::Stay second(&ages, Phase::kQueue);
  clock.Advance(seconds(2));
  EXPECT_EQ(ages.OldestSeconds(Phase::kQueue), 5);
  first->MoveTo(Phase::kPrefill);
  EXPECT_EQ(ages.OldestSeconds(Phase::kQueue), 2);
  EXPECT_EQ(ages.OldestSeconds(Phase::kPrefill), 0);
  clock.Advance(seconds(1));
  EXPECT_EQ(ages.OldestSeconds(Phase::kPrefill), 1);
  first.reset();
  EXPECT_EQ(ages.OldestSeconds(Phase::kPrefill), 0);
  EXPECT_EQ(ages.OldestSeconds(Phase::kQueue), 3);
}

TEST(PhaseAgesTest, EqualEntriesLeaveOneByOne) {
  FakeClock clock;
  PhaseAges ages(&clock);
  std::optional<PhaseAges::Stay> first(std::in_place, &ages, Phase::kDecode);
  const PhaseAges::Stay second(&ages, Phase::kDecode);
  clock.Advance(seconds(1));
  first.reset();
  EXPECT_EQ(ages.OldestSeconds(Phase::kDecode), 1);
}

using PhaseAgeMetricsTest = RouterFixture;

std::string Series(const char* phase) {
  return "lodestone_oldest_request_seconds{phase=\"" + std::string(phase) + "\"}";
}

// A request that hangs is seen in the phase in which it hangs, and grows older there.
TEST_F(PhaseAgeMetricsTest, ARequestThatHangsShowsWhere) {
  script_.cache_capacity_bytes = 1000 + 256 * 4;
  StartRouter();
  StartWorkers("The secret code for the river is north-1234-stone.");
  prefills_[0]->SetRunPause(milliseconds(30'000));
  std::optional<HttpClient> running(http_);
  running->Send("POST", "/v1/chat/completions", ChatBody("\"max_tokens\":900"));
  ASSERT_TRUE(Eventually([&]() { return Metric(Series("prefill")) > 0.1; }));
  std::optional<HttpClient> waiting(http_);
  waiting->Send("POST", "/v1/chat/completions", ChatBody("\"max_tokens\":900"));
  ASSERT_TRUE(Eventually([&]() { return Metric(Series("queue")) > 0.1; }));
  EXPECT_GT(Metric(Series("prefill")), Metric(Series("queue")));
  EXPECT_EQ(Metric(Series("decode")), 0);
  waiting.reset();
  running.reset();
  ASSERT_TRUE(Eventually([&]() { return Metric(Series("prefill")) == 0; }));
  EXPECT_EQ(Metric(Series("queue")), 0);

  prefills_[0]->SetRunPause(milliseconds(0));
  decodes_[0]->SetTokenPause(milliseconds(300));
  HttpClient decoding(http_);
  decoding.Send("POST", "/v1/chat/completions", ChatBody("\"max_tokens\":100"));
  ASSERT_TRUE(Eventually([&]() { return Metric(Series("decode")) > 0.1; }));
  EXPECT_EQ(Metric(Series("prefill")), 0);
}

}  // namespace
}  // namespace lodestone
