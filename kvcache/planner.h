#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "kvcache/cache_shape.h"
#include "kvcache/memory_pool.h"

namespace lodestone {

// What a worker is given to work with. Bytes that are not cache come from their owners.
struct PlanInput {
  CacheShape shape;
  int64_t memory_limit_bytes = 0;  // everything below must fit into this
  int64_t weight_bytes = 0;
  int64_t scratch_bytes = 0;    // activations and scratch of the ops, for the largest batch
  int64_t staging_bytes = 0;    // slots of the hand-off
  int64_t transport_bytes = 0;  // buffers of the transport
  int64_t graph_bytes = 0;
  int64_t max_sequences = 0;  // most sequences at once
  int64_t max_context = 0;    // most tokens of one sequence, prompt and answer
  // One sequence of this many tokens must fit; sequence slots are given up for it if need be.
  int64_t required_context = kPageTokens;
};

// How a worker's memory is divided. The same numbers size a running worker.
struct MemoryPlan {
  CacheShape shape;
  int64_t memory_limit_bytes = 0;
  int64_t num_pages = 0;
  int64_t num_slots = 0;  // sequences at once
  int64_t max_context = 0;
  PoolBytes capacity;                   // of the whole worker
  PoolBytes bytes_per_page;             // all layers
  PoolBytes bytes_per_slot;             // all layers
  int64_t bytes_per_request_fixed = 0;  // ring windows and compressor states
  double bytes_per_token = 0;           // entries and index keys
  int64_t largest_context = 0;          // tokens of the longest sequence that fits

  // Sequences of `context` tokens that fit at once; 0 if not even one does.
  int64_t Concurrency(int64_t context) const;
  // "1343488 bytes per request + 648.0 bytes per token".
  std::string AffineLaw() const;
};

// Divides the memory; no device is touched. INVALID_ARGUMENT for an impossible shape or a limit
// below 1; RESOURCE_EXHAUSTED, with the bytes needed at least and the bytes given, if not even one
// sequence of `required_context` tokens fits.
absl::StatusOr<MemoryPlan> PlanMemory(const PlanInput& input);

}  // namespace lodestone
