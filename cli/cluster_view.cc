#include "cli/cluster_view.h"

#include <algorithm>
#include <boost/json.hpp>
#include <cstdlib>
#include <exception>
#include <string_view>
#include <tuple>

#include "base/status_macros.h"
#include "cli/worker_admin.h"

namespace lodestone {
namespace {

namespace json = boost::json;

std::string Text(const json::object& object, const char* name) {
  const json::value* value = object.if_contains(name);
  return value != nullptr && value->is_string() ? std::string(value->get_string().c_str()) : "";
}

ClusterView ToView(const json::object& body) {
  ClusterView view;
  view.ready = body.at("ready").as_bool();
  for (const json::value& reason : body.at("reasons").as_array()) {
    view.reasons.emplace_back(reason.as_string().c_str());
  }
  for (const json::value& entry : body.at("workers").as_array()) {
    const json::object& worker = entry.as_object();
    view.workers.push_back({.role = Text(worker, "role"),
                            .instance_id = Text(worker, "instance_id"),
                            .address = Text(worker, "address"),
                            .state = Text(worker, "state"),
                            .reason = Text(worker, "reason")});
  }
  // The router has them in the order of their coming, which is another one after each restart.
  std::ranges::sort(view.workers, [](const WorkerView& a, const WorkerView& b) {
    return std::tuple(a.role == "decode", std::string_view(a.address)) <
           std::tuple(b.role == "decode", std::string_view(b.address));
  });
  for (const json::value& entry : body.at("refused").as_array()) {
    const json::object& worker = entry.as_object();
    view.refused.push_back({.role = Text(worker, "role"),
                            .instance_id = Text(worker, "instance_id"),
                            .address = Text(worker, "address"),
                            .reason = Text(worker, "reason")});
  }
  return view;
}

}  // namespace

absl::StatusOr<ClusterView> ParseReadyz(std::string_view body) {
  try {
    return ToView(json::parse(body).as_object());
  } catch (const std::exception& error) {
    return absl::InvalidArgumentError("/readyz is not that of a lodestone router: " +
                                      std::string(body.substr(0, 200)));
  }
}

double MetricValue(std::string_view page, std::string_view series) {
  const std::string line = "\n" + std::string(series) + " ";
  const size_t at = page.find(line);
  return at == page.npos ? 0 : std::atof(std::string(page.substr(at + line.size(), 32)).c_str());
}

absl::StatusOr<ClusterView> ReadRouter(const HttpClient& http, std::chrono::milliseconds timeout) {
  ASSIGN_OR_RETURN(const HttpReply ready, http.Get("/readyz", timeout));
  ASSIGN_OR_RETURN(ClusterView view, ParseReadyz(ready.body));
  ASSIGN_OR_RETURN(const HttpReply metrics, http.Get("/metrics", timeout));
  const auto count = [&](std::string_view series) {
    return static_cast<int64_t>(MetricValue(metrics.body, series));
  };
  view.running = count("lodestone_router_running_requests");
  view.queued = count("lodestone_router_queue_depth");
  view.streams = count("lodestone_router_open_streams");
  return view;
}

void AskWorkers(ClusterView* view, std::chrono::milliseconds timeout) {
  for (WorkerView& worker : view->workers) {
    if (worker.address.empty()) continue;
    const absl::StatusOr<v1::GetStatusReply> status = GetWorkerStatus(worker.address, timeout);
    if (status.ok()) worker.status = *status;
  }
}

}  // namespace lodestone
