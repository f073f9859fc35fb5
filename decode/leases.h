#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"

namespace lodestone {

inline constexpr std::chrono::seconds kLeaseLifetime{5};  // after it was last named

// A router's token stream; unique while this process lives.
using StreamId = uint64_t;

// Which leases live, and who keeps them alive. Pure: holds no bytes and no sequence; the worker
// frees what belongs to the leases that die. Worker loop only.
//
// A lease lives from Add until Remove, or until TakeExpired or TakeBroken returns it:
//   - expired: kLeaseLifetime after it was last named (Add names it once);
//   - broken: at once when a router's stream breaks that has named it. A prefill worker's link only
//     keeps a lease alive: what breaks with it is the receiver's business.
class LeaseTable {
 public:
  explicit LeaseTable(const Clock* clock) : clock_(clock) {}

  // REQUIRES: not live.
  void Add(LeaseId lease);
  bool IsLive(LeaseId lease) const { return leases_.contains(lease); }
  // Unknown leases are ignored: their end was told already.
  void Name(std::span<const LeaseId> leases);
  void NameOnStream(StreamId stream, std::span<const LeaseId> leases);
  // False if it was not live.
  bool Remove(LeaseId lease);

  // Leases that died by time, or because `stream` broke; they are not live any more.
  std::vector<LeaseId> TakeExpired();
  std::vector<LeaseId> TakeBroken(StreamId stream);

  size_t size() const { return leases_.size(); }

 private:
  struct Lease {
    TimePoint last_named;
    std::set<StreamId> streams;  // that have named it
  };
  template <typename Predicate>
  std::vector<LeaseId> TakeIf(Predicate dies);

  const Clock* const clock_;
  std::map<LeaseId, Lease> leases_;
};

}  // namespace lodestone
