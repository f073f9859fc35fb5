#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/sampling_params.h"
#include "kernels/op_params.h"

namespace lodestone {

// Rows of one cache kind: their number, bytes and digest (a sum: parts add up to the whole).
struct KindRows {
  int64_t rows = 0;
  int64_t bytes = 0;
  uint64_t digest = 0;
  friend bool operator==(const KindRows&, const KindRows&) = default;
};
using Manifest = std::array<KindRows, kNumCacheKinds>;

// One staging slot of rows, as offered. Which rows follows from the canonical row order of
// SequenceCache::AppendRuns(from_tokens, to_tokens), or FinalRuns(to_tokens) if `final`.
struct Offer {
  uint64_t link_seq = 0;
  LeaseId lease = kNoLease;
  int32_t chunk = 0;
  int32_t from_tokens = 0;
  int32_t to_tokens = 0;
  bool final = false;
  int64_t first_row = 0;
  int64_t num_rows = 0;
  int64_t bytes = 0;
  Manifest kinds{};
  bool early = false;    // its bytes follow without READY
  bool packing = false;  // early, and sent before its rows are packed: `kinds` has no digests
};

// A further choice of a request, which decode starts as a copy of the sequence handed over.
struct HandoffFork {
  LeaseId lease;  // reserved together with the lease of the hand-off
  uint64_t seed = 0;
  GeneratedToken first_token;
};

// What decode needs to go on, after the last offer of a request.
struct Handoff {
  LeaseId lease;
  std::string request_id;
  std::vector<int32_t> tokens;  // everything whose cache was sent: prompt and replayed tokens
  int32_t num_generated = 0;    // of `tokens`, at its end
  GeneratedToken first_token;   // sampled by prefill; its own cache rows are not computed yet
  SamplingParams sampling;
  std::vector<HandoffFork> forks{};  // those that go on after their first token
  Manifest totals{};
};

}  // namespace lodestone
