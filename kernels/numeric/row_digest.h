#pragma once

#include <cstddef>
#include <cstdint>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "runtime/cache_views.h"

// The digest of one cache row. Digests of rows are added mod 2^64 (RowDigests of
// kernels/op_params.h), so a sum does not depend on order or on how rows are split into slots, and
// still sees a row that was swapped, repeated, moved or altered. One definition for all backends
// and both ends of a link.
namespace lodestone {

// Finaliser of SplitMix64: a bijection in which every input bit reaches every output bit.
static inline uint64_t Mix64(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

static inline uint64_t RowSeed(CacheKind kind, int32_t layer, int64_t entry) {
  const uint64_t place = (static_cast<uint64_t>(kind) << 32) | static_cast<uint32_t>(layer);
  return Mix64(Mix64(place + 0x9e3779b97f4a7c15u) + static_cast<uint64_t>(entry));
}

// A row in one piece.
static inline uint64_t RowDigest(CacheKind kind, int32_t layer, int64_t entry, const std::byte* row,
                                 int64_t num_bytes) {
  const uint64_t seed = RowSeed(kind, layer, entry);
  return Mix64(XXH64(row, static_cast<size_t>(num_bytes), seed));
}

// A row in two pieces (payload and scale): the digest of their concatenation.
static inline uint64_t RowDigest(CacheKind kind, int32_t layer, int64_t entry,
                                 const std::byte* first, int64_t first_bytes,
                                 const std::byte* second, int64_t second_bytes) {
  XXH64_state_t state;
  XXH64_reset(&state, RowSeed(kind, layer, entry));
  XXH64_update(&state, first, static_cast<size_t>(first_bytes));
  XXH64_update(&state, second, static_cast<size_t>(second_bytes));
  return Mix64(XXH64_digest(&state));
}

// Row `row` of `run`, read where the run's parts lie.
static inline uint64_t RowDigest(const RowRun& run, int64_t row) {
  const std::byte* first = run.At(0, row);
  const int64_t entry = run.first_entry + row;
  if (run.num_parts == 1) {
    return RowDigest(run.kind, run.layer, entry, first, run.part_bytes[0]);
  }
  const std::byte* second = run.At(1, row);
  return RowDigest(run.kind, run.layer, entry, first, run.part_bytes[0], second, run.part_bytes[1]);
}

}  // namespace lodestone
