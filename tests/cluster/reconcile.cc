#include "tests/cluster/reconcile.h"

#include <algorithm>
#include <sstream>
#include <thread>
#include <vector>

#include "cli/http_client.h"
#include "tests/testing/time_limits.h"

namespace lodestone {
namespace {

using std::chrono::steady_clock;

constexpr std::chrono::milliseconds kScrapeTime{50};

const std::vector<std::string>& IdleGauges() {
  static const std::vector<std::string> gauges = {
      "lodestone_router_queue_depth",     "lodestone_router_running_requests",
      "lodestone_router_open_streams",    "lodestone_prefill_queue_depth",
      "lodestone_prefill_queued_tokens",  "lodestone_prefill_running_requests",
      "lodestone_prefill_inflight_handoffs", "lodestone_decode_running_requests",
      "lodestone_decode_waiting_requests", "lodestone_leases",
      "lodestone_memory_reserved_bytes",  "lodestone_memory_orphan_bytes"};
  return gauges;
}

std::string CheckMember(const RunningMember& member) {
  // The best of three: other processes of the machine are not what is measured.
  const double limit = std::chrono::duration<double>(Allowed(kScrapeTime)).count();
  double seconds = limit + 1;
  std::string page;
  for (int i = 0; i < 3 && seconds > limit; ++i) {
    const auto start = steady_clock::now();
    page = MetricsPage(member.metrics_port);
    seconds = std::min(seconds, std::chrono::duration<double>(steady_clock::now() - start).count());
  }
  if (page.empty()) return member.name + " serves no metrics; ";
  std::string problems;
  for (const std::string& gauge : IdleGauges()) {
    const double value = MetricSum(page, gauge);
    if (value != 0) problems += member.name + ": " + gauge + " is " + std::to_string(value) + "; ";
  }
  const double started = MetricSum(page, "lodestone_requests_started_total");
  const double ended = MetricSum(page, "lodestone_requests_total");
  if (started != ended) {
    problems += member.name + ": " + std::to_string(started) + " requests started, " +
                std::to_string(ended) + " ended; ";
  }
  if (seconds > limit) {
    problems += member.name + ": a scrape takes " + std::to_string(seconds) + " s; ";
  }
  return problems;
}

}  // namespace

std::string MetricsPage(int port) {
  const HttpClient http(HttpUrl{.host = "127.0.0.1", .port = std::to_string(port), .prefix = ""});
  const auto reply = http.Get("/metrics", std::chrono::seconds(2));
  return reply.ok() && reply->status == 200 ? reply->body : "";
}

double MetricSum(const std::string& page, const std::string& name) {
  double sum = 0;
  std::istringstream lines(page);
  for (std::string line; std::getline(lines, line);) {
    const bool matches = line.starts_with(name + " ") || line.starts_with(name + "{");
    if (matches) sum += std::stod(line.substr(line.rfind(' ')));
  }
  return sum;
}

std::string Reconcile(const RunningCluster& cluster, std::chrono::milliseconds limit) {
  const auto deadline = steady_clock::now() + Allowed(limit);
  std::string problems;
  do {
    problems.clear();
    for (const RunningMember& member : cluster.Members()) problems += CheckMember(member);
    if (problems.empty()) return problems;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  } while (steady_clock::now() < deadline);
  return problems;
}

}  // namespace lodestone
