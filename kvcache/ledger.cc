#include "kvcache/ledger.h"

#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "base/out_of_memory.h"

namespace lodestone {
namespace {

Reservation operator+(Reservation a, Reservation b) {
  return {a.num_pages + b.num_pages, a.num_slots + b.num_slots};
}
Reservation operator-(Reservation a, Reservation b) {
  return {a.num_pages - b.num_pages, a.num_slots - b.num_slots};
}
bool FitsIn(Reservation amount, Reservation room) {
  return amount.num_pages <= room.num_pages && amount.num_slots <= room.num_slots;
}
bool IsNegative(Reservation amount) { return amount.num_pages < 0 || amount.num_slots < 0; }
std::string ToString(Reservation amount) {
  return absl::StrCat(amount.num_pages, " pages and ", amount.num_slots, " slots");
}

}  // namespace

Ledger::Ledger(const MemoryPlan& plan)
    : capacity_(plan.capacity),
      bytes_per_page_(plan.bytes_per_page),
      bytes_per_slot_(plan.bytes_per_slot),
      total_{plan.num_pages, plan.num_slots} {}

absl::Status Ledger::Reserve(LeaseId lease, Reservation reservation) {
  if (lease == kNoLease || IsNegative(reservation)) {
    return absl::InvalidArgumentError(
        absl::StrCat("lease ", lease.value(), " cannot reserve ", ToString(reservation)));
  }
  if (!FitsIn(reservation, total_)) {
    return absl::InvalidArgumentError(absl::StrCat("request needs ", ToString(reservation),
                                                   ", the worker has ", ToString(total_)));
  }
  MutexLock lock(&mutex_);
  if (!FitsIn(reservation, Free())) {
    return absl::ResourceExhaustedError(absl::StrCat("request needs ", ToString(reservation), ", ",
                                                     ToString(Free()), " are free of ",
                                                     ToString(total_)));
  }
  if (accounts_.contains(lease)) {
    return absl::AlreadyExistsError(absl::StrCat("lease ", lease.value(), " exists"));
  }
  try {
    accounts_.try_emplace(lease, Account{.reserved = reservation});
  } catch (const std::bad_alloc&) {
    return OutOfMemory("for a lease");
  }
  reserved_ = reserved_ + reservation;
  ++num_live_;
  return absl::OkStatus();
}

absl::Status Ledger::Release(LeaseId lease) {
  MutexLock lock(&mutex_);
  const auto account = accounts_.find(lease);
  if (account == accounts_.end() || account->second.released) {
    return absl::NotFoundError(absl::StrCat("no lease ", lease.value()));
  }
  const Reservation used = account->second.used;
  reserved_ = reserved_ - (account->second.reserved - used);
  --num_live_;
  if (used == Reservation{0, 0}) {
    accounts_.erase(account);
    return absl::OkStatus();
  }
  account->second.reserved = used;
  account->second.released = true;
  orphan_ = orphan_ + used;
  return absl::OkStatus();
}

absl::StatusOr<Reservation> Ledger::Find(LeaseId lease) const {
  MutexLock lock(&mutex_);
  const auto account = accounts_.find(lease);
  if (account == accounts_.end() || account->second.released) {
    return absl::NotFoundError(absl::StrCat("no lease ", lease.value()));
  }
  return account->second.reserved;
}

absl::Status Ledger::Use(LeaseId lease, Reservation amount) {
  CHECK(!IsNegative(amount)) << ToString(amount);
  MutexLock lock(&mutex_);
  const auto found = accounts_.find(lease);
  if (found == accounts_.end() || found->second.released) {
    return absl::NotFoundError(absl::StrCat("no lease ", lease.value()));
  }
  Account& account = found->second;
  if (!FitsIn(account.used + amount, account.reserved)) {
    return absl::InternalError(absl::StrCat("lease ", lease.value(), " would use ",
                                            ToString(account.used + amount), ", reserved are ",
                                            ToString(account.reserved)));
  }
  account.used = account.used + amount;
  used_ = used_ + amount;
  return absl::OkStatus();
}

void Ledger::GiveBack(LeaseId lease, Reservation amount) {
  MutexLock lock(&mutex_);
  const auto found = accounts_.find(lease);
  CHECK(found != accounts_.end()) << "no lease " << lease;
  Account& account = found->second;
  CHECK(!IsNegative(amount) && FitsIn(amount, account.used))
      << "lease " << lease << " gives back " << ToString(amount) << " of "
      << ToString(account.used);
  account.used = account.used - amount;
  used_ = used_ - amount;
  if (!account.released) return;
  account.reserved = account.used;
  reserved_ = reserved_ - amount;
  orphan_ = orphan_ - amount;
  if (account.used == Reservation{0, 0}) accounts_.erase(found);
}

void Ledger::SetUsed(MemoryPool pool, int64_t bytes) {
  CHECK(bytes_per_page_[pool] == 0 && bytes_per_slot_[pool] == 0)
      << Name(pool) << " is counted by its pages or slots";
  MutexLock lock(&mutex_);
  fixed_used_[pool] = bytes;
}

MemorySnapshot Ledger::Snapshot() const {
  MutexLock lock(&mutex_);
  MemorySnapshot snapshot;
  snapshot.capacity = capacity_;
  snapshot.used = BytesOf(used_);
  snapshot.used.Add(fixed_used_);
  snapshot.reserved_bytes = BytesOf(reserved_ - used_).total();
  snapshot.free_bytes = capacity_.total() - snapshot.used.total() - snapshot.reserved_bytes;
  snapshot.orphan_bytes = BytesOf(orphan_).total();
  snapshot.num_leases = num_live_;
  snapshot.free_pages = Free().num_pages;
  snapshot.free_slots = Free().num_slots;
  return snapshot;
}

absl::Status Ledger::CheckIdle() const {
  MutexLock lock(&mutex_);
  if (num_live_ == 0 && reserved_ == Reservation{0, 0}) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(num_live_, " leases with ", ToString(reserved_),
                                          " are left, ", ToString(used_), " of them in use, ",
                                          ToString(orphan_), " without a lease"));
}

PoolBytes Ledger::BytesOf(Reservation amount) const {
  PoolBytes bytes;
  bytes.Add(bytes_per_page_, amount.num_pages);
  bytes.Add(bytes_per_slot_, amount.num_slots);
  return bytes;
}

Reservation Ledger::Free() const { return total_ - reserved_; }

}  // namespace lodestone
