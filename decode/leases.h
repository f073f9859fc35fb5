#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/ids.h"

namespace lodestone {

inline constexpr std::chrono::seconds kLeaseLifetime{5};  // after it was last named

// Somebody who names leases: a router's token stream, or a prefill worker's link.
struct LeaseHolder {
  enum class Kind : uint8_t { kRouterStream, kPrefillLink };
  Kind kind = Kind::kRouterStream;
  uint64_t id = 0;  // of the stream, or of the link; unique while this process lives
  friend auto operator<=>(const LeaseHolder&, const LeaseHolder&) = default;
};

// Which leases live, and who keeps them alive. Pure: holds no bytes and no sequence; the worker
// frees what belongs to the leases that die. Worker loop only.
//
// A lease lives from Add until Remove, or until it is in the result of Expired or Broken:
//   - Expired: kLeaseLifetime after it was last named (Add names it once);
//   - Broken: at once when a stream breaks that was naming it. A prefill link counts until the
//     hand-off was adopted, the router's stream to the end.
class LeaseTable {
 public:
  explicit LeaseTable(const Clock* clock) : clock_(clock) {}

  // REQUIRES: not live.
  void Add(LeaseId lease);
  bool IsLive(LeaseId lease) const { return leases_.contains(lease); }
  // Unknown leases are ignored: their end was told already.
  void Name(LeaseHolder holder, std::span<const LeaseId> leases);
  // The prefill link does not matter to this lease any more.
  void Adopted(LeaseId lease);
  // False if it was not live.
  bool Remove(LeaseId lease);

  // Leases that died by time, or because `holder` broke; they are not live any more.
  std::vector<LeaseId> TakeExpired();
  std::vector<LeaseId> TakeBroken(LeaseHolder holder);

  size_t size() const { return leases_.size(); }

 private:
  struct Lease {
    TimePoint last_named;
    std::set<LeaseHolder> holders;
    bool adopted = false;
  };
  template <typename Predicate>
  std::vector<LeaseId> TakeIf(Predicate dies);

  const Clock* const clock_;
  std::map<LeaseId, Lease> leases_;
};

}  // namespace lodestone
