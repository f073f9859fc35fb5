// The metrics of one process: typed handles over prometheus-cpp, made from monitoring/registry.h.
//
//   Metrics metrics(kRoleDecode);
//   CounterMetric rows = metrics.Counter(MetricId::kHandoffRows, {{"kind", "index_keys"},
//                                                                  {"result", "ok"}});
//   rows.Increment(64);  // keep the handle: an increment costs about 16 ns, the look-up more
//
// Nothing here fails into the data path: an update that makes no sense (a counter going backwards,
// NaN) is dropped and logged. Asking for a metric with other labels than its definition, of another
// type or of another role is a programmer error and fails a CHECK.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "monitoring/registry.h"

namespace prometheus {
class Collectable;
class Counter;
class Gauge;
class Histogram;
}  // namespace prometheus

namespace lodestone {

// Handles are copyable, thread-safe, and valid as long as their Metrics.
class CounterMetric {
 public:
  void Increment(double amount = 1) const;
  double Value() const;

 private:
  friend class Metrics;
  CounterMetric(MetricId id, prometheus::Counter* counter) : id_(id), counter_(counter) {}
  MetricId id_;
  prometheus::Counter* counter_;
};

class GaugeMetric {
 public:
  void Set(double value) const;
  void Add(double amount) const;  // may be negative
  double Value() const;

 private:
  friend class Metrics;
  GaugeMetric(MetricId id, prometheus::Gauge* gauge) : id_(id), gauge_(gauge) {}
  MetricId id_;
  prometheus::Gauge* gauge_;
};

class HistogramMetric {
 public:
  void Observe(double value) const;  // negative values count as 0

 private:
  friend class Metrics;
  HistogramMetric(MetricId id, prometheus::Histogram* histogram) : id_(id), histogram_(histogram) {}
  MetricId id_;
  prometheus::Histogram* histogram_;
};

using MetricLabels = std::map<std::string, std::string>;

// Label values beyond this many combinations of one metric are counted under "other".
inline constexpr size_t kMaxLabelSets = 1000;

// Thread-safe.
class Metrics {
 public:
  // Metrics of `role` without labels exist from the start, with value 0. Sets lodestone_build_info.
  explicit Metrics(MetricRole role);
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  // The same labels give the same time series. A new one starts at 0.
  CounterMetric Counter(MetricId id, const MetricLabels& labels = {});
  GaugeMetric Gauge(MetricId id, const MetricLabels& labels = {});
  HistogramMetric Histogram(MetricId id, const MetricLabels& labels = {});

  // Ends a time series, such as the gauge of a worker that has left. All handles to it are invalid
  // from then on.
  void Remove(GaugeMetric gauge);

  // Runs `update` before every scrape, on the scraping thread: for gauges that mirror a plain
  // struct. It must be quick and must stay callable as long as this object lives.
  void OnScrape(std::function<void()> update);

  // All metrics in the Prometheus text format (version 0.0.4).
  std::string RenderText() const;

  // For MetricsExposer.
  std::weak_ptr<prometheus::Collectable> collectable() const;

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

// The Content-Type of RenderText().
inline constexpr char kMetricsContentType[] = "text/plain; version=0.0.4; charset=utf-8";

}  // namespace lodestone
