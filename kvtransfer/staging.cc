#include "kvtransfer/staging.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "base/status_macros.h"

namespace lodestone {

absl::StatusOr<StagingSlots> StagingSlots::Allocate(int num_slots, int64_t slot_bytes) {
  if (num_slots < 1 || slot_bytes < 1) {
    return absl::InvalidArgumentError(absl::StrCat("staging of ", num_slots, " slots of ",
                                                   slot_bytes, " bytes, needs 1 of 1 at least"));
  }
  ASSIGN_OR_RETURN(Buffer buffer, Buffer::Allocate(num_slots * slot_bytes));
  return StagingSlots(std::move(buffer), num_slots, slot_bytes);
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

}  // namespace lodestone
