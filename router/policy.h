#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "router/api_error.h"
#include "router/request.h"
#include "router/worker_registry.h"

namespace lodestone {

using WorkerList = std::vector<std::shared_ptr<Worker>>;

struct Placement {
  std::shared_ptr<Worker> prefill;
  std::shared_ptr<Worker> decode;
};

// What a request needs, for placement: tokens in the worst case, and whom to avoid.
struct PlacementNeeds {
  int64_t prompt_tokens = 0;   // to be prefilled, replayed tokens included
  int64_t total_tokens = 0;    // prompt + all new ones, of one choice
  int64_t num_choices = 1;     // sequences of that size, all on one decode worker
  std::set<std::string> avoid{};  // instance ids that failed this request; used if no other can
  std::string pinned_prefill{};
  std::string pinned_decode{};
};

// Why there is no placement now.
struct NoPlacement {
  enum class Kind {
    kTooLarge,    // larger than every decode worker, whatever its load: never
    kNoWorkers,   // none that could serve it: not ready, not there, or layouts differ
    kNoCapacity,  // it fits into a worker, but not now: wait
  };
  Kind kind = Kind::kNoWorkers;
  std::optional<WorkerRole> missing = {};  // no worker of this role is ready
  ApiError error = {};
};

// The pair with the most free decode bytes that holds the worst case, and to it the prefill worker
// with the fewest queued tokens; pairs whose link is up first. Both have one layout. A worker whose
// breaker is open is used only if no other of its role is usable; one that is to be avoided also if
// all others are full. Pure.
using PlacementOr = std::variant<Placement, NoPlacement>;
PlacementOr Place(const PlacementNeeds& needs, const WorkerList& workers, TimePoint now);

// The fields of two layouts that differ: "index_k bf16 against fp8".
std::string DifferingLayout(const WorkerHello& here, const WorkerHello& there);

// As either side reports it.
bool LinkIsUp(const Worker& a, const Worker& b);

// Every worker with its state and what keeps it from serving: a JSON array, for error details and
// /readyz.
std::string DescribeWorkers(const WorkerList& workers);

}  // namespace lodestone
