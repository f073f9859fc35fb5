#include "decode/leases.h"

#include "base/logging.h"

namespace lodestone {

void LeaseTable::Add(LeaseId lease) {
  const bool added =
      leases_.emplace(lease, Lease{.last_named = clock_->Now(), .streams = {}}).second;
  CHECK(added) << "lease " << lease << " exists";
}

void LeaseTable::Name(std::span<const LeaseId> leases) {
  for (LeaseId id : leases) {
    const auto lease = leases_.find(id);
    if (lease != leases_.end()) lease->second.last_named = clock_->Now();
  }
}

void LeaseTable::NameOnStream(StreamId stream, std::span<const LeaseId> leases) {
  Name(leases);
  for (LeaseId id : leases) {
    const auto lease = leases_.find(id);
    if (lease != leases_.end()) lease->second.streams.insert(stream);
  }
}

bool LeaseTable::Remove(LeaseId lease) { return leases_.erase(lease) > 0; }

template <typename Predicate>
std::vector<LeaseId> LeaseTable::TakeIf(Predicate dies) {
  std::vector<LeaseId> taken;
  for (auto lease = leases_.begin(); lease != leases_.end();) {
    if (dies(lease->second)) {
      taken.push_back(lease->first);
      lease = leases_.erase(lease);
    } else {
      ++lease;
    }
  }
  return taken;
}

std::vector<LeaseId> LeaseTable::TakeExpired() {
  const TimePoint oldest = clock_->Now() - kLeaseLifetime;
  return TakeIf([oldest](const Lease& lease) { return lease.last_named < oldest; });
}

std::vector<LeaseId> LeaseTable::TakeBroken(StreamId stream) {
  return TakeIf([stream](const Lease& lease) { return lease.streams.contains(stream); });
}

}  // namespace lodestone
