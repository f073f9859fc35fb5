// Under a mixed load every series of every process moves, but for those that must not.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>
#include <thread>

#include "cli/http_client.h"
#include "monitoring/registry.h"
#include "tests/cluster/reconcile.h"
#include "tests/cluster/running_cluster.h"
#include "tests/cluster/streams.h"
#include "tests/testing/time_limits.h"

namespace lodestone {
namespace {

using std::chrono::steady_clock;

// A series that this load does not move, and why.
struct Still {
  std::string_view metric;
  std::string_view label;  // of the series; "": all of the metric
  std::string_view reason;
};

constexpr std::string_view kFact = "a fact, known from the start on";
constexpr std::string_view kNoFault = "counts faults, and there are none";
constexpr std::string_view kNoChange = "changes when a worker or a link comes or goes";
constexpr std::string_view kHeld = "memory that is held from the start to the end";
constexpr std::string_view kNotThisState = "the worker is ready all the time";

constexpr Still kStill[] = {
    {"lodestone_build_info", "", kFact},
    {"lodestone_config_info", "", kFact},
    {"lodestone_start_timestamp_seconds", "", kFact},
    {"lodestone_memory_pool_capacity_bytes", "", kFact},
    {"lodestone_memory_pool_used_bytes", "pool=\"weights\"", kHeld},
    {"lodestone_memory_pool_used_bytes", "pool=\"staging\"", kHeld},
    {"lodestone_memory_pool_used_bytes", "pool=\"transport\"", kHeld},
    {"lodestone_memory_pool_used_bytes", "pool=\"scratch\"", kHeld},
    {"lodestone_memory_pool_used_bytes", "pool=\"graphs\"", kHeld},
    {"lodestone_memory_pool_used_bytes", "format=\"none\"",
     "a kind that this model has no rows of"},
    {"lodestone_decode_waiting_requests", "stage=\"ready\"",
     "what is adopted runs in the next step"},
    {"lodestone_memory_orphan_bytes", "", "is 0 unless something leaks"},
    {"lodestone_worker_ready", "", kNoChange},
    {"lodestone_link_up", "", kNoChange},
    {"lodestone_readiness_probes_total", "", kNoChange},
    {"lodestone_worker_state_seconds", "state=\"loading\"", kNotThisState},
    {"lodestone_worker_state_seconds", "state=\"draining\"", kNotThisState},
    {"lodestone_worker_state_seconds", "state=\"unhealthy\"", kNotThisState},
    {"lodestone_request_replays_total", "", kNoFault},
    {"lodestone_kv_transfer_failures_total", "", kNoFault},
    {"lodestone_handoffs_total", "result=\"failed\"", kNoFault},
    {"lodestone_handoff_rows_total", "result=\"mismatch\"", kNoFault},
    {"lodestone_handoff_digests_total", "result=\"mismatch\"", kNoFault},
    {"lodestone_admission_rejections_total", "reason=\"no_capacity\"",
     "decode refuses only what the router places by a report that is out of date"},
    {"lodestone_admission_rejections_total", "reason=\"context_length_exceeded\"",
     "decode refuses only what the router lets through"},
};

// The values that each series of a cluster has had.
class SeriesWatch {
 public:
  explicit SeriesWatch(const RunningCluster& cluster) : members_(cluster.Members()) {}

  void Scrape() {
    for (const RunningMember& member : members_) {
      std::istringstream lines(MetricsPage(member.metrics_port));
      for (std::string line; std::getline(lines, line);) {
        const size_t end = line.rfind(' ');
        // Not every bucket of a histogram has a value of this load; its sum and count do.
        if (!line.starts_with("lodestone_") || line.find("_bucket{") != line.npos) continue;
        Note(member.name + ": " + line.substr(0, end), line.substr(end));
      }
    }
    first_ = false;
  }
  // Those that never had another value, and are not in the table.
  std::set<std::string> Constant() const {
    std::set<std::string> constant;
    for (const auto& [series, seen] : series_) {
      if (!seen.moved && !IsStill(series)) constant.insert(series);
    }
    return constant;
  }
  size_t size() const { return series_.size(); }

 private:
  struct Seen {
    std::string value;
    bool moved = false;
  };

  void Note(const std::string& series, const std::string& value) {
    const auto [seen, is_new] = series_.try_emplace(series, Seen{value, !first_});
    if (!is_new && seen->second.value != value) seen->second.moved = true;
  }
  static bool IsStill(const std::string& series) {
    return std::ranges::any_of(kStill, [&series](const Still& still) {
      const std::string metric = ": " + std::string(still.metric);
      return (series.ends_with(metric) || series.find(metric + "{") != series.npos) &&
             series.find(still.label) != series.npos;
    });
  }

  const std::vector<RunningMember> members_;
  std::map<std::string, Seen> series_;
  bool first_ = true;
};

TEST(MetricsTest, EverySeriesMovesUnderAMixedLoad) {
  auto cluster =
      RunningCluster::Start({"--max-context", "1024", "--max-sequences", "4", "--threads", "1",
                             "--prefill-flag=--max-sequences=2", "--router-flag=--queue-size=6"});
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  const std::vector<GenerateInput> inputs = RandomInputs({30, 200, 500}, 24, 5);
  ClusterFlags flags;
  flags.model = kNeedleTiny;
  flags.max_context = "1024";
  const auto expected = SingleProcessAnswers(flags, inputs);
  ASSERT_TRUE(expected.ok()) << expected.status();
  SeriesWatch watch(**cluster);
  watch.Scrape();
  // More clients than may wait; some leave early, some use fields that nobody knows.
  Streams streams((*cluster)->router_address(), 12, inputs, *expected, Streams::Errors::kAllowed);
  const GenerateClient client((*cluster)->router_address());
  const HttpClient http(*ParseHttpUrl((*cluster)->url()));
  const auto deadline = steady_clock::now() + std::chrono::seconds(30);
  for (int round = 0; !watch.Constant().empty() && steady_clock::now() < deadline; ++round) {
    watch.Scrape();
    if (round % 50 != 0) continue;
    client
        .Generate(inputs[0], std::chrono::seconds(10), [](const GeneratedToken&) { return false; })
        .IgnoreError();
    http.Post("/v1/completions", R"({"model":"needle-tiny","prompt":"a","max_tokens":1,"mood":1})",
              std::chrono::seconds(10))
        .IgnoreError();
  }
  EXPECT_EQ(watch.Constant(), std::set<std::string>{}) << "of " << watch.size() << " series";
  streams.End();
  const std::vector<std::string> problems = streams.problems();
  EXPECT_EQ(problems.size(), 0u) << problems.front();
  EXPECT_EQ(Reconcile(**cluster), "");
}

TEST(MetricsTest, WhatMayStandStillExists) {
  std::set<std::string_view> names;
  for (const MetricDef& def : MetricTable()) names.insert(def.name);
  for (const Still& still : kStill) {
    EXPECT_TRUE(names.contains(still.metric)) << still.metric;
    EXPECT_FALSE(still.reason.empty()) << still.metric;
  }
}

}  // namespace
}  // namespace lodestone
