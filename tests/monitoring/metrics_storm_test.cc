#include <atomic>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "monitoring/metrics.h"

namespace lodestone {
namespace {

constexpr double kHostile[] = {-1,
                               0,
                               -0.0,
                               1e308,
                               -1e308,
                               std::numeric_limits<double>::denorm_min(),
                               std::numeric_limits<double>::quiet_NaN(),
                               std::numeric_limits<double>::infinity(),
                               -std::numeric_limits<double>::infinity(),
                               -3};

std::string HostileText(std::mt19937& random) {
  std::string text;
  for (uint32_t n = random() % 200; n > 0; --n) text += static_cast<char>(random() % 256);
  return text;
}

// Numbers and texts as wrong bookkeeping and clients make them, from several threads while others
// scrape: no call throws, and a counter that was fine stays so.
TEST(MetricsStormTest, NothingThrowsIntoTheDataPath) {
  Metrics metrics(kRoleRouter);
  std::atomic<bool> end{false};
  std::thread scraper([&] {
    while (!end) EXPECT_NO_THROW(metrics.RenderText());
  });
  std::vector<std::thread> threads;
  for (uint32_t seed = 0; seed < 3; ++seed) {
    threads.emplace_back([&, seed] {
      std::mt19937 random(seed);
      EXPECT_NO_THROW({
        for (int i = 0; i < 3000; ++i) {
          const double value = kHostile[random() % std::size(kHostile)];
          metrics.Gauge(MetricId::kRouterRunningRequests).Add(value);
          metrics.Gauge(MetricId::kRouterQueueDepth).Set(value);
          metrics.Histogram(MetricId::kTimeToFirstToken).Observe(value);
          metrics.Counter(MetricId::kPromptTokens).Increment(-std::fabs(value));
          metrics.Counter(MetricId::kGenerationTokens).Increment(1);
          metrics.Counter(MetricId::kApiUnknownFields, {{"field", HostileText(random)}})
              .Increment();
        }
      });
    });
  }
  for (std::thread& thread : threads) thread.join();
  end = true;
  scraper.join();
  EXPECT_EQ(metrics.Counter(MetricId::kGenerationTokens).Value(), 9000);
  EXPECT_EQ(metrics.Counter(MetricId::kPromptTokens).Value(), 0);
}

// A gauge that is set once more after nonsense is right again.
TEST(MetricsStormTest, AGaugeRecoversFromNonsense) {
  Metrics metrics(kRoleDecode);
  const GaugeMetric gauge = metrics.Gauge(MetricId::kDecodeRunningRequests);
  for (double value : kHostile) gauge.Add(value);
  gauge.Set(2);
  gauge.Add(-1);
  EXPECT_EQ(gauge.Value(), 1);
}

}  // namespace
}  // namespace lodestone
