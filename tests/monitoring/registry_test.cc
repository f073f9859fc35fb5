#include "monitoring/registry.h"

#include <algorithm>
#include <cctype>
#include <set>
#include <string>

#include <gtest/gtest.h>

namespace lodestone {
namespace {

bool IsSnakeCase(std::string_view name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return std::islower(c) || std::isdigit(c) || c == '_';
  });
}

class MetricDefTest : public testing::TestWithParam<MetricDef> {};

TEST_P(MetricDefTest, FollowsTheNamingRules) {
  const MetricDef& def = GetParam();
  EXPECT_TRUE(def.name.starts_with("lodestone_"));
  EXPECT_TRUE(IsSnakeCase(def.name));
  EXPECT_EQ(def.name.ends_with("_total"), def.type == MetricType::kCounter);
  for (std::string_view unit : {"_ms", "_milliseconds", "_mb", "_kb", "_percent"}) {
    EXPECT_FALSE(def.name.ends_with(unit)) << "not a base unit";
  }
}

TEST_P(MetricDefTest, HasHelpRolesAndBoundedLabels) {
  const MetricDef& def = GetParam();
  EXPECT_TRUE(def.help.ends_with("."));
  EXPECT_NE(def.roles & kRoleAll, 0);
  const std::set<std::string_view> labels(def.labels.begin(), def.labels.end());
  EXPECT_EQ(labels.size(), def.labels.size());
  for (std::string_view label : labels) {
    EXPECT_TRUE(IsSnakeCase(label));
    EXPECT_NE(label, "le");
    EXPECT_NE(label, "request_id") << "unbounded";
  }
}

TEST_P(MetricDefTest, BucketsAscendAndBelongToHistograms) {
  const MetricDef& def = GetParam();
  EXPECT_EQ(def.buckets.empty(), def.type != MetricType::kHistogram);
  EXPECT_TRUE(std::is_sorted(def.buckets.begin(), def.buckets.end(), std::less_equal<double>()));
}

INSTANTIATE_TEST_SUITE_P(Table, MetricDefTest,
                         testing::ValuesIn(MetricTable().begin(), MetricTable().end()),
                         [](const auto& metric) { return std::string(metric.param.name); });

TEST(MetricTableTest, NamesAreUniqueAndFoundById) {
  std::set<std::string_view> names;
  for (const MetricDef& def : MetricTable()) {
    EXPECT_TRUE(names.insert(def.name).second) << def.name;
    EXPECT_EQ(GetMetricDef(def.id).name, def.name);
  }
}

TEST(MetricTableTest, TimeToFirstTokenReachesMinutes) {
  EXPECT_GE(GetMetricDef(MetricId::kTimeToFirstToken).buckets.back(), 600);
}

}  // namespace
}  // namespace lodestone
