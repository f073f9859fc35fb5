#pragma once

#include <chrono>
#include <string>

#include "base/config.h"
#include "cli/cluster_view.h"

namespace lodestone {

// `lodestone status`: a router, its workers and the links between them.
struct StatusConfig {
  std::string url = "http://127.0.0.1:8080";
  bool json = false;
  std::chrono::milliseconds timeout{2'000};

  template <typename Visitor>
  void VisitFields(Visitor& visit) {
    visit(url, "url", "HTTP address of the router", "Cluster");
    visit(json, "json", "one JSON object instead of the table", "Output");
    visit(timeout, "timeout", "longest wait for the router, and for each worker", "Cluster");
  }
};

// Text for people, and the same as JSON. Pure.
std::string StatusTable(const std::string& url, const ClusterView& view);
std::string StatusJson(const std::string& url, const ClusterView& view);

// Exit code 0: ready; 1: not ready, or no answer.
int RunStatus(int argc, const char* const* argv);

}  // namespace lodestone
