#include "kvtransfer/staging.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "base/status_macros.h"

namespace lodestone {

absl::StatusOr<StagingSlots> StagingSlots::Allocate(int num_slots, int64_t slot_bytes,
                                                    Stream* stream) {
  if (num_slots < 1 || slot_bytes < 1) {
    return absl::InvalidArgumentError(absl::StrCat("staging of ", num_slots, " slots of ",
                                                   slot_bytes, " bytes, needs 1 of 1 at least"));
  }
  const MemoryPlace shared = SharedMemory(stream->device());
  ASSIGN_OR_RETURN(Buffer buffer, Buffer::Allocate(num_slots * slot_bytes, shared));
  StagingSlots slots(std::move(buffer), num_slots, slot_bytes);
  slots.stream_ = stream;
  ASSIGN_OR_RETURN(slots.digests_,
                   Buffer::Allocate(sizeof(RowDigests), WorkMemory(stream->device())));
  ASSIGN_OR_RETURN(slots.host_digests_, Buffer::Allocate(sizeof(RowDigests), shared));
  return slots;
}

StagingSlots::StagingSlots(Buffer buffer, int num_slots, int64_t slot_bytes)
    : buffer_(std::move(buffer)),
      num_slots_(num_slots),
      slot_bytes_(slot_bytes),
      taken_(static_cast<size_t>(num_slots), false) {
  for (int slot = num_slots - 1; slot >= 0; --slot) free_.push_back(slot);
}

std::optional<int> StagingSlots::Take() {
  if (free_.empty()) return std::nullopt;
  const int slot = free_.back();
  free_.pop_back();
  taken_[static_cast<size_t>(slot)] = true;
  return slot;
}

void StagingSlots::GiveBack(int slot) {
  CHECK(slot >= 0 && slot < num_slots_ && taken_[static_cast<size_t>(slot)])
      << "slot " << slot << " is not taken";
  taken_[static_cast<size_t>(slot)] = false;
  free_.push_back(slot);
}

uint64_t* StagingSlots::ClearDigests() {
  stream_->FillBytes(digests_.data(), 0, digests_.size());
  return reinterpret_cast<uint64_t*>(digests_.data());
}

absl::Status StagingSlots::ReadDigests(RowDigests& digests) {
  stream_->Copy(host_digests_.data(), digests_.data(), digests_.size());
  RETURN_IF_ERROR(stream_->Synchronize());
  std::memcpy(digests, host_digests_.data(), sizeof(RowDigests));
  return absl::OkStatus();
}

}  // namespace lodestone
