#include "decode/leases.h"

#include "base/logging.h"

namespace lodestone {

void LeaseTable::Add(LeaseId lease) {
  const bool added =
      leases_.emplace(lease, Lease{.last_named = clock_->Now(), .holders = {}}).second;
  CHECK(added) << "lease " << lease << " exists";
}

void LeaseTable::Name(LeaseHolder holder, std::span<const LeaseId> leases) {
  for (LeaseId id : leases) {
    const auto lease = leases_.find(id);
    if (lease == leases_.end()) continue;
    lease->second.last_named = clock_->Now();
    if (holder.kind == LeaseHolder::Kind::kPrefillLink && lease->second.adopted) continue;
    lease->second.holders.insert(holder);
  }
}

void LeaseTable::Adopted(LeaseId lease) {
  const auto found = leases_.find(lease);
  if (found == leases_.end()) return;
  found->second.adopted = true;
  std::erase_if(found->second.holders, [](const LeaseHolder& holder) {
    return holder.kind == LeaseHolder::Kind::kPrefillLink;
  });
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

std::vector<LeaseId> LeaseTable::TakeBroken(LeaseHolder holder) {
  return TakeIf([&holder](const Lease& lease) { return lease.holders.contains(holder); });
}

}  // namespace lodestone
