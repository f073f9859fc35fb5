#include "monitoring/metrics.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <set>
#include <utility>
#include <vector>

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include "base/build_info.h"
#include "base/logging.h"
#include "base/mutex.h"

namespace lodestone {
namespace {

constexpr char kOther[] = "other";

std::string_view RoleName(MetricRole role) {
  switch (role) {
    case kRoleRouter:
      return "router";
    case kRolePrefill:
      return "prefill";
    case kRoleDecode:
      return "decode";
    default:
      return "all";
  }
}

// Label values may come from clients; the text format wants valid UTF-8, so only ASCII passes.
std::string CleanLabelValue(std::string value) {
  constexpr size_t kLongest = 128;
  value.resize(std::min(value.size(), kLongest));
  for (char& c : value) {
    if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) >= 0x7F) c = '?';
  }
  return value;
}

void CheckLabelNames(const MetricDef& def, const MetricLabels& labels) {
  CHECK_EQ(labels.size(), def.labels.size()) << "labels of " << def.name;
  for (std::string_view name : def.labels) {
    CHECK(labels.contains(std::string(name))) << def.name << " needs the label " << name;
  }
}

bool IsUsable(MetricId id, double value) {
  if (!std::isnan(value)) return true;
  LOG_EVERY_SECONDS(ERROR, 10) << "an update of " << GetMetricDef(id).name << " is not a number";
  return false;
}

}  // namespace

void CounterMetric::Increment(double amount) const {
  if (!IsUsable(id_, amount)) return;
  if (amount < 0) {
    LOG_EVERY_SECONDS(ERROR, 10) << "counter " << GetMetricDef(id_).name << " cannot go back by "
                                 << -amount;
    return;
  }
  counter_->Increment(amount);
}

double CounterMetric::Value() const { return counter_->Value(); }

void GaugeMetric::Set(double value) const {
  if (IsUsable(id_, value)) gauge_->Set(value);
}

void GaugeMetric::Add(double amount) const {
  if (IsUsable(id_, amount)) gauge_->Increment(amount);
}

double GaugeMetric::Value() const { return gauge_->Value(); }

void HistogramMetric::Observe(double value) const {
  if (IsUsable(id_, value)) histogram_->Observe(std::max(value, 0.0));
}

// What a scrape collects: first the updates, then the registry.
class Metrics::Impl final : public prometheus::Collectable {
 public:
  explicit Impl(MetricRole role) : role_(role) {}

  std::vector<prometheus::MetricFamily> Collect() const override {
    {
      MutexLock lock(&updates_mutex_);
      for (const std::function<void()>& update : updates_) update();
    }
    return registry_.Collect();
  }

  void AddUpdate(std::function<void()> update) {
    MutexLock lock(&updates_mutex_);
    updates_.push_back(std::move(update));
  }

  // None runs any more when this returns, even if a scrape still holds this object.
  void ClearUpdates() {
    MutexLock lock(&updates_mutex_);
    updates_.clear();
  }

  prometheus::Counter* Counter(MetricId id, const MetricLabels& labels) {
    MutexLock lock(&mutex_);
    const MetricLabels bounded = CheckedLabels(id, MetricType::kCounter, labels);
    return &GetFamily(id, prometheus::BuildCounter(), &counters_)->Add(bounded);
  }

  prometheus::Gauge* Gauge(MetricId id, const MetricLabels& labels) {
    MutexLock lock(&mutex_);
    const MetricLabels bounded = CheckedLabels(id, MetricType::kGauge, labels);
    prometheus::Gauge* const gauge =
        &GetFamily(id, prometheus::BuildGauge(), &gauges_)->Add(bounded);
    gauge_labels_[gauge] = bounded;
    return gauge;
  }

  prometheus::Histogram* Histogram(MetricId id, const MetricLabels& labels) {
    MutexLock lock(&mutex_);
    const MetricLabels bounded = CheckedLabels(id, MetricType::kHistogram, labels);
    const std::span<const double> edges = GetMetricDef(id).buckets;
    return &GetFamily(id, prometheus::BuildHistogram(), &histograms_)
                ->Add(bounded, prometheus::Histogram::BucketBoundaries(edges.begin(), edges.end()));
  }

  void Remove(MetricId id, prometheus::Gauge* gauge) {
    MutexLock lock(&mutex_);
    const auto found = gauge_labels_.find(gauge);
    if (found == gauge_labels_.end()) return;
    label_sets_[id].erase(found->second);
    gauge_labels_.erase(found);
    gauges_.at(id)->Remove(gauge);
  }

 private:
  // The labels to use: as given, or all "other" once the metric has too many combinations.
  MetricLabels CheckedLabels(MetricId id, MetricType type, const MetricLabels& labels)
      REQUIRES(mutex_) {
    const MetricDef& def = GetMetricDef(id);
    CHECK(def.type == type) << def.name << " has another type";
    CHECK((def.roles & role_) != 0) << def.name << " is not a metric of " << RoleName(role_);
    CheckLabelNames(def, labels);
    MetricLabels clean;
    for (const auto& [name, value] : labels) clean[name] = CleanLabelValue(value);
    std::set<MetricLabels>& known = label_sets_[id];
    if (known.contains(clean)) return clean;
    if (known.size() >= kMaxLabelSets) {
      LOG_EVERY_SECONDS(WARNING, 60)
          << def.name << " has more than " << kMaxLabelSets
          << " label combinations, counting new ones as '" << kOther << "'";
      for (auto& [name, value] : clean) value = kOther;
      return clean;
    }
    known.insert(clean);
    return clean;
  }

  template <typename Builder, typename Families>
  typename Families::mapped_type GetFamily(MetricId id, Builder builder, Families* families)
      REQUIRES(mutex_) {
    typename Families::mapped_type& family = (*families)[id];
    if (family == nullptr) {
      const MetricDef& def = GetMetricDef(id);
      family = &builder.Name(std::string(def.name)).Help(std::string(def.help)).Register(registry_);
    }
    return family;
  }

  const MetricRole role_;
  prometheus::Registry registry_;
  mutable Mutex updates_mutex_;  // taken before mutex_: an update may ask for a metric
  Mutex mutex_;
  std::map<MetricId, prometheus::Family<prometheus::Counter>*> counters_ GUARDED_BY(mutex_);
  std::map<MetricId, prometheus::Family<prometheus::Gauge>*> gauges_ GUARDED_BY(mutex_);
  std::map<MetricId, prometheus::Family<prometheus::Histogram>*> histograms_ GUARDED_BY(mutex_);
  std::map<MetricId, std::set<MetricLabels>> label_sets_ GUARDED_BY(mutex_);
  std::map<prometheus::Gauge*, MetricLabels> gauge_labels_ GUARDED_BY(mutex_);
  std::vector<std::function<void()>> updates_ GUARDED_BY(updates_mutex_);
};

Metrics::Metrics(MetricRole role) : impl_(std::make_shared<Impl>(role)) {
  for (const MetricDef& def : MetricTable()) {
    if ((def.roles & role) == 0 || !def.labels.empty()) continue;
    switch (def.type) {
      case MetricType::kCounter:
        impl_->Counter(def.id, {});
        break;
      case MetricType::kGauge:
        impl_->Gauge(def.id, {});
        break;
      case MetricType::kHistogram:
        impl_->Histogram(def.id, {});
        break;
    }
  }
  const std::string role_name(RoleName(role));
  Gauge(MetricId::kBuildInfo, {{"version", std::string(BuildVersion())},
                               {"role", role_name},
                               {"compiler", std::string(BuildCompiler())},
                               {"build_type", std::string(BuildType())}})
      .Set(1);
  const std::chrono::duration<double> start = std::chrono::system_clock::now().time_since_epoch();
  Gauge(MetricId::kStartTime, {{"role", role_name}}).Set(start.count());
}

Metrics::~Metrics() { impl_->ClearUpdates(); }

CounterMetric Metrics::Counter(MetricId id, const MetricLabels& labels) {
  return CounterMetric(id, impl_->Counter(id, labels));
}

GaugeMetric Metrics::Gauge(MetricId id, const MetricLabels& labels) {
  return GaugeMetric(id, impl_->Gauge(id, labels));
}

HistogramMetric Metrics::Histogram(MetricId id, const MetricLabels& labels) {
  return HistogramMetric(id, impl_->Histogram(id, labels));
}

void Metrics::Remove(GaugeMetric gauge) { impl_->Remove(gauge.id_, gauge.gauge_); }

void Metrics::OnScrape(std::function<void()> update) { impl_->AddUpdate(std::move(update)); }

std::string Metrics::RenderText() const {
  return prometheus::TextSerializer().Serialize(impl_->Collect());
}

std::weak_ptr<prometheus::Collectable> Metrics::collectable() const { return impl_; }

}  // namespace lodestone
