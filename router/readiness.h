#pragma once

#include <memory>
#include <set>
#include <string>
#include <utility>

#include "router/model_info.h"
#include "router/request_flow.h"
#include "router/worker_registry.h"

namespace lodestone {

// Whether the cluster answers: true while a pair of live workers stands that a real generation has
// gone through, prefill, hand-off and decode. New pairs are probed one after the other with a short
// prompt of two new tokens; a worker that was not ready for a moment, however short, makes its
// pairs new. Loop only.
class Readiness {
 public:
  Readiness(asio::io_context& loop, const ModelInfo* model, WorkerRegistry* registry,
            RequestFlow* flow, RouterMetrics* metrics);

  bool ready() const;
  // {"ready":...,"reasons":[...],"workers":[...],"refused":[...]}: those refused lately, and why.
  std::string Describe() const;

  // Probes; runs until Stop().
  Task<void> Watch();
  void Stop();
  // A worker came, went or changed.
  void NotifyChange();

 private:
  using Pair = std::pair<std::string, std::string>;  // instance ids of prefill and decode
  std::set<Pair> LivePairs() const;
  Task<void> Probe(Pair pair);
  std::vector<std::string> Reasons() const;
  std::shared_ptr<Worker> FirstReady(WorkerRole role) const;  // null: none

  const ModelInfo& model_;
  WorkerRegistry& registry_;
  RequestFlow& flow_;
  RouterMetrics& metrics_;
  Event changed_;
  std::set<Pair> proven_;
  Pair probed_;  // now, or at last; none once it is not live any more
  std::string last_failure_;
  bool stopping_ = false;
  CancelSource stop_;
};

}  // namespace lodestone
