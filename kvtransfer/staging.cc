#include "kvtransfer/staging.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "base/status_macros.h"

namespace lodestone {

absl::StatusOr<StagingSlots> StagingSlots::Allocate(int num_slots, int64_t slot_bytes,
                                                    MemoryPlace place, Stream* engine) {
  if (num_slots < 1 || slot_bytes < 1) {
    return absl::InvalidArgumentError(absl::StrCat("staging of ", num_slots, " slots of ",
                                                   slot_bytes, " bytes, needs 1 of 1 at least"));
  }
  const DeviceId device = engine->device();
  ASSIGN_OR_RETURN(Stream moves, Stream::Create(device, &engine->pool()));
  StagingSlots slots(num_slots, slot_bytes, engine, std::move(moves));
  ASSIGN_OR_RETURN(slots.buffer_, Buffer::Allocate(num_slots * slot_bytes, place));
  const int64_t digest_bytes = num_slots * static_cast<int64_t>(sizeof(RowDigests));
  ASSIGN_OR_RETURN(slots.digests_, Buffer::Allocate(digest_bytes, WorkMemory(device)));
  slots.moves_.FillBytes(slots.digests_.data(), 0, digest_bytes);
  ASSIGN_OR_RETURN(slots.host_digests_, Buffer::Allocate(digest_bytes, SharedMemory(device)));
  ASSIGN_OR_RETURN(slots.engine_place_, Event::Create(device));
  ASSIGN_OR_RETURN(slots.last_move_, Event::Create(device));
  for (int slot = 0; slot < num_slots; ++slot) {
    ASSIGN_OR_RETURN(Event event, Event::Create(device));
    slots.moved_.push_back(std::move(event));
  }
  return slots;
}

StagingSlots::StagingSlots(int num_slots, int64_t slot_bytes, Stream* engine, Stream moves)
    : num_slots_(num_slots),
      slot_bytes_(slot_bytes),
      engine_(engine),
      moves_(std::move(moves)),
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

uint64_t* StagingSlots::digests(const Buffer& of_all, int slot) const {
  return reinterpret_cast<uint64_t*>(of_all.data()) + slot * kNumCacheKinds;
}

uint64_t* StagingSlots::BeginMove(int slot) {
  engine_place_.Record(*engine_);
  moves_.WaitFor(engine_place_);
  return digests(digests_, slot);
}

void StagingSlots::EndMove(int slot) {
  moves_.Copy(digests(host_digests_, slot), digests(digests_, slot), sizeof(RowDigests));
  moved_[static_cast<size_t>(slot)].Record(moves_);
  moves_.FillBytes(digests(digests_, slot), 0, sizeof(RowDigests));  // for the next one
}

absl::StatusOr<bool> StagingSlots::Moved(int slot, RowDigests& digests_out) const {
  ASSIGN_OR_RETURN(const bool passed, moved_[static_cast<size_t>(slot)].Passed());
  if (passed) std::memcpy(digests_out, digests(host_digests_, slot), sizeof(RowDigests));
  return passed;
}

void StagingSlots::AwaitMoves() {
  last_move_.Record(moves_);
  engine_->WaitFor(last_move_);
}

}  // namespace lodestone
