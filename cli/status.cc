#include "cli/status.h"

#include <algorithm>
#include <boost/json.hpp>
#include <cstdio>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "cli/command.h"

namespace lodestone {
namespace {

namespace json = boost::json;

constexpr std::string_view kName = "lodestone status";
constexpr std::string_view kDescription =
    "Shows a router and its workers: state, memory, pages, running and waiting requests; and, for\n"
    "each prefill and decode worker, what caches travel over and why not over a better transport.\n"
    "  lodestone status --url http://127.0.0.1:8080\n"
    "Exit code 0 if the cluster is ready, 1 if it is not or does not answer.";
constexpr size_t kShownId = 8;  // digits of an instance id

using Row = std::vector<std::string>;

// Columns as wide as their widest cell, two spaces apart.
std::string Align(const std::vector<Row>& rows) {
  std::vector<size_t> widths;
  for (const Row& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const Row& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      line += row[i] + std::string(widths[i] + 2 - row[i].size(), ' ');
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string Decimal(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f", value);
  return text;
}

int64_t UsedBytes(const v1::GetStatusReply& status) {
  int64_t bytes = status.reserved_bytes();
  for (const v1::MemoryPoolStatus& pool : status.pools()) bytes += pool.used_bytes();
  return bytes;
}

int64_t CapacityBytes(const v1::GetStatusReply& status) {
  int64_t bytes = 0;
  for (const v1::MemoryPoolStatus& pool : status.pools()) bytes += pool.capacity_bytes();
  return bytes;
}

Row WorkerRow(const WorkerView& worker) {
  Row row = {worker.role, worker.address.empty() ? "-" : worker.address,
             worker.instance_id.substr(0, kShownId), worker.state};
  if (worker.status) {
    const v1::GetStatusReply& status = *worker.status;
    constexpr double kMiB = 1 << 20;
    row.push_back(Decimal(static_cast<double>(UsedBytes(status)) / kMiB) + " of " +
                  Decimal(static_cast<double>(CapacityBytes(status)) / kMiB));
    row.push_back(std::to_string(status.used_pages()) + " of " +
                  std::to_string(status.num_pages()));
    row.push_back(std::to_string(status.load().running_requests()));
    row.push_back(std::to_string(status.load().queued_requests()) + " (" +
                  std::to_string(status.load().queued_tokens()) + " tokens)");
    row.push_back(status.seconds_since_step() < 0
                      ? "never"
                      : Decimal(status.seconds_since_step()) + " s ago");
  } else {
    row.insert(row.end(), {"-", "-", "-", "-", worker.address.empty() ? "-" : "no answer"});
  }
  row.push_back(worker.reason);
  return row;
}

json::object WorkerJson(const WorkerView& worker) {
  json::object object{{"role", worker.role},
                      {"address", worker.address},
                      {"instance_id", worker.instance_id},
                      {"state", worker.state},
                      {"reason", worker.reason},
                      {"answers", worker.status.has_value()}};
  if (!worker.status) return object;
  const v1::GetStatusReply& status = *worker.status;
  object["used_bytes"] = UsedBytes(status);
  object["capacity_bytes"] = CapacityBytes(status);
  object["orphan_bytes"] = status.orphan_bytes();
  object["used_pages"] = status.used_pages();
  object["num_pages"] = status.num_pages();
  object["live_leases"] = status.live_leases();
  object["running_requests"] = status.load().running_requests();
  object["queued_requests"] = status.load().queued_requests();
  object["queued_tokens"] = status.load().queued_tokens();
  object["num_steps"] = status.num_steps();
  if (status.seconds_since_step() >= 0) {
    object["seconds_since_step"] = status.seconds_since_step();
  }
  return object;
}

// Calls `visit` with every prefill and decode worker that serve, and what the former says of its
// link to the latter: null if nothing, as before the first request and long after the last one.
template <typename Visit>
void ForEachPair(const ClusterView& view, Visit visit) {
  for (const WorkerView& prefill : view.workers) {
    if (prefill.role != "prefill" || !prefill.status) continue;
    for (const WorkerView& decode : view.workers) {
      if (decode.role != "decode" || decode.address.empty()) continue;
      const auto& links = prefill.status->links();
      const auto found =
          std::ranges::find(links, decode.instance_id, &v1::LinkStatus::decode_instance_id);
      visit(prefill, decode, found == links.end() ? nullptr : &*found);
    }
  }
}

Row LinkRow(const WorkerView& prefill, const WorkerView& decode, const v1::LinkStatus* link) {
  if (link == nullptr) return {prefill.address, decode.address, "none", "-", ""};
  return {prefill.address, decode.address, link->up() ? "up" : "closed",
          link->transport().empty() ? "-" : link->transport(), link->reason()};
}

json::object LinkJson(const WorkerView& prefill, const WorkerView& decode,
                      const v1::LinkStatus* link) {
  json::object object{{"prefill", prefill.instance_id}, {"decode", decode.instance_id}};
  object["up"] = link != nullptr && link->up();
  object["transport"] = link != nullptr ? link->transport() : "";
  object["reason"] = link != nullptr ? link->reason() : "";
  return object;
}

int Status(const StatusConfig& config) {
  absl::StatusOr<HttpUrl> url = ParseHttpUrl(config.url);
  if (!url.ok()) return PrintUsageError(kName, url.status());
  absl::StatusOr<ClusterView> view = ReadRouter(HttpClient(*std::move(url)), config.timeout);
  if (!view.ok()) return PrintFailure(kName, view.status());
  AskWorkers(&*view, config.timeout);
  const std::string text =
      config.json ? StatusJson(config.url, *view) : StatusTable(config.url, *view);
  std::printf("%s", text.c_str());
  return view->ready ? 0 : 1;
}

}  // namespace

std::string StatusTable(const std::string& url, const ClusterView& view) {
  std::string text = "router " + url + (view.ready ? ": ready" : ": not ready") + ", " +
                     std::to_string(view.running) + " running, " + std::to_string(view.queued) +
                     " queued, " + std::to_string(view.streams) + " open streams\n";
  for (const std::string& reason : view.reasons) text += "  " + reason + "\n";
  std::vector<Row> rows = {{"role", "address", "instance", "state", "memory MiB", "pages",
                            "running", "queued", "last step", ""}};
  for (const WorkerView& worker : view.workers) rows.push_back(WorkerRow(worker));
  text += rows.size() > 1 ? Align(rows) : "no workers\n";
  std::vector<Row> links = {{"prefill", "decode", "link", "transport", ""}};
  ForEachPair(view, [&](const auto&... pair) { links.push_back(LinkRow(pair...)); });
  if (links.size() > 1) text += Align(links);
  for (const RefusedView& refused : view.refused) {
    text += "refused: " + refused.role + " " + refused.address + ": " + refused.reason + "\n";
  }
  return text;
}

std::string StatusJson(const std::string& url, const ClusterView& view) {
  json::array reasons, workers, links, refused;
  for (const std::string& reason : view.reasons) reasons.emplace_back(reason);
  for (const WorkerView& worker : view.workers) workers.push_back(WorkerJson(worker));
  ForEachPair(view, [&](const auto&... pair) { links.push_back(LinkJson(pair...)); });
  for (const RefusedView& worker : view.refused) {
    refused.push_back(json::object{{"role", worker.role},
                                   {"address", worker.address},
                                   {"instance_id", worker.instance_id},
                                   {"reason", worker.reason}});
  }
  return json::serialize(json::object{{"url", url},
                                      {"ready", view.ready},
                                      {"reasons", std::move(reasons)},
                                      {"running", view.running},
                                      {"queued", view.queued},
                                      {"open_streams", view.streams},
                                      {"workers", std::move(workers)},
                                      {"links", std::move(links)},
                                      {"refused", std::move(refused)}}) +
         "\n";
}

int RunStatus(int argc, const char* const* argv) {
  return RunCommand<StatusConfig>(kName, kDescription, argc, argv, Status);
}

}  // namespace lodestone
