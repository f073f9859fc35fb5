#pragma once

#include <cstdint>
#include <unordered_map>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/ids.h"
#include "base/mutex.h"
#include "kvcache/memory_pool.h"
#include "kvcache/planner.h"

namespace lodestone {

// What one sequence may use at most, as counts; bytes follow from the plan.
struct Reservation {
  int64_t num_pages = 0;
  int64_t num_slots = 1;
  friend bool operator==(const Reservation&, const Reservation&) = default;
};

// Worst case of a sequence of at most `max_tokens` tokens.
constexpr Reservation ReservationFor(int64_t max_tokens) { return {PagesFor(max_tokens), 1}; }

// used + reserved + free = capacity, in bytes, over all pools.
struct MemorySnapshot {
  PoolBytes capacity;
  PoolBytes used;
  int64_t reserved_bytes = 0;  // under leases, not yet used
  int64_t free_bytes = 0;      // neither
  int64_t orphan_bytes = 0;    // part of used: its lease is gone, its cache not yet
  int64_t num_leases = 0;
  int64_t free_pages = 0;  // under no lease
  int64_t free_slots = 0;
};

// Every byte that a worker may use, by class, and who may use it. Cache memory is used only under a
// lease, so what was admitted always fits. Invariants:
//   1. the pages and slots of all leases never exceed those of the plan;
//   2. a lease never uses more than it reserved;
//   3. a released lease keeps what is still in use (orphan) until that is given back, no more.
// Thread-safe: service threads reserve, the worker loop uses, the metrics thread reads.
class Ledger {
 public:
  explicit Ledger(const MemoryPlan& plan);

  // RESOURCE_EXHAUSTED with what is needed and what is free if it does not fit now;
  // INVALID_ARGUMENT if it can never fit; ALREADY_EXISTS if the lease exists. Nothing changes then.
  absl::Status Reserve(LeaseId lease, Reservation reservation);
  // Ends the lease: what it does not use is free at once, the rest when it is given back. NOT_FOUND
  // if there is no such lease, which a caller that releases twice may ignore.
  absl::Status Release(LeaseId lease);

  // What a live lease reserved. NOT_FOUND if there is none.
  absl::StatusOr<Reservation> Find(LeaseId lease) const;
  // A sequence begins to use pages and slots. NOT_FOUND without a live lease, INTERNAL beyond the
  // reservation (both numbers in the message); nothing changes then.
  absl::Status Use(LeaseId lease, Reservation amount);
  // REQUIRES: in use by the lease (CHECK); the lease may have been released.
  void GiveBack(LeaseId lease, Reservation amount);

  // Bytes in use of a pool that is not cache (weights, staging, transport, scratch, graphs).
  void SetUsed(MemoryPool pool, int64_t bytes);

  MemorySnapshot Snapshot() const;
  // OK if there is no lease and no page or slot in use; else INTERNAL saying what is left.
  absl::Status CheckIdle() const;

 private:
  struct Account {
    Reservation reserved{};
    Reservation used = {0, 0};
    bool released = false;
  };
  PoolBytes BytesOf(Reservation amount) const;
  // Pages and slots under no lease.
  Reservation Free() const REQUIRES(mutex_);

  const PoolBytes capacity_;
  const PoolBytes bytes_per_page_;
  const PoolBytes bytes_per_slot_;
  const Reservation total_;

  mutable Mutex mutex_;
  std::unordered_map<LeaseId, Account> accounts_ GUARDED_BY(mutex_);
  Reservation reserved_ GUARDED_BY(mutex_) = {0, 0};  // sums over accounts
  Reservation used_ GUARDED_BY(mutex_) = {0, 0};
  Reservation orphan_ GUARDED_BY(mutex_) = {0, 0};
  int64_t num_live_ GUARDED_BY(mutex_) = 0;
  PoolBytes fixed_used_ GUARDED_BY(mutex_);
};

}  // namespace lodestone
