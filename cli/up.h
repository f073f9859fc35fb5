#pragma once

#include "cli/cluster_flags.h"

namespace lodestone {

// `lodestone up`: a whole cluster on this machine until Ctrl-C.
struct UpConfig {
  ClusterFlags cluster;
  int64_t http_port = 8080;
  bool restart = true;
  std::chrono::milliseconds ready_timeout{300'000};

  template <typename Visitor>
  void VisitFields(Visitor& visit) {
    cluster.VisitFields(visit);
    visit(http_port, "http-port", "port of the HTTP API; 0 = any free", "Cluster");
    visit(restart, "restart", "start a process that died again after 2 s", "Cluster");
    visit(ready_timeout, "ready-timeout", "longest wait for the first answer", "Cluster");
  }
};

int RunUp(int argc, const char* const* argv);

}  // namespace lodestone
