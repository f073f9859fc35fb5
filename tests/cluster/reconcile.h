#pragma once

#include <chrono>
#include <string>

#include "tests/cluster/running_cluster.h"

namespace lodestone {

// The page of /metrics on a port of this machine; "" if nobody answers.
std::string MetricsPage(int port);
// The sum of all series of one metric, or of the one series that is named with its labels.
double MetricSum(const std::string& page, const std::string& name);

// What must be true of an idle cluster's metrics, whatever has happened to it: every request that
// started has ended for one reason, nothing is in flight, nothing is owned by nobody, and a scrape
// takes at most 50 ms. Waits up to `limit` for it; "" or what is wrong.
std::string Reconcile(const RunningCluster& cluster,
                      std::chrono::milliseconds limit = std::chrono::seconds(15));

}  // namespace lodestone
