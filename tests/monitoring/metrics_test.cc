#include "monitoring/metrics.h"

#include <limits>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/logging.h"

namespace lodestone {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

TEST(MetricsTest, CountsPerLabelSet) {
  Metrics metrics(kRoleDecode);
  const CounterMetric ok =
      metrics.Counter(MetricId::kHandoffRows, {{"kind", "index_keys"}, {"result", "ok"}});
  ok.Increment(64);
  metrics.Counter(MetricId::kHandoffRows, {{"kind", "index_keys"}, {"result", "ok"}}).Increment();
  metrics.Counter(MetricId::kHandoffRows, {{"kind", "index_keys"}, {"result", "mismatch"}});
  EXPECT_EQ(ok.Value(), 65);
  const std::string text = metrics.RenderText();
  EXPECT_THAT(text,
              HasSubstr("lodestone_handoff_rows_total{kind=\"index_keys\",result=\"ok\"} 65"));
  EXPECT_THAT(text,
              HasSubstr("lodestone_handoff_rows_total{kind=\"index_keys\",result=\"mismatch\"} 0"));
}

TEST(MetricsTest, CountersNeverGoBack) {
  Metrics metrics(kRoleDecode);
  const CounterMetric tokens = metrics.Counter(MetricId::kGenerationTokens);
  tokens.Increment(5);
  tokens.Increment(-3);
  tokens.Increment(kNan);
  EXPECT_EQ(tokens.Value(), 5);
}

TEST(MetricsTest, GaugesMoveBothWaysAndIgnoreNan) {
  Metrics metrics(kRoleDecode);
  const GaugeMetric running = metrics.Gauge(MetricId::kDecodeRunningRequests);
  running.Set(4);
  running.Add(-1);
  running.Set(kNan);
  EXPECT_EQ(running.Value(), 3);
}

TEST(MetricsTest, HistogramsFillTheirBuckets) {
  Metrics metrics(kRoleRouter);
  const HistogramMetric ttft = metrics.Histogram(MetricId::kTimeToFirstToken);
  ttft.Observe(0.3);
  ttft.Observe(-1);
  ttft.Observe(kNan);
  const std::string text = metrics.RenderText();
  EXPECT_THAT(text, HasSubstr("lodestone_time_to_first_token_seconds_count 2"));
  EXPECT_THAT(text, HasSubstr("lodestone_time_to_first_token_seconds_sum 0.3"));
  EXPECT_THAT(text, HasSubstr("lodestone_time_to_first_token_seconds_bucket{le=\"0.25\"} 1"));
  EXPECT_THAT(text, HasSubstr("lodestone_time_to_first_token_seconds_bucket{le=\"0.5\"} 2"));
}

TEST(MetricsTest, MetricsWithoutLabelsExistFromTheStart) {
  const std::string text = Metrics(kRoleDecode).RenderText();
  for (const MetricDef& def : MetricTable()) {
    if (!def.labels.empty()) continue;
    const std::string type_line = "# TYPE " + std::string(def.name) + " ";
    if ((def.roles & kRoleDecode) != 0) {
      EXPECT_THAT(text, HasSubstr(type_line));
    } else {
      EXPECT_THAT(text, Not(HasSubstr(type_line)));
    }
  }
  EXPECT_THAT(text, HasSubstr("lodestone_build_info{"));
}

TEST(MetricsTest, ClientTextInLabelsStaysOneValidLine) {
  Metrics metrics(kRoleRouter);
  metrics.Counter(MetricId::kApiUnknownFields, {{"field", "a\"\n\xff" + std::string(500, 'x')}})
      .Increment();
  EXPECT_THAT(metrics.RenderText(),
              HasSubstr("{field=\"a\\\"??" + std::string(124, 'x') + "\"} 1\n"));
}

TEST(MetricsTest, TooManyLabelSetsEndUpInOther) {
  Metrics metrics(kRoleRouter);
  for (size_t i = 0; i < kMaxLabelSets + 5; ++i) {
    metrics.Counter(MetricId::kApiUnknownFields, {{"field", "f" + std::to_string(i)}}).Increment();
  }
  const std::string text = metrics.RenderText();
  EXPECT_THAT(text, HasSubstr("lodestone_api_unknown_fields_total{field=\"other\"} 5"));
  EXPECT_THAT(text, Not(HasSubstr("field=\"f" + std::to_string(kMaxLabelSets) + "\"")));
  // Known ones still count under their own name.
  metrics.Counter(MetricId::kApiUnknownFields, {{"field", "f0"}}).Increment();
  EXPECT_THAT(metrics.RenderText(), HasSubstr("{field=\"f0\"} 2"));
}

TEST(MetricsTest, RemovedGaugeIsGoneAndFreesItsPlace) {
  Metrics metrics(kRoleRouter);
  for (size_t i = 0; i < kMaxLabelSets + 5; ++i) {
    const GaugeMetric ready = metrics.Gauge(
        MetricId::kWorkerReady, {{"role", "decode"}, {"worker", "w" + std::to_string(i)}});
    ready.Set(1);
    metrics.Remove(ready);
  }
  EXPECT_THAT(metrics.RenderText(), Not(HasSubstr("lodestone_worker_ready{")));
}

TEST(MetricsTest, UpdatesRunBeforeEachScrape) {
  Metrics metrics(kRoleDecode);
  int scrapes = 0;
  metrics.OnScrape([&] { metrics.Gauge(MetricId::kMemoryFreeBytes).Set(++scrapes * 100); });
  EXPECT_THAT(metrics.RenderText(), HasSubstr("lodestone_memory_free_bytes 100"));
  EXPECT_THAT(metrics.RenderText(), HasSubstr("lodestone_memory_free_bytes 200"));
}

TEST(MetricsTest, ThreadsCountTogether) {
  Metrics metrics(kRoleDecode);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) metrics.Counter(MetricId::kGenerationTokens).Increment();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(metrics.Counter(MetricId::kGenerationTokens).Value(), 4000);
}

TEST(MetricsDeathTest, WrongUseIsAProgrammerError) {
  Metrics metrics(kRoleDecode);
  EXPECT_DEATH(metrics.Counter(MetricId::kHandoffRows), "labels of lodestone_handoff_rows_total");
  EXPECT_DEATH(metrics.Counter(MetricId::kHandoffRows, {{"kind", "x"}, {"reslt", "ok"}}),
               "needs the label result");
  EXPECT_DEATH(metrics.Gauge(MetricId::kGenerationTokens), "another type");
  EXPECT_DEATH(metrics.Counter(MetricId::kRequests, {{"code", "200"}, {"finish_reason", "stop"}}),
               "not a metric of decode");
}

}  // namespace
}  // namespace lodestone
